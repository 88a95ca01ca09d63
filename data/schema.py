"""What makes cells of a table numbers: columns, categories, means and deviations.

Clients that train one network on tables of their own have to agree on it. `schema.json` beside
`train.csv` says it; ``python -m data FOLDER > schema.json`` writes it for one folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data.spec import DataError
from data.targets import Target
from data.text_files import read_user_text
from data.vectors import Quantity

FILE = "schema.json"


@dataclass(frozen=True)
class Column:
    """How one column is read.

    Attributes
    ----------
    name : str
        In the header, or a number from 1.
    mean, scale : float
        Of a column of numbers, over the training rows; inputs are (x - mean) / scale.
    categories : tuple of str, optional
        Of a column of words: one input each, 1 where the cell is that word. A word that is none of
        them leaves all at 0.
    gaps : bool
        Whether one more input says where the cell is empty. An empty number counts as the mean.
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] | None = None
    gaps: bool = False

    @classmethod
    def of_numbers(cls, name: str, known: NDArray[np.float64], *, gaps: bool = False) -> Self:
        """Return a column that is standardised by these numbers (n,); a constant has scale 1."""
        scale = float(known.std())
        return cls(name, float(known.mean()), scale if scale > 0 else 1.0, None, gaps)

    @property
    def width(self) -> int:
        """Number of inputs."""
        return (1 if self.categories is None else len(self.categories)) + self.gaps


@dataclass(frozen=True)
class Schema:
    """The columns that are inputs, in their order, and the label."""

    columns: tuple[Column, ...]
    target: Target

    @property
    def columns_hash(self) -> str:
        """16 hexadecimal digits, equal exactly where cells become the same inputs."""
        text = json.dumps([dataclasses.asdict(column) for column in self.columns])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return the text of a `schema.json`."""
        columns = [dataclasses.asdict(column) for column in self.columns]
        label = dataclasses.asdict(self.target)
        return json.dumps({"label": label, "columns": columns}, indent=1, ensure_ascii=False)


def read_schema(folder: Path) -> Schema | None:
    """Read a folder's `schema.json`; None where there is none.

    Raises
    ------
    DataError
        If the file is not as `Schema.to_json` writes it.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return _schema(json.loads(read_user_text(path)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{path} is no schema ({type(error).__name__}: {error}); write it with `python -m "
            "data FOLDER`."
        ) from error


def _schema(content: dict[str, Any]) -> Schema:
    columns = tuple(_column(entry) for entry in content["columns"])
    label = content["label"]
    quantity = label["quantity"]
    if not columns:
        raise ValueError("no columns")
    return Schema(
        columns,
        Target(
            str(label["name"]),
            _words(label["classes"]),
            Quantity(str(quantity["name"]), float(quantity["mean"]), _positive(quantity["scale"]))
            if quantity
            else None,
        ),
    )


def _column(entry: dict[str, Any]) -> Column:
    found = entry["categories"]
    return Column(
        str(entry["name"]),
        float(entry["mean"]),
        _positive(entry["scale"]),
        None if found is None else _words(found),
        bool(entry["gaps"]),
    )


def _words(value: Sequence[object]) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return tuple(str(word) for word in value)


def _positive(value: object) -> float:
    number = float(str(value))
    if not number > 0:
        raise ValueError(f"scale {value!r} is not above 0")
    return number
