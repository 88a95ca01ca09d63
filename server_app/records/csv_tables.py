"""Whole CSV files as tables, each column checked; what is damaged is named by file and line."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from server_app.records.csv_files import numbered_rows


class DamagedRecordError(ValueError):
    """A file of a run cannot be read; the message names file, line and remedy.

    Attributes
    ----------
    place, reason : str
        File and line, and what is wrong there.
    """

    def __init__(self, place: str, reason: str, remedy: str) -> None:
        super().__init__(f"{place}: {reason}; {remedy}")
        self.place, self.reason = place, reason


def number(text: str) -> float:
    """Read a number; NaN for a blank cell."""
    return float(text) if text and not text.isspace() else math.nan


def integer(text: str) -> int | None:
    """Read a whole number; None for a blank cell."""
    return int(text) if text.strip() else None


@dataclass(frozen=True)
class Column:
    """How a column is read: by what, as which dtype, and what stands where it is missing."""

    convert: Callable[[str], Any]
    dtype: str
    missing: str | None = None


def read_table(path: Path, columns: Mapping[str, Column]) -> pd.DataFrame:
    """Read the columns of a CSV file; every row has to be whole and every value to fit.

    Raises
    ------
    DamagedRecordError
        Naming file and line.
    """
    lines, rows = read_fields(path)
    header = rows.pop(0) if rows else []
    found = {}
    for name, column in columns.items():
        if name in header:
            place = header.index(name)
            texts = [row[place] for row in rows]
        elif column.missing is not None or not rows:
            texts = [column.missing or ""] * len(rows)
        else:
            raise damaged(path, lines[1], f"column {name!r} is missing")
        found[name] = pd.Series(_converted(path, lines, texts, column), dtype=column.dtype)
    return pd.DataFrame(found)


def read_fields(path: Path) -> tuple[list[int], list[list[str]]]:
    """Return line numbers and fields of all rows, the header's first."""
    lines: list[int] = []
    rows: list[list[str]] = []
    try:
        for line, fields in numbered_rows(path):
            if rows and len(fields) != len(rows[0]):
                reason = f"expected {len(rows[0])} fields, got {len(fields)}"
                raise damaged(path, line, reason)
            lines.append(line)
            rows.append(fields)
    except csv.Error as error:
        raise damaged(path, lines[-1] + 1 if lines else 1, str(error)) from error
    return lines, rows


def _converted(path: Path, lines: list[int], texts: list[str], column: Column) -> list[Any]:
    values: list[Any] = []
    try:
        for text in texts:
            values.append(column.convert(text))
    except ValueError as error:
        raise damaged(path, lines[1 + len(values)], str(error)) from error
    return values


def damaged(path: Path, line: int, reason: str) -> DamagedRecordError:
    """Return the error for a line of a CSV file."""
    remedy = "repair or delete that line, then write the report again"
    return DamagedRecordError(f"{path}, line {line}", reason, remedy)
