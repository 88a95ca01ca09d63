"""What readers of numbers have in common: from inputs, labels and a schema to `Vectors`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.part_notes import part_notes
from data.schema import Schema
from data.targets import Found
from data.vectors import Vectors


def assemble(
    inputs: NDArray[np.float32],
    found: Found,
    schema: Schema,
    order: NDArray[np.int64],
    train_size: int,
    owners: Sequence[str] | None,
    notes: Sequence[str],
) -> Vectors:
    """Put rows in order, training rows first.

    Parameters
    ----------
    inputs : NDArray[np.float32]
        (N, ...), standardised, as the files have them.
    found, schema
        Labels as the files have them, and what was agreed on.
    order : NDArray[np.int64]
        (N,) rows of the files.
    train_size : int
        So many of `order` are training rows.
    owners : Sequence[str], optional
        (N,) whose each row is, as the files have them.
    notes : Sequence[str]
        What was read.
    """
    inputs, labels = inputs[order], found.labels[order]
    quantity, targets = schema.target.quantity, None
    if found.values is not None and quantity is not None:
        values = (found.values[order] - quantity.mean) / quantity.scale
        targets = values.astype(np.float32)
    groups, names = None, np.array([], dtype=str)
    if owners is not None:
        names, groups = np.unique(np.array(owners)[order], return_inverse=True)
        groups = groups.astype(np.int64)
    shown = [] if found.continuous else part_notes(
        labels, found.class_names, train_size, (row.tobytes() for row in inputs)
    )  # fmt: skip
    return Vectors(
        inputs, labels, train_size, found.class_names, schema.columns_hash, targets, quantity,
        found.continuous, groups, tuple(map(str, names)), (*notes, *found.notes, *shown),
    )  # fmt: skip
