"""Builders for the datasets that are published as arrays: digits, Fashion-MNIST, CIFAR, SVHN.

Each takes (data_dir, image_size, target): the user's folder or None, the side to resize to or 0,
and the .npy file to create; each returns `RawImages`, or raises `DataError` if the files are
missing or damaged.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.raw import RawImages, split_without_official_test, write_array
from data.spec import DataError
from data.stamps import known_files_stamp
from data.standard_places import (
    DEBIAN_DATASETS,
    KNOWN_FILES,
    bounded_download,
    download_folder,
    missing_data,
    search_folder,
)

_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_IDX_UNSIGNED_BYTE = 8
_LARGEST_IDX = 2**30
_DIGITS_SIZE = 32


def digits(data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    """Take scikit-learn's bundled digits (1,797 images, 8x8) at 32x32, in one grayscale channel.

    They have no official split: a fixed stratified 80 % are the training set.
    """
    from sklearn.datasets import load_digits

    bundle = load_digits()
    labels = bundle.target.astype(np.int64)
    order, train_size = split_without_official_test(labels)
    # Values are whole numbers 0..16. Straight from 8x8 to the wanted size: one interpolation.
    small = np.rint(bundle.images[order] * (255 / 16)).astype(np.uint8)
    images = write_array(small[:, None], image_size or _DIGITS_SIZE, target)
    return RawImages(images, labels[order], train_size, tuple("0123456789"))


def fashion_mnist(data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    """Read Fashion-MNIST (60,000 + 10,000 images, 28x28, one channel) from four IDX files.

    Looked for in `data_dir`, then in Debian's package `dataset-fashion-mnist` and the other
    standard places; downloaded only where no `data_dir` is given.
    """
    name = "fashion-mnist"
    folder = _fashion_folder(data_dir) or _download(name, data_dir)
    parts = [
        (
            _read_idx(folder / f"{part}-images-idx3-ubyte"),
            _read_idx(folder / f"{part}-labels-idx1-ubyte"),
        )
        for part in ("train", "t10k")
    ]
    for (pictures, numbers), part in zip(parts, ("train", "t10k"), strict=True):
        if len(pictures) != len(numbers):
            raise DataError(
                f"{name}: {folder} has {len(pictures)} images and {len(numbers)} labels in its "
                f"{part} files; fetch them again: {KNOWN_FILES[name].fetch}"
            )
    images = np.concatenate([pictures for pictures, _ in parts])[:, None]
    labels = np.concatenate([numbers for _, numbers in parts]).astype(np.int64)
    written = write_array(images, image_size, target)
    return RawImages(written, labels, len(parts[0][1]), _FASHION_CLASSES)


def fashion_stamp(data_dir: Path | None) -> str:
    """Summarise the IDX files: unlike CIFAR's and SVHN's, their content is not checked."""
    return known_files_stamp("fashion-mnist", _fashion_folder(data_dir))


def _fashion_folder(data_dir: Path | None) -> Path | None:
    name = "fashion-mnist"
    return search_folder(name, data_dir) or search_folder(name, DEBIAN_DATASETS)


def cifar10(data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    """Read CIFAR-10 (50,000 + 10,000 images, 32x32 RGB, 10 classes)."""
    return _cifar("cifar10", data_dir, image_size, target)


def cifar100(data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    """Read CIFAR-100 (50,000 + 10,000 images, 32x32 RGB, 100 fine classes)."""
    return _cifar("cifar100", data_dir, image_size, target)


def svhn(data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    """Read SVHN's cropped digits (73,257 + 26,032 images, 32x32 RGB), without the extra set."""
    from torchvision.datasets import SVHN

    folder = search_folder("svhn", data_dir) or _download("svhn", data_dir)
    parts = [_open_official("svhn", folder, SVHN, root=folder, split=s) for s in ("train", "test")]
    images = np.concatenate([part.data for part in parts])
    labels = np.concatenate([part.labels for part in parts]).astype(np.int64)
    written = write_array(images, image_size, target)
    return RawImages(written, labels, len(parts[0].labels), tuple("0123456789"))


def _cifar(name: str, data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    from torchvision.datasets import CIFAR10, CIFAR100

    folder = search_folder(name, data_dir) or _download(name, data_dir)
    official = CIFAR10 if name == "cifar10" else CIFAR100
    # torchvision insists on its own folder name; the user's may be another.
    reader = type("Renamed", (official,), {"base_folder": folder.name})
    parts = [
        _open_official(name, folder, reader, root=folder.parent, train=train)
        for train in (True, False)
    ]
    images = np.concatenate([part.data for part in parts]).transpose(0, 3, 1, 2)
    labels = np.concatenate([np.asarray(part.targets, dtype=np.int64) for part in parts])
    written = write_array(np.ascontiguousarray(images), image_size, target)
    return RawImages(written, labels, len(parts[0].targets), tuple(parts[0].classes))


def _open_official(name: str, folder: Path, reader: Any, **arguments: Any) -> Any:
    try:
        return reader(download=False, **arguments)
    except RuntimeError as error:  # torchvision's answer to a checksum that differs
        raise DataError(
            f"{name}: the files in {folder} are not the published ones ({error}). Delete them and "
            f"fetch them with: {KNOWN_FILES[name].fetch.format(folder=folder.parent)}"
        ) from error


def _download(name: str, data_dir: Path | None) -> Path:
    """Download through torchvision into the cache; never in place of a folder the user named."""
    if data_dir is not None:
        raise missing_data(name, data_dir)
    from torchvision import datasets

    root = download_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with bounded_download():
            if name == "svhn":
                for split in ("train", "test"):
                    datasets.SVHN(root, split=split, download=True)
            else:
                readers = {
                    "fashion-mnist": datasets.FashionMNIST,
                    "cifar10": datasets.CIFAR10,
                    "cifar100": datasets.CIFAR100,
                }
                readers[name](root, download=True)
    except (OSError, HTTPException, RuntimeError) as error:  # no network, no space, wrong checksum
        raise missing_data(name, None, f"and the download failed: {error}") from error
    folder = search_folder(name, root)
    if folder is None:
        raise missing_data(name, None, f"and the download left no complete copy in {root}")
    return folder


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or gzipped.

    The format is two zero bytes, the element type, the number of dimensions, each dimension as a
    big-endian uint32, then the elements.
    """
    if not path.exists():
        path = path.with_name(path.name + ".gz")
    if not path.is_file():  # a pipe of that name would never end
        raise _damaged_idx(path, "no regular file")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            zeros, kind, dimensions = struct.unpack(">HBB", file.read(4))
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            size = math.prod(shape)
            if size > _LARGEST_IDX:
                raise ValueError(f"header says {size:,} bytes, at most {_LARGEST_IDX:,} are read")
            # No more than the header says: a small compressed file can hold gigabytes.
            elements = np.frombuffer(file.read(size + 1), dtype=np.uint8)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise _damaged_idx(path, error) from error
    if (zeros, kind) != (0, _IDX_UNSIGNED_BYTE) or elements.size != size:
        held = "more" if elements.size > size else elements.size
        raise _damaged_idx(path, f"header says {shape}, file holds {held} bytes")
    return elements.reshape(shape)


def _damaged_idx(path: Path, reason: object) -> DataError:
    return DataError(
        f"{path} is not a whole IDX file of bytes ({reason}); fetch it again: "
        f"{KNOWN_FILES['fashion-mnist'].fetch}"
    )
