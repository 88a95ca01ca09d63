"""What a partition needs of a data set, and labelled images."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


class Dataset:
    """Labelled examples of any kind, official training rows first.

    Attributes
    ----------
    name : str
        Name in `DATASETS`.
    labels : NDArray[np.int64]
        (N,), values 0..num_classes-1; of several classes the main one.
    train_size : int
        Rows [0, train_size) are the official training set, the others the official test set.
    class_names : tuple[str, ...]
        One name per label.
    fingerprint : str
        16 hexadecimal digits of a SHA-256 over content; the same on every machine.
    notes : tuple[str, ...]
        What a user's own files were read as, and what was left out, in words.
    validation_size : int
        So many of the training rows, the last ones, are the official validation set; where it is
        0, validation examples are drawn from the training rows.
    groups : NDArray[np.int64] | None
        (N,) whose each row is, for a natural partition.
    """

    name: str
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()
    validation_size: int = 0
    groups: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes, counting those without an example."""
        return len(self.class_names)

    @cached_property
    def labels_digest(self) -> str:
        """Hash of all that a partition depends on: labels, official split, whose the rows are."""
        digest = hashlib.sha256(str(self.train_size).encode())
        if self.validation_size:
            digest.update(f"|{self.validation_size}|".encode())
        digest.update(self.labels.astype("<i8").tobytes())
        own = digest.hexdigest()[:16]
        if self.groups is None:
            return own
        text = own.encode() + self.groups.astype("<i8").tobytes()
        return hashlib.sha256(text).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset):
    """Labelled images of one size, official training rows first.

    Attributes
    ----------
    images : NDArray[np.uint8]
        (N, C, H, W), values 0..255, memory-mapped and read-only.
    name, labels, train_size, class_names, fingerprint, notes, validation_size, groups
        As in `Dataset`.
    """

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()
    validation_size: int = 0
    groups: NDArray[np.int64] | None = None

    @property
    def channels(self) -> int:
        """Number of image channels C."""
        return int(self.images.shape[1])

    @property
    def image_size(self) -> int:
        """Side of the square images in pixels."""
        return int(self.images.shape[2])
