"""A user's image folder: read as the person who made it sees it, and said what was left out."""

import os

import numpy as np
import pytest
from PIL import Image

import data
from data import DataError, DataSpec, load_client_data, load_dataset, load_device_data

pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture
def root(tmp_path):
    """Return a folder apart from the cache, which would be one more folder beside `train`."""
    return tmp_path / "images"


def save(path, value=0, count=1):
    """Save one image, or `count` of them with the numbers 0, 1, ... in their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        place = path if count == 1 else path.with_stem(f"{path.stem}{number}")
        Image.new("L", (4, 4), value).save(place)


def open_folder(path, **changes):
    data.clear_memory()
    return load_dataset(DataSpec("imagefolder", data_dir=str(path), **changes))


def values(dataset):
    """Return label and first pixel of every image."""
    return [
        (int(a), int(b)) for a, b in zip(dataset.labels, dataset.images[:, 0, 0, 0], strict=True)
    ]


def two_classes(root, part="train"):
    save(root / part / "cat" / "a.png", 1)
    save(root / part / "dog" / "a.png", 2)


def test_folders_below_a_class_are_read(root):
    two_classes(root)
    save(root / "train" / "cat" / "site 1" / "b.png", 3)
    save(root / "train" / "cat" / "site 1" / "2024" / "c.png", 4)
    save(root / "test" / "dog" / "x" / "d.png", 5)
    dataset = open_folder(root)
    assert values(dataset) == [(0, 1), (0, 4), (0, 3), (1, 2), (1, 5)]
    assert dataset.train_size == 4


def test_a_folder_without_sub_folders_keeps_its_rows_and_fingerprint(root):
    """Resumed runs know their clients by it: files by name, classes by name, training first."""
    for part in ("train", "test"):
        two_classes(root, part)
    assert values(open_folder(root)) == [(0, 1), (1, 2)] * 2
    assert open_folder(root).fingerprint == "e3b5cd06a4ee929e"


@pytest.mark.parametrize(
    "suffix",
    ["jfif", "jpe", "JPG", "tif", "webp", "bmp", "PNG", "jp2", "tga", "ico", "avif", "pnm"],
)
def test_every_suffix_that_pillow_reads(root, suffix):
    two_classes(root)
    path = root / "train" / "dog" / f"b.{suffix}"
    kind = {"jfif": "JPEG", "jpe": "JPEG", "pnm": "PPM"}.get(suffix)
    Image.new("RGB", (16, 16), (200, 200, 200)).save(path, format=kind)
    assert len(open_folder(root, image_size=4)) == 3


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [
        ("train", "val", "test"), ("Train", "Valid", "Test"), ("TRAIN", "VALIDATION", "TEST"),
        ("training", "dev", "testing"),
    ],
)  # fmt: skip
def test_parts_by_the_names_that_people_give_them(root, train, test, validation):
    for number, part in enumerate((train, validation, test)):
        save(root / part / "cat" / "a.png", number)
        save(root / part / "dog" / "a.png", 10 + number)
    dataset = open_folder(root)
    assert values(dataset) == [(0, 0), (1, 10), (0, 1), (1, 11), (0, 2), (1, 12)]
    assert (dataset.train_size, dataset.validation_size) == (4, 2)
    assert dataset.notes == (
        f"imagefolder: images of 2 classes, 2 in {train}/, 2 in {validation}/ as validation set, "
        f"2 in {test}/ as test set",
    )


def test_two_folders_for_one_part_are_refused(root):
    two_classes(root)
    two_classes(root, "val")
    two_classes(root, "Validation")
    with pytest.raises(DataError, match=r"Validation and .*val are both a validation folder"):
        open_folder(root)


def make_three_parts(root):
    for part, count in (("train", 12), ("val", 6), ("test", 4)):
        save(root / part / "cat" / "a.png", 1, count)
        save(root / part / "dog" / "a.png", 2, count)


@pytest.mark.parametrize("partition", data.PARTITIONS)
@pytest.mark.parametrize("test_split", data.TEST_SPLITS)
def test_val_is_the_validation_set_of_clients(root, partition, test_split):
    make_three_parts(root)
    spec = DataSpec(
        "imagefolder", data_dir=str(root), partition=partition, test_split=test_split,
        alpha=5.0, min_examples=1, classes_per_client=1,
    )  # fmt: skip
    clients = [load_client_data(spec, client, 2) for client in range(2)]
    held = np.sort(np.concatenate([client.validation.indices for client in clients]))
    np.testing.assert_array_equal(held, np.arange(24, 36))
    trained = np.concatenate([client.train.indices for client in clients])
    assert not set(trained) & set(held)
    tested = np.concatenate([client.test.indices for client in clients])
    rows = np.sort(np.concatenate([trained, held, np.unique(tested)]))
    np.testing.assert_array_equal(rows, np.arange(44))


def test_val_is_the_validation_set_of_a_device(root):
    make_three_parts(root)
    device = load_device_data(DataSpec("imagefolder", data_dir=str(root)))
    assert device.train.indices.tolist() == list(range(24))
    assert device.validation.indices.tolist() == list(range(24, 36))
    assert device.test.indices.tolist() == list(range(36, 44))
    half = load_device_data(DataSpec("imagefolder", data_dir=str(root), subset=0.5))
    assert (len(half.train), len(half.validation), len(half.test)) == (12, 6, 4)


def test_val_without_test_leaves_a_fifth_of_train_as_test_set(root):
    save(root / "train" / "cat" / "a.png", 1, 10)
    save(root / "train" / "dog" / "a.png", 2, 10)
    two_classes(root, "val")
    dataset = open_folder(root)
    assert (dataset.train_size, dataset.validation_size, len(dataset)) == (18, 2, 22)
    assert dataset.notes[0].endswith("as validation set, a fifth of train held out as test set")


def test_classes_that_differ_in_case_between_parts_are_one(root):
    save(root / "train" / "Cat" / "a.png", 1)
    save(root / "train" / "dog" / "a.png", 2)
    save(root / "test" / "cat" / "a.png", 3)
    save(root / "test" / "DOG" / "a.png", 4)
    dataset = open_folder(root)
    assert dataset.class_names == ("Cat", "dog")
    assert values(dataset) == [(0, 1), (1, 2), (0, 3), (1, 4)]
    assert "names compared without case: test/DOG is 'dog', test/cat is 'Cat'" in dataset.notes


def test_an_accent_may_be_encoded_either_way(root):
    save(root / "train" / "caf\u00e9" / "a.png", 1)
    save(root / "train" / "bar" / "a.png", 2)
    save(root / "test" / "cafe\u0301" / "a.png", 3)
    assert open_folder(root).num_classes == 2


def test_two_folders_of_one_part_that_differ_in_case_are_refused_or_listed(root):
    for name, value in (("A", 1), ("a", 2), ("b", 3)):
        save(root / "train" / name / "0.png", value)
    with pytest.raises(DataError, match=r"has both 'A' and 'a'.*classes\.txt"):
        open_folder(root)
    (root / "classes.txt").write_text("A\na\nb\n")  # letters of both cases, for example
    assert open_folder(root).num_classes == 3
    save(root / "test" / "B" / "0.png", 4)
    assert values(open_folder(root))[-1] == (2, 4)
    (root / "classes.txt").write_text("A\na\nb\nCc\ncC\n")
    save(root / "test" / "cc" / "0.png", 4)
    with pytest.raises(DataError, match=r"'cc' .* could be 'Cc' or 'cC' of the 5 lines"):
        open_folder(root)


def test_what_systems_leave_behind_is_no_class(root):
    two_classes(root)
    for name in ("__MACOSX", "@eaDir", ".ipynb_checkpoints", ".git"):
        save(root / "train" / name / "a.png", 9)
    save(root / "__MACOSX" / "train" / "a.png", 9)
    (root / "train" / "bird").mkdir()
    (root / "train" / "fish" / "inside").mkdir(parents=True)
    dataset = open_folder(root)
    assert dataset.class_names == ("cat", "dog")
    assert "empty folders are no classes: bird, fish" in dataset.notes


def test_what_was_left_out_is_said_and_how_much(root):
    two_classes(root)
    cat = root / "train" / "cat"
    (cat / "deep").mkdir()
    for name in ("a.txt", "b.txt", "deep/c.heic", "Makefile", ".DS_Store", "._a.png", "Thumbs.db"):
        (cat / name).write_text("x")
    os.mkfifo(cat / "pipe.png")
    save(root / "train" / "beside.png")
    save(root / "unlabelled" / "a.png")
    dataset = open_folder(root)
    assert len(dataset) == 2
    assert dataset.notes[1:] == (
        "files left out: 3 hidden, 2 .txt, 1 .heic, 1 images beside the class folders, 1 no regular"
        " file, 1 without a suffix",
        "folders left out: unlabelled",
    )
    client = load_device_data(DataSpec("imagefolder", data_dir=str(root)))
    assert client.notes == "; ".join(dataset.notes)


def test_a_folder_of_other_files_says_what_is_there(root):
    for name in ("cat", "dog"):
        (root / "train" / name).mkdir(parents=True)
        (root / "train" / name / "a.heic").write_text("x")
    with pytest.raises(DataError, match=r"no image in them; there are 2 \.heic\. Convert them"):
        open_folder(root)


def test_one_class_alone_is_refused_unless_a_list_says_that_there_are_more(root):
    save(root / "train" / "cat" / "a.png")
    with pytest.raises(DataError, match=r"has the one class 'cat'.*classes\.txt") as caught:
        open_folder(root)
    assert str(root) in str(caught.value)
    (root / "classes.txt").write_text("cat\n")
    with pytest.raises(DataError, match="has the one class 'cat'"):
        open_folder(root)
    (root / "classes.txt").write_text("cat\ndog\n")
    assert open_folder(root).class_names == ("cat", "dog")


def test_layouts_that_are_nearly_right_say_what_to_set(root):
    two_classes(root / "archive")
    with pytest.raises(DataError, match=r"There is one in .*archive: set data-dir to that"):
        open_folder(root)
    with pytest.raises(DataError, match=r"This is the training folder itself: set data-dir="):
        open_folder(root / "archive" / "train")
    two_classes(root, "images")
    with pytest.raises(DataError, match=r"Its folders cat, dog may be classes: move them"):
        open_folder(root / "images")


def test_links_are_followed_once_and_those_that_lead_nowhere_are_named(root):
    two_classes(root)
    (root / "train" / "cat" / "loop").symlink_to(root / "train")
    save(root.parent / "elsewhere" / "b.png", 7)
    (root / "train" / "dog" / "more").symlink_to(root.parent / "elsewhere")
    assert values(open_folder(root)) == [(0, 1), (1, 2), (1, 7)]
    (root / "train" / "dog" / "gone.png").symlink_to(root / "nowhere.png")
    with pytest.raises(DataError, match=r"dog/gone\.png"):
        open_folder(root)


def test_a_change_deep_inside_is_read_again(root):
    two_classes(root)
    save(root / "train" / "cat" / "x" / "b.png", 3)
    before = open_folder(root).fingerprint
    save(root / "train" / "cat" / "x" / "c.png", 4)
    assert open_folder(root).fingerprint != before
