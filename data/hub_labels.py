"""Labels of an `hf:` data set, whatever they are stored as, to numbers from 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.hub import Parts
from data.labels import FEW, MOST_CLASSES, class_names_of, label_key
from data.spec import DataError, DataSpec


@dataclass(frozen=True, eq=False)
class Labels:
    """Classes of all rows, part by part.

    Attributes
    ----------
    numbers : NDArray[np.int64]
        (N,).
    names : tuple of str
        One name per number.
    notes : tuple of str
        What was joined.
    """

    numbers: NDArray[np.int64]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_labels(spec: DataSpec, column: str, parts: Parts) -> Labels:
    """Read a column of labels.

    A `ClassLabel` keeps its numbers and names, so that a part without some classes numbers them as
    the others do. Numbers and words are sorted; they need not follow each other.

    Raises
    ------
    DataError
        If a row has no label, or there is one class only, or nearly one a row; names part and row.
    """
    columns = {part: table[column][:] for part, table in parts.items()}
    names = getattr(next(iter(parts.values())).features[column], "names", None)
    for part, values in columns.items():
        gaps = [
            row for row, value in enumerate(values)
            if value is None or value == "" or (names is not None and value < 0)
        ]  # fmt: skip
        if gaps:
            raise DataError(
                f"{spec.dataset}: {len(gaps):,} of {len(values):,} rows of its {part} part have "
                f"no label in column {column!r}, row {gaps[0] + 1} first; remove these rows, or "
                "leave the part out by naming the others in data-split."
            )
    values = [value for some in columns.values() for value in some]
    if names is not None:
        found = Labels(np.array(values, dtype=np.int64), tuple(map(str, names)))
    else:
        found = _numbered(spec, column, values)
    if len(found.names) < 2:
        raise DataError(
            f"{spec.dataset}: column {column!r} has the one label {found.names[0]!r}; two classes "
            "at least are needed."
        )
    return found


def _numbered(spec: DataSpec, column: str, values: list[Any]) -> Labels:
    """Give numbers to the values of a column of words or numbers."""
    texts = [str(value) for value in values]
    spellings, joined = class_names_of(texts)
    names = sorted(set(spellings.values()), key=_by_number)
    most_are_unique = len(names) >= FEW and 2 * len(names) > len(values)
    if most_are_unique or len(names) > MOST_CLASSES:
        raise DataError(
            f"{spec.dataset}: column {column!r} has {len(names):,} different values in "
            f"{len(values):,} rows, {names[0]!r:.40} and {names[1]!r:.40} among them, which are "
            "no classes; set label-column to the column that holds them."
        )
    numbers = {name: number for number, name in enumerate(names)}
    labels = [numbers[spellings[label_key(text)]] for text in texts]
    return Labels(np.array(labels, dtype=np.int64), tuple(names), tuple(joined))


def _by_number(name: str) -> tuple[bool, float, str]:
    """Sort 10 after 9, and words after numbers."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name
