"""Tab-separated tables that users write: which columns hold label and sentence, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data.columns import Columns, Row, find_columns
from data.spec import DataError
from data.text_files import read_user_text

LAYOUT = (
    "a folder with train.tsv and, optionally, test.tsv, or one .tsv file; each line is a label, a "
    "tab and a sentence"
)
_LARGEST = 2 * 2**30  # bytes; sentences are held in memory while the data set is built
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_OPEN = re.compile(r'"(?:[^"]|"")*')
# Lines over which one quoted text may go; a quote that never closes must not swallow the file.
_QUOTED_LINES = 1000


@dataclass(frozen=True)
class Table:
    """A file's examples.

    Attributes
    ----------
    path : Path
        The file.
    columns : Columns
        Its layout.
    examples : list of (str, str)
        Label and sentence of each line.
    """

    path: Path
    columns: Columns
    examples: list[tuple[str, str]] = field(repr=False)


def read_table(path: Path, label: str, text: str, like: Columns | None = None) -> Table:
    """Read labelled sentences from a tab-separated file.

    A cell in double quotes that is quoted to the rules (inner quotes doubled) loses them and may
    hold tabs and, at the end of a row, line ends.

    Parameters
    ----------
    path : Path
        The file.
    label, text : str
        The columns: a name in the header, or a number from 1; empty to find them.
    like : Columns, optional
        Layout of the file that this one belongs to, for a file without a header.

    Returns
    -------
    table : Table
        At least one example.

    Raises
    ------
    DataError
        If columns cannot be told apart, or a line is not as described; names file, line, remedy.
    """
    rows = list(_rows(read_user_text(path, _LARGEST)))
    if not rows:
        raise DataError(f"tsv: {path} has no example; {LAYOUT}.")
    columns = find_columns(path, rows, label, text, like)
    if columns.names:
        rows = rows[1:]
    examples = [_example(path, row, columns) for row in rows]
    if not examples:
        raise DataError(f"tsv: {path} has no example; {LAYOUT}.")
    return Table(path, columns, examples)


def _rows(text: str) -> Iterator[Row]:
    # Only line feeds end a line: splitlines would also cut at form feeds and their like.
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        taken = _quoted_lines(lines, number)
        line = "\n".join(lines[number : number + taken])
        if line.strip():
            yield number + 1, _cells(line)
        number += taken


def _quoted_lines(lines: list[str], start: int) -> int:
    """Return over how many lines the row at `start` goes: 1, or more by a quoted last cell."""
    last = lines[start].rpartition("\t")[2].lstrip()
    if not last.startswith('"') or "\t" not in lines[start]:
        return 1
    if _QUOTED.fullmatch(last.rstrip()) or not _OPEN.fullmatch(last):
        return 1
    for taken in range(1, min(_QUOTED_LINES, len(lines) - start)):
        line = lines[start + taken]
        if "\t" in line:
            break  # the next row: the quote was only a character
        last += "\n" + line
        if _QUOTED.fullmatch(last.rstrip()):
            return taken + 1
    return 1


def _cells(line: str) -> list[str]:
    """Split at tabs outside quoted cells."""
    if '"' not in line:
        return [cell.strip() for cell in line.split("\t")]
    cells: list[str] = []
    parts = line.split("\t")
    while parts:
        cell = parts.pop(0)
        if _OPEN.fullmatch(cell.strip()) and not _QUOTED.fullmatch(cell.strip()):
            for taken in range(1, len(parts) + 1):
                joined = "\t".join([cell, *parts[:taken]])
                if _QUOTED.fullmatch(joined.strip()):
                    cell, parts = joined, parts[taken:]
                    break
        cells.append(_unquoted(cell))
    return cells


def _unquoted(cell: str) -> str:
    cell = cell.strip()
    inner = cell[1:-1] if len(cell) > 2 and _QUOTED.fullmatch(cell) else ""
    return inner.replace('""', '"').strip() or cell


def _example(path: Path, row: Row, columns: Columns) -> tuple[str, str]:
    number, cells = row
    wanted = columns.count or 2
    if columns.text == wanted - 1 and len(cells) > wanted:
        cells = [*cells[: wanted - 1], "\t".join(cells[wanted - 1 :])]
    fits = len(cells) == wanted if columns.count else len(cells) >= wanted
    label = cells[columns.label] if fits else ""
    text = cells[columns.text] if fits else ""
    if label and text:
        return label, text
    line = "\t".join(cells)[:60]
    described = "a label, a tab and a sentence, none of them empty"
    if columns.count > 2:
        described = f"{columns.count} columns as the first one is, label and sentence not empty"
    raise DataError(
        f"tsv: {path}, line {number} is {line!r}; a line is {described}.{_commas(line)}"
    )


def _commas(line: str) -> str:
    """Say so where a line looks as if another character than the tab were the separator."""
    if "\t" in line:
        return ""
    for sign, name in ((",", "commas"), (";", "semicolons"), ("|", "bars")):
        if sign in line:
            return (
                f" If the file is separated by {name} (CSV), save it as tab-separated text, for "
                "example: python -c \"import csv, sys; csv.writer(sys.stdout, 'excel-tab')"
                f".writerows(csv.reader(sys.stdin, delimiter='{sign}'))\" < OLD > train.tsv"
            )
    return ""
