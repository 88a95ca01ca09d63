"""Examples that are numbers: rows of a table, windows of a time series."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.image_dataset import Dataset

LARGEST = 1e150
"""Numbers stay below it, so that their squares are still numbers."""


@dataclass(frozen=True)
class Quantity:
    """What a number to be predicted is: its name, and what makes it (y - mean) / scale."""

    name: str
    mean: float
    scale: float

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, equal where clients mean one quantity on one scale."""
        text = f"{self.name}|{self.mean!r}|{self.scale!r}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Standardised numbers and what they are labelled with, training rows first.

    Attributes
    ----------
    inputs : NDArray[np.float32]
        (N, F) rows of a table, or (N, C, T) windows.
    labels : NDArray[np.int64]
        (N,) classes; of a quantity its tenth, by which partitions share it out.
    train_size, class_names, notes
        As in `Dataset`.
    columns_hash : str
        Equal exactly where cells become the same inputs: columns, categories, standardisation.
    targets : NDArray[np.float32] | None
        (N,) the label as a standardised number; None where it is none.
    quantity : Quantity | None
        What `targets` are.
    continuous : bool
        Whether the label is a quantity only, so that there are no classes to tell apart.
    groups : NDArray[np.int64] | None
        (N,) whose each row is, for a natural partition.
    group_names : tuple[str, ...]
        One name per group.
    """

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    columns_hash: str
    targets: NDArray[np.float32] | None = None
    quantity: Quantity | None = None
    continuous: bool = False
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class VectorDataset(Vectors, Dataset):
    """`Vectors` with a name and a fingerprint, memory-mapped and read-only."""

    name: str = ""
    fingerprint: str = ""

    @property
    def features(self) -> int:
        """Number of columns of a table, F, or of channels of a series, C."""
        return int(self.inputs.shape[1])

    @property
    def steps(self) -> int:
        """Steps of a window, T; 0 for a table."""
        return int(self.inputs.shape[2]) if self.inputs.ndim == 3 else 0
