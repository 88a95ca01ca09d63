"""Datasets by name, as memory-mapped arrays that all processes of a machine share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data import folders, sources
from data.cache import cache_root, fetch_entry
from data.raw import RawImages
from data.spec import DataError, DataSpec

# Raise it when a builder changes what it writes, so that old entries are not read.
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Labelled images of one size, official training rows first.

    Attributes
    ----------
    name : str
        Name in `DATASETS`.
    images : NDArray[np.uint8]
        (N, C, H, W), values 0..255, memory-mapped and read-only.
    labels : NDArray[np.int64]
        (N,), values 0..num_classes-1.
    train_size : int
        Rows [0, train_size) are the official training set, the others the official test set.
    class_names : tuple[str, ...]
        One name per label.
    fingerprint : str
        16 hexadecimal digits of a SHA-256 over content; the same on every machine.
    """

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """Number of image channels C."""
        return int(self.images.shape[1])

    @property
    def image_size(self) -> int:
        """Side of the square images in pixels."""
        return int(self.images.shape[2])

    @property
    def num_classes(self) -> int:
        """Number of classes, counting those without an example."""
        return len(self.class_names)

    @cached_property
    def labels_digest(self) -> str:
        """Hash of all that a partition depends on: the labels and the official split."""
        digest = hashlib.sha256(str(self.train_size).encode())
        digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


def load_dataset(dataset: DataSpec | str, data_dir: str = "", image_size: int = 0) -> ImageDataset:
    """Open a dataset, building its cache entry on the first use on this machine.

    Parameters
    ----------
    dataset : DataSpec | str
        A description, or a name in `DATASETS`.
    data_dir, image_size
        As in `DataSpec`; only read where `dataset` is a name.

    Returns
    -------
    dataset : ImageDataset
        The same object for the same arguments within a process.

    Raises
    ------
    DataError
        If the name is unknown, or the files are missing, unreadable or unlike each other.
    """
    if isinstance(dataset, str):
        dataset = DataSpec(dataset=dataset, data_dir=data_dir, image_size=image_size)
    folder = str(Path(dataset.data_dir).expanduser().absolute()) if dataset.data_dir else ""
    return _load(dataset.dataset, folder, dataset.image_size, str(cache_root()))


@lru_cache(maxsize=8)
def _load(name: str, data_dir: str, image_size: int, root: str) -> ImageDataset:
    folder = Path(data_dir) if data_dir else None
    stamp = folders.folder_stamp(folder) if name == "imagefolder" else ""
    key = hashlib.sha256(f"{_FORMAT}|{data_dir}|{stamp}".encode()).hexdigest()[:12]
    size = str(image_size) if image_size else "own"
    entry = Path(root) / "datasets" / f"{name}-{size}-{key}"

    def build(target: Path) -> None:
        _write(target, name, _BUILDERS[name](folder, image_size, target / "images.npy"))

    return fetch_entry(entry, lambda path: _read(path, name), build)


_BUILDERS: dict[str, Callable[[Path | None, int, Path], RawImages]] = {
    "digits": sources.digits,
    "fashion-mnist": sources.fashion_mnist,
    "cifar10": sources.cifar10,
    "cifar100": sources.cifar100,
    "svhn": sources.svhn,
    "tiny-imagenet": folders.tiny_imagenet,
    "imagefolder": folders.image_folder,
}


def _write(target: Path, name: str, raw: RawImages) -> None:
    """Add labels and description to the image file that the builder wrote."""
    if len(raw.images) == 0:
        raise DataError(f"{name}: found no image at all.")
    meta = {
        "train_size": raw.train_size,
        "class_names": list(raw.class_names),
        "shape": list(raw.images.shape),
    }
    digest = hashlib.sha256(json.dumps(meta).encode())
    labels = raw.labels.astype("<i8")
    digest.update(labels.tobytes())
    for start in range(0, len(raw.images), 4096):  # block by block: the file may exceed memory
        digest.update(np.ascontiguousarray(raw.images[start : start + 4096]).data)
    np.save(target / "labels.npy", labels)
    text = json.dumps(meta | {"fingerprint": digest.hexdigest()[:16]}, indent=1)
    (target / "meta.json").write_text(text, encoding="utf-8")


def _read(entry: Path, name: str) -> ImageDataset:
    meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
    # asarray drops the memmap subclass, whose indexing is slower; the pages stay shared.
    images = np.asarray(np.load(entry / "images.npy", mmap_mode="r"))
    labels = np.asarray(np.load(entry / "labels.npy", mmap_mode="r"))
    if list(images.shape) != meta["shape"] or len(labels) != len(images):
        raise ValueError(f"{entry} is damaged")
    return ImageDataset(
        name=name,
        images=images,
        labels=labels.astype(np.int64, copy=False),
        train_size=int(meta["train_size"]),
        class_names=tuple(meta["class_names"]),
        fingerprint=str(meta["fingerprint"]),
    )


def clear_memory() -> None:
    """Forget the datasets this process has open; files stay."""
    _load.cache_clear()
