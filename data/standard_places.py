"""Where well-known datasets are looked for, how they are fetched, and what to say if they lack."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data.cache import cache_root
from data.spec import DataError

# Seconds without a byte before a download is given up.
DOWNLOAD_TIMEOUT_S = 20.0

DEBIAN_DATASETS = Path("/usr/share/datasets")


@dataclass(frozen=True)
class KnownFiles:
    """How a dataset lies on disk.

    Attributes
    ----------
    folders : tuple[str, ...]
        Folders, relative to a place, that may hold the files; "." for the place itself.
    files : tuple[str, ...]
        Names that must all be there; an IDX file may also have the suffix .gz.
    fetch : str
        Shell command that fetches them, with {folder} for the destination.
    any_of : tuple[str, ...]
        Names one of which at least must be there too.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]
    fetch: str
    any_of: tuple[str, ...] = ()


_MNIST_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)

KNOWN_FILES: dict[str, KnownFiles] = {
    "fashion-mnist": KnownFiles(
        (".", "fashion-mnist", "FashionMNIST/raw"),
        _MNIST_FILES,
        "apt-get install dataset-fashion-mnist",
    ),
    "cifar10": KnownFiles(
        (".", "cifar-10-batches-py"),
        ("batches.meta", *(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
        "mkdir -p {folder} && curl -fL https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
        " | tar xz -C {folder}",
    ),
    "cifar100": KnownFiles(
        (".", "cifar-100-python"),
        ("meta", "train", "test"),
        "mkdir -p {folder} && curl -fL https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
        " | tar xz -C {folder}",
    ),
    "svhn": KnownFiles(
        (".", "svhn", "SVHN"),
        ("train_32x32.mat", "test_32x32.mat"),
        "curl -fL --create-dirs --output-dir {folder} --remote-name-all"
        " 'http://ufldl.stanford.edu/housenumbers/{{train,test}}_32x32.mat'",
    ),
    "tiny-imagenet": KnownFiles(
        (".", "tiny-imagenet-200"),
        ("train", "val/images", "val/val_annotations.txt"),
        "curl -fL --create-dirs -o {folder}/t.zip"
        " http://cs231n.stanford.edu/tiny-imagenet-200.zip && unzip -q {folder}/t.zip -d {folder}",
    ),
    "voc": KnownFiles(
        (".", "voc", "VOC"),
        (),
        "mkdir -p {folder} && curl -fL"
        " http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar"
        " | tar x -C {folder}",
        ("VOCdevkit/VOC2007/Annotations", "VOCdevkit/VOC2012/Annotations"),
    ),
    "coco": KnownFiles(
        (".", "coco", "COCO"),
        (),
        "mkdir -p {folder} && cd {folder} && for part in zips/train2017 zips/val2017"
        " annotations/annotations_trainval2017; do curl -fLO"
        " http://images.cocodataset.org/$part.zip && unzip -q $(basename $part).zip; done",
        ("annotations/instances_train2017.json", "annotations/instances_val2017.json"),
    ),
}


def download_folder() -> Path:
    """Return the folder that downloads go to, inside the cache."""
    return cache_root() / "downloads"


def standard_places() -> list[Path]:
    """Return the folders searched when no data-dir is given, in order.

    The working directory is not among them: an app's is a temporary one.
    """
    home = Path.home()
    return [DEBIAN_DATASETS, home / "datasets", home / "data", download_folder()]


def search_folder(name: str, data_dir: Path | None) -> Path | None:
    """Find the folder that holds a dataset's files.

    Parameters
    ----------
    name : str
        A key of `KNOWN_FILES`.
    data_dir : Path | None
        Where to look; None for the standard places.

    Returns
    -------
    folder : Path | None
        The folder, or None if no place has all the files.
    """
    known = KNOWN_FILES[name]
    places = [data_dir] if data_dir is not None else standard_places()
    for place in places:
        for relative in known.folders:
            folder = place / relative
            one = not known.any_of or any((folder / file).exists() for file in known.any_of)
            if one and all(_present(folder / file) for file in known.files):
                return folder
    return None


def find_folder(name: str, data_dir: Path | None) -> Path:
    """As `search_folder`, but absence is an error.

    Raises
    ------
    DataError
        Naming the folders looked in, the files expected and the command that fetches them.
    """
    found = search_folder(name, data_dir)
    if found is None:
        raise missing_data(name, data_dir)
    return found


def missing_data(name: str, data_dir: Path | None, reason: str = "") -> DataError:
    """Compose the error for a dataset that is not on this machine."""
    known = KNOWN_FILES[name]
    places = [data_dir] if data_dir is not None else standard_places()
    destination = data_dir if data_dir is not None else download_folder()
    looked = ", ".join(str(place) for place in places)
    inside = " or ".join(folder for folder in known.folders if folder != ".")
    files = ", ".join(known.files) or " or ".join(known.any_of)
    return DataError(
        f"{name}: no data found in {looked}{f' ({reason})' if reason else ''}. Expected the files "
        f"{files} there or in its sub-folder {inside}. Fetch them with: "
        f"{known.fetch.format(folder=destination)}"
    )


@contextmanager
def bounded_download() -> Iterator[None]:
    """Give sockets opened inside a timeout, for libraries that set none themselves."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _present(path: Path) -> bool:
    compressed = path.with_name(path.name + ".gz")
    return path.exists() or (path.name in _MNIST_FILES and compressed.exists())
