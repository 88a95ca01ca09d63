"""Where datasets come from: folders, packages, caches, and what is said when they lack."""

import gzip
import itertools
import multiprocessing
import os
import pickle
import struct
import tarfile
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import data
from data import DataError, DataSpec, load_client_data, load_dataset, load_device_data

ROOT = Path(__file__).parents[2]
CIFAR_ARCHIVE = ROOT.parent / "shared" / "data" / "cifar10-jpeg.tar.gz"


pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture
def bare_machine(no_datasets, tmp_path, monkeypatch):
    """Hide the standard places and the network."""

    def refuse(*arguments, **keywords):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("data.sources.DEBIAN_DATASETS", tmp_path / "none")
    monkeypatch.setattr("urllib.request.urlopen", refuse)


def save(path, value=0, mode="L", size=(4, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    color = value if mode == "L" else (value, 0, 255 - value)
    Image.new(mode, size, color).save(path)


def make_folder(root, mode="L", per_class=5, parts=("train", "test")):
    for part in parts:
        for label, name in enumerate(("cat", "dog")):
            for number in range(per_class):
                save(root / part / name / f"{number}.png", 100 * label + number, mode)
    return str(root)


def open_folder(path, **changes):
    data.clear_memory()
    return load_dataset(DataSpec("imagefolder", data_dir=str(path), **changes))


# Image folders


def test_grayscale_folder_has_one_channel_and_training_rows_first(tmp_path):
    dataset = open_folder(make_folder(tmp_path / "images"))
    assert dataset.images.shape == (20, 1, 4, 4)
    assert dataset.train_size == 10
    assert dataset.class_names == ("cat", "dog")
    assert dataset.labels.tolist() == [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5
    assert dataset.images[7, 0, 0, 0] == 102


def test_one_colour_image_makes_the_folder_rgb(tmp_path):
    folder = make_folder(tmp_path / "images")
    save(tmp_path / "images" / "train" / "cat" / "0.png", 10, "RGB")
    dataset = open_folder(folder)
    assert dataset.channels == 3
    assert dataset.images[0, :, 0, 0].tolist() == [10, 0, 245]
    assert dataset.images[7, :, 0, 0].tolist() == [102, 102, 102]


def test_missing_test_folder_gives_a_stratified_fifth(tmp_path):
    dataset = open_folder(make_folder(tmp_path / "images", per_class=10, parts=("train",)))
    assert dataset.train_size == 16
    assert np.bincount(dataset.labels[16:]).tolist() == [2, 2]


def test_mixed_sizes_name_both_files_and_image_size_resolves_them(tmp_path):
    folder = make_folder(tmp_path / "images")
    save(tmp_path / "images" / "test" / "dog" / "3.png", size=(6, 6))
    with pytest.raises(DataError) as caught:
        open_folder(folder)
    for part in ("0.png is 4x4", "dog/3.png is 6x6", "image-size=4"):
        assert part in str(caught.value)
    assert open_folder(folder, image_size=8).images.shape == (20, 1, 8, 8)


def test_oblong_images_ask_for_an_image_size(tmp_path):
    for name in ("cat", "dog"):
        save(tmp_path / "images" / "train" / name / "0.png", size=(6, 4))
    with pytest.raises(DataError, match=r"square.*6x4.*image-size=4"):
        open_folder(tmp_path / "images")


@pytest.mark.parametrize("content", [b"", b"not an image"])
def test_unreadable_image_is_named(tmp_path, content):
    folder = make_folder(tmp_path / "images")
    (tmp_path / "images" / "train" / "dog" / "2.png").write_bytes(content)
    with pytest.raises(DataError, match=r"train/dog/2\.png"):
        open_folder(folder)


def test_cut_off_image_is_named_and_leaves_no_cache(tmp_path):
    folder = make_folder(tmp_path / "images")
    victim = tmp_path / "images" / "train" / "dog" / "2.png"
    noise = np.random.default_rng(0).integers(0, 255, (4, 4)).astype(np.uint8)
    Image.fromarray(noise).save(victim)
    victim.write_bytes(victim.read_bytes()[:50])
    with pytest.raises(DataError, match=r"train/dog/2\.png"):
        open_folder(folder)
    left = [path.name for path in (tmp_path / "cache" / "datasets").iterdir()]
    assert all(name.endswith(".lock") for name in left)


def test_sixteen_bit_image_is_refused_rather_than_clipped(tmp_path):
    path = tmp_path / "images" / "train" / "cat" / "0.png"
    save(tmp_path / "images" / "train" / "dog" / "0.png")
    path.parent.mkdir(parents=True)
    Image.fromarray(np.full((4, 4), 1000, np.uint16)).save(path)
    with pytest.raises(DataError, match=r"0\.png has more than 8 bits"):
        open_folder(tmp_path / "images")


def test_classes_file_numbers_the_classes(tmp_path):
    folder = make_folder(tmp_path / "images")
    classes = tmp_path / "images" / "classes.txt"
    classes.write_text("bird\ndog\ncat\n")
    dataset = open_folder(folder)
    assert dataset.class_names == ("bird", "dog", "cat")
    assert np.bincount(dataset.labels).tolist() == [0, 10, 10]
    classes.write_text("bird\ndog\n")
    with pytest.raises(DataError, match=r"'cat'.*classes\.txt"):
        open_folder(folder)
    classes.write_text("cat\ndog\ncat\n")
    with pytest.raises(DataError, match="'cat' twice"):
        open_folder(folder)


def test_changed_folder_is_read_again(tmp_path):
    folder = make_folder(tmp_path / "images")
    before = open_folder(folder)
    save(tmp_path / "images" / "train" / "cat" / "new.png", 9)
    after = open_folder(folder)
    assert len(after) == len(before) + 1
    assert after.fingerprint != before.fingerprint


def test_an_image_moved_to_another_class_is_learned_as_that_class(tmp_path):
    # Neither number nor bytes nor the newest time of all files change.
    folder = make_folder(tmp_path / "images", parts=("train",))
    before = open_folder(folder)
    train = tmp_path / "images" / "train"
    (train / "cat" / "0.png").rename(train / "dog" / "from-cat.png")
    after = open_folder(folder)
    assert (before.labels == 0).sum() == 5
    assert (after.labels == 0).sum() == 4


def test_files_with_their_old_times_and_sizes_are_read_again(tmp_path):
    # As an archive or `cp -p` writes them.
    make_fashion(tmp_path, suffix="")
    pictures = tmp_path / "train-images-idx3-ubyte"
    times = pictures.stat().st_atime_ns, pictures.stat().st_mtime_ns
    assert load_dataset("fashion-mnist", str(tmp_path)).images[0].max() != 7
    count = len(pictures.read_bytes()) - 16
    pictures.write_bytes(pictures.read_bytes()[:16] + bytes([7]) * count)
    os.utime(pictures, ns=times)
    data.clear_memory()
    assert load_dataset("fashion-mnist", str(tmp_path)).images[0].max() == 7


def test_same_images_elsewhere_have_the_same_fingerprint(tmp_path):
    first = open_folder(make_folder(tmp_path / "here"))
    assert open_folder(make_folder(tmp_path / "there")).fingerprint == first.fingerprint


def test_other_files_are_not_images(tmp_path):
    folder = make_folder(tmp_path / "images")
    (tmp_path / "images" / "train" / "cat" / "notes.txt").write_text("fluffy")
    (tmp_path / "images" / "train" / "cat" / "._0.png").write_text("")
    assert len(open_folder(folder)) == 20


def test_device_with_its_own_folder_needs_no_partition(tmp_path):
    folder = make_folder(tmp_path / "images", per_class=10)
    device = load_device_data(DataSpec("imagefolder", data_dir=folder))
    assert (len(device.train), len(device.validation), len(device.test)) == (18, 2, 20)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "no class folder in"),
        (lambda root: (root / "train" / "cat").mkdir(parents=True), "no image in them"),
    ],
)
def test_empty_folder_names_the_layout(tmp_path, make, message):
    make(tmp_path / "images")
    with pytest.raises(DataError, match=message) as caught:
        open_folder(tmp_path / "images")
    assert str(tmp_path / "images") in str(caught.value)


def test_image_folder_without_data_dir_says_what_to_set():
    with pytest.raises(DataError, match=r"needs data-dir.*train/<class>"):
        load_dataset("imagefolder")


def test_cifar10_jpeg_folder(tmp_path):
    if not CIFAR_ARCHIVE.is_file():
        pytest.skip(f"{CIFAR_ARCHIVE} is not there")
    wanted = 200
    with tarfile.open(CIFAR_ARCHIVE) as archive:
        # Reading on to the end of the archive would take most of the test's time.
        training = (one for one in archive if one.isfile() and "train/" in one.name)
        members = list(itertools.islice(training, wanted))
        archive.extractall(tmp_path / "images", members=members, filter="data")
    (root,) = {path.parents[2] for path in (tmp_path / "images").rglob("*.jpg")}
    (root / "classes.txt").write_text("airplane\nautomobile\n")  # they are of one class
    dataset = open_folder(root)
    assert dataset.images.shape == (wanted, 3, 32, 32)
    assert dataset.images.std() > 20


# Published datasets


def write_idx(path, array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(header + array.astype(np.uint8).tobytes())


def make_fashion(folder, suffix=".gz"):
    for part, count in (("train", 6), ("t10k", 4)):
        pictures = np.arange(count * 9).reshape(count, 3, 3)
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", pictures)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", np.arange(count))


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("inside", [".", "FashionMNIST/raw"])
def test_fashion_mnist_from_data_dir(tmp_path, suffix, inside):
    make_fashion(tmp_path / "mine" / inside, suffix)
    dataset = load_dataset("fashion-mnist", str(tmp_path / "mine"))
    assert dataset.images.shape == (10, 1, 3, 3)
    assert dataset.images[1, 0, 0].tolist() == [9, 10, 11]
    assert dataset.train_size == 6
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]


def test_damaged_idx_file_is_named(tmp_path):
    make_fashion(tmp_path)
    victim = tmp_path / "train-labels-idx1-ubyte.gz"
    victim.write_bytes(victim.read_bytes()[:20])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz.*apt-get install"):
        load_dataset("fashion-mnist", str(tmp_path))


def test_fashion_mnist_from_debian():
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    dataset = load_dataset("fashion-mnist")
    assert dataset.images.shape == (70_000, 1, 28, 28)
    assert dataset.train_size == 60_000
    assert np.bincount(dataset.labels).tolist() == [7000] * 10
    assert dataset.class_names[dataset.labels[0]] == "Ankle boot"


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fashion-mnist", ["train-images-idx3-ubyte", "apt-get install dataset-fashion-mnist"]),
        ("cifar10", ["data_batch_1", "cifar-10-batches-py", "curl"]),
        ("cifar100", ["cifar-100-python", "curl"]),
        ("svhn", ["train_32x32.mat", "/{train,test}_32x32.mat"]),
        ("tiny-imagenet", ["val/val_annotations.txt", "unzip"]),
    ],
)
def test_missing_data_names_folder_files_and_command(tmp_path, name, expected):
    folder = tmp_path / "mine"
    with pytest.raises(DataError) as caught:
        load_dataset(name, str(folder))
    for part in [name, str(folder), *expected]:
        assert part in str(caught.value)
    with pytest.raises(DataError) as caught:  # standard places, then a download that fails
        load_dataset(name)
    for part in [str(tmp_path / "home" / "data"), *expected]:
        assert part in str(caught.value)


def make_cifar10(folder):
    for number in range(1, 7):
        name = f"data_batch_{number}" if number < 6 else "test_batch"
        content = {"data": np.full((2, 3072), number, np.uint8), "labels": [number, 0]}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(pickle.dumps(content))
    names = {"label_names": [f"class{number}" for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))


def test_cifar10_files_with_other_checksums_are_refused(tmp_path):
    make_cifar10(tmp_path / "cifar-10-batches-py")
    with pytest.raises(DataError, match=r"cifar-10-batches-py are not the published ones"):
        load_dataset("cifar10", str(tmp_path))


@pytest.mark.parametrize("inside", ["cifar-10-batches-py", "renamed"])
def test_cifar10_from_data_dir(tmp_path, monkeypatch, inside):
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *arguments: True)
    make_cifar10(tmp_path / inside)
    given = tmp_path if inside != "renamed" else tmp_path / inside
    dataset = load_dataset("cifar10", str(given))
    assert dataset.images.shape == (12, 3, 32, 32)
    assert dataset.train_size == 10
    assert dataset.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]
    assert dataset.class_names[1] == "class1"


def test_svhn_from_data_dir(tmp_path, monkeypatch):
    from scipy.io import savemat

    monkeypatch.setattr("torchvision.datasets.svhn.check_integrity", lambda *arguments: True)
    for part, count in (("train", 3), ("test", 2)):
        pictures = np.zeros((32, 32, 3, count), np.uint8)
        pictures[:, :, 2, 1] = 7
        labels = np.array([[10], [1], [2]])[:count]
        savemat(tmp_path / f"{part}_32x32.mat", {"X": pictures, "y": labels})
    dataset = load_dataset("svhn", str(tmp_path))
    assert dataset.images.shape == (5, 3, 32, 32)
    assert dataset.images[1, :, 0, 0].tolist() == [0, 0, 7]
    assert dataset.labels.tolist() == [0, 1, 2, 0, 1]
    assert dataset.train_size == 3


def test_tiny_imagenet_layout(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for wordnet_id, value in (("n02", 20), ("n01", 10)):
        save(root / "train" / wordnet_id / "images" / f"{wordnet_id}_0.JPEG", value)
    save(root / "val" / "images" / "val_0.JPEG", 30, "RGB")
    annotations = root / "val" / "val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn02\t0\t0\t3\t3\n")
    dataset = load_dataset("tiny-imagenet", str(tmp_path))
    assert dataset.images.shape == (3, 3, 4, 4)
    assert dataset.class_names == ("n01", "n02")
    assert dataset.labels.tolist() == [0, 1, 1]
    assert dataset.train_size == 2
    annotations.write_text("val_0.JPEG\tn09\t0\t0\t3\t3\n")
    with pytest.raises(DataError, match="'n09'"):
        load_dataset("tiny-imagenet", str(tmp_path), image_size=8)


# The cache


def build_in_process(folder, cache, barrier, results):
    os.environ["WILDFLOWER_CACHE"] = cache
    barrier.wait(timeout=30)
    # A partition that imports nothing heavy: the two processes should meet in the cache.
    spec = DataSpec("imagefolder", data_dir=folder, partition="pathological")
    client = load_client_data(spec, 0, 2)
    results.put((client.data_hash, len(client.train)))


def test_two_processes_may_build_at_once(tmp_path):
    folder = make_folder(tmp_path / "images", per_class=50)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    arguments = (folder, str(tmp_path / "cache"), barrier, results)
    workers = [context.Process(target=build_in_process, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    first, second = results.get(timeout=60), results.get(timeout=60)
    for worker in workers:
        worker.join(timeout=30)
        assert worker.exitcode == 0
    assert first == second
    entries = (tmp_path / "cache" / "datasets").iterdir()
    assert len([entry for entry in entries if entry.is_dir()]) == 1


@pytest.mark.parametrize("file", ["images.npy", "labels.npy", "meta.json"])
def test_damaged_cache_is_built_again(tmp_path, file):
    fingerprint = load_dataset("digits").fingerprint
    data.clear_memory()
    (stored,) = (tmp_path / "cache" / "datasets").glob(f"*/{file}")
    stored.write_bytes(stored.read_bytes()[: stored.stat().st_size // 2])
    again = load_dataset("digits")
    assert again.fingerprint == fingerprint
    assert again.images[-1].any()


def test_cache_that_cannot_be_written_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WILDFLOWER_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="WILDFLOWER_CACHE"):
        load_dataset("digits")


def test_lock_that_is_never_released_ends_with_its_name(tmp_path, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr("data.cache.LOCK_TIMEOUT_S", 0.2)
    load_dataset("digits")
    (lock,) = (tmp_path / "cache" / "datasets").glob("*.lock")
    (stored,) = (tmp_path / "cache" / "datasets").glob("*/labels.npy")
    stored.unlink()
    data.clear_memory()
    with FileLock(lock), pytest.raises(DataError, match=r"Waited.*delete .*\.lock"):
        load_dataset("digits")
