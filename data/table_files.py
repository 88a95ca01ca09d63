"""Tables as people save them: CSV with any separator, parquet; cells as text, a gap as ""."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from pathlib import Path

from data.labels import MISSING
from data.spec import DataError
from data.text_files import read_user_text

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
"""Of the files that are read."""
SEPARATORS = ",;\t|"

_LARGEST = 2**30  # bytes; cells are held in memory while the data set is built
_LONGEST_HEADER = 2**20  # characters
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Cells:
    """A file's content.

    Attributes
    ----------
    path : Path
        The file.
    names : tuple of str
        Of the columns: those of the header, else their numbers from 1.
    columns : list of tuple of str
        The cells of each column, without blanks around them; "" for a gap.
    lines : list of int
        Where each row ends in the file.
    """

    path: Path
    names: tuple[str, ...]
    columns: list[tuple[str, ...]] = field(repr=False)
    lines: list[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str) -> tuple[str, ...]:
        """Return the cells of a column."""
        return self.columns[self.names.index(name)]


def read_cells(path: Path, label_column: str) -> Cells:
    """Read a table.

    Parameters
    ----------
    path : Path
        A `.parquet` file, or a text file whose separator is the comma, semicolon, tab or bar that
        cuts its first line into most cells. With semicolons, commas in numbers are points.
    label_column : str
        As in `DataSpec`; a number says that a first line with numbers in it is an example.

    Returns
    -------
    cells : Cells
        One row at least.

    Raises
    ------
    DataError
        If the file cannot be read, or a row is not as long as the first; names file and line.
    """
    if path.suffix.lower() == ".parquet":
        names, rows = _parquet(path)
        lines = list(range(1, len(rows) + 1))
    else:
        names, rows, lines = _text(path, label_column)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns called {twice!r}; rename one of them.")
    if not rows:
        raise DataError(f"{path} has no row of data.")
    columns = [tuple(map(_cell, column)) for column in zip(*rows, strict=True)]
    return Cells(path, tuple(names), columns, lines)


def _cell(text: str) -> str:
    text = text.strip()
    return "" if text.casefold() in MISSING else text


def _text(path: Path, label_column: str) -> tuple[list[str], list[list[str]], list[int]]:
    text = read_user_text(path, _LARGEST)
    separator = _separator(text.lstrip("\n").partition("\n")[0])
    reader = csv.reader(text.splitlines(keepends=True), delimiter=separator)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}.") from error
    if not rows or len(rows[0]) < 2:
        raise DataError(
            f"{path} has no two columns; a table has a header, and cells separated by commas, "
            "semicolons, tabs or bars."
        )
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(rows[0]):
            raise DataError(
                f"{path}, line {line} has {len(row)} cells and the first line {len(rows[0])}; put "
                "cells that hold the separator in double quotes."
            )
    if separator == ";":
        rows = [
            [c.replace(",", ".") if _DECIMAL_COMMA.fullmatch(c.strip()) else c for c in row]
            for row in rows
        ]
    names = _header(path, rows[0], label_column)
    if names is None:
        return [str(number + 1) for number in range(len(rows[0]))], rows, lines
    return names, rows[1:], lines[1:]


def separator_of(path: Path) -> str:
    """Return the separator that cuts a file's first line into most cells.

    Raises
    ------
    DataError
        If it cannot be read, or has no text in its first line.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline(_LONGEST_HEADER)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 ({error}).") from error
    if not first.strip():
        raise DataError(f"{path} has no header in its first line.")
    return _separator(first)


def _separator(first: str) -> str:
    return max(SEPARATORS, key=lambda sign: len(next(csv.reader([first], delimiter=sign), [])))


def _header(path: Path, first: list[str], label_column: str) -> list[str] | None:
    """Return the names that the first line gives; None where it is an example."""
    names = [name.strip() for name in first]
    if label_column.strip() in names or not any(is_number(name) for name in names):
        return names
    if label_column.strip().isdecimal():
        return None
    shown = ", ".join(names)
    raise DataError(
        f"{path}: the first line is {shown:.80}, which has numbers in it and may be an example; "
        "set label-column to a name in it if it is a header, else to the label's number from 1."
    )


def is_number(text: str) -> bool:
    """Say whether a cell is a number as programs write it; nan and infinities are, too."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which Python reads, and nobody means


def _parquet(path: Path) -> tuple[list[str], list[list[str]]]:
    import pyarrow
    from pyarrow import parquet, types

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet ({error}).") from error
    for kind, name in zip(table.schema.types, table.schema.names, strict=True):
        if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
            raise DataError(
                f"{path}: column {name!r} holds {kind}, which is neither a number nor a word; "
                "leave it out of the file."
            )
    columns = [
        ["" if value is None else str(value) for value in column.to_pylist()]
        for column in table.columns
    ]
    return list(table.schema.names), [list(row) for row in zip(*columns, strict=True)]
