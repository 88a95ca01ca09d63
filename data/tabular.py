"""Tables of numbers and words, one example a row: the data set `tabular`.

A folder with `train.csv` (or `.parquet`, `.tsv`, `.txt`) and, optionally, a test file, or one file.
Numbers are standardised by the training rows, words become one input each; see `data.schema`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.assemble import assemble
from data.column_plan import column_inputs, plan_column
from data.columns import LABEL_NAMES
from data.raw import split_without_official_test
from data.schema import FILE, Column, Schema, read_schema
from data.spec import DataError
from data.table_files import Cells, read_cells
from data.targets import Found, agree_on, find_labels
from data.train_and_test import find_files
from data.vectors import Vectors

_LABELS = LABEL_NAMES | {"y", "species", "outcome"}
_INDEX = ("", "id", "index", "unnamed: 0", "__index_level_0__")
"""What an index is called that a program wrote beside the columns; it counts the rows."""
_SHOWN = 6


def tabular(data_dir: Path | None, label_column: str = "", group_column: str = "") -> Vectors:
    """Read a table.

    Parameters
    ----------
    data_dir : Path | None
        A folder or a file, see the module's head; None for `tabular` in the standard places.
        Without test rows a fixed stratified 20 % are the test set.
    label_column : str
        The label's name, or its number from 1; empty for the one column with a usual name.
    group_column : str
        Column that says whose a row is, for a natural partition; it is no input.

    Returns
    -------
    vectors : Vectors
        (N, F) inputs.

    Raises
    ------
    DataError
        If a file is missing or unreadable, or a column, row or label is not usable; names it.
    """
    return _Reading(data_dir, label_column, group_column).vectors()


def table_schema(data_dir: Path, label_column: str = "") -> Schema:
    """Return how a folder's table is read, whatever its `schema.json`; errors as of `tabular`."""
    return _Reading(data_dir, label_column, "", anew=True).schema


class _Reading:
    """One reading of a table's files: cells, labels, training rows, schema."""

    def __init__(
        self, data_dir: Path | None, label_column: str, group_column: str, *, anew: bool = False
    ) -> None:
        train, test = find_files(data_dir, "tabular")
        self.given = None if anew else read_schema(train.parent)
        tables = [read_cells(path, label_column) for path in (train, test) if path is not None]
        self.tables, self.notes = tables, [""]
        label = label_column.strip() or (self.given.target.name if self.given else "")
        self.label = _label_of(tables[0], label)
        self.group = group_column
        for table in tables:
            self._check_columns(table)
        texts = [text for table in tables for text in table.column(self.label)]
        agreed = self.given.target if self.given else None
        self.found = find_labels(str(train), self.label, texts, len(tables[0]), agreed)
        self.order, self.train_size = np.arange(len(texts)), len(tables[0])
        if test is None:
            self.order, self.train_size = split_without_official_test(self.found.labels)
        self.schema = self.given or self._learn(str(train))

    def vectors(self) -> Vectors:
        """Return inputs, labels and what is to be said of them."""
        inputs = np.concatenate([self._inputs(table) for table in self.tables])
        owners = None
        if self.group:
            owners = [cell for table in self.tables for cell in table.column(self.group)]
        self.notes[0] = self._said(self.found)
        return assemble(
            inputs, self.found, self.schema, self.order, self.train_size, owners, self.notes
        )

    def _check_columns(self, table: Cells) -> None:
        """Refuse a table without the columns that are needed, or with gaps among the labels."""
        expected = [self.label, *([self.group] if self.group else [])]
        if self.given is not None:
            expected += [column.name for column in self.given.columns]
        elif table is not self.tables[0]:
            expected += self.tables[0].names
        for name in expected:
            if name not in table.names:
                raise DataError(
                    f"{table.path} has no column {name!r}, its columns are "
                    f"{_some(table.names)}; expected are those of "
                    f"{FILE if self.given else self.tables[0].path.name}, in any order."
                )
        for name in expected[:2] if self.group else expected[:1]:
            gaps = [n for n, cell in enumerate(table.column(name)) if not cell]
            if gaps:
                raise DataError(
                    f"{table.path}, line {table.lines[gaps[0]]}: column {name!r} is empty, as in "
                    f"{len(gaps)} of {len(table)} rows; fill these cells, or remove the rows."
                )

    def _learn(self, owner: str) -> Schema:
        """Decide by the training rows how columns are read."""
        table = self.tables[0]
        rows = self.order[: self.train_size]
        columns: list[Column] = []
        left: list[str] = []
        lines = [table.lines[row] for row in rows]
        for place, name in enumerate(table.names):
            if name == self.label or (self.group and name == self.group):
                continue  # a column may have no name
            cells = [table.columns[place][row] for row in rows]
            if name.casefold() in _INDEX and _counts(table.columns[place]):
                left.append(f"an index: {name!r}")
                continue
            column, why = plan_column(owner, name, cells, lines)
            if column is not None:
                columns.append(column)
            else:
                left.append(why)
        self.notes += [f"left out, {_some(left)}"] * bool(left)
        if not columns:
            raise DataError(f"{owner}: no column beside the label {self.label!r} can be used.")
        return Schema(tuple(columns), agree_on(owner, self.label, self.found, rows))

    def _inputs(self, table: Cells) -> NDArray[np.float32]:
        blocks = []
        for column in self.schema.columns:
            cells = table.column(column.name)
            block, odd = column_inputs(str(table.path), column, cells, table.lines)
            blocks.append(block)
            if odd:
                what = "numbers cut off at 10 deviations" if column.categories is None else (
                    "words that no training row has"
                )  # fmt: skip
                self.notes.append(f"{table.path.name}: {odd:,} {what} in {column.name!r}")
            if not column.gaps and (empty := cells.count("")):
                self.notes.append(
                    f"{table.path.name}: {empty:,} empty cells in {column.name!r}, which has none "
                    "in training rows"
                )
        return np.concatenate(blocks, axis=1)

    def _said(self, found: Found) -> str:
        columns = self.schema.columns
        words = sum(column.categories is not None for column in columns)
        rows = " and ".join(f"{len(table):,} in {table.path.name}" for table in self.tables)
        held_out = "" if len(self.tables) > 1 else ", a fifth of them held out as test set"
        what = "a number" if found.continuous else f"{len(found.class_names)} classes"
        by = f", read by {FILE}" if self.given else ""
        return (
            f"tabular: {len(columns) - words} columns of numbers and {words} of words, label "
            f"{self.label!r} ({what}), rows: {rows}{held_out}{by}"
        )


def _label_of(table: Cells, wanted: str) -> str:
    """Return the name of the label's column."""
    if wanted:
        if wanted in table.names:
            return wanted
        if wanted.isdecimal() and 1 <= int(wanted) <= len(table.names):
            return table.names[int(wanted) - 1]
        raise DataError(
            f"label-column={wanted!r}: {table.path} has no such column; it has "
            f"{_some(table.names)}. Give a name, or a number from 1 to {len(table.names)}."
        )
    known = [name for name in table.names if name.strip().casefold() in _LABELS]
    if len(known) == 1:
        return known[0]
    raise DataError(
        f"{table.path}: which column is the label is not clear; set label-column to one of "
        f"{_some(table.names)}."
    )


def _counts(cells: tuple[str, ...]) -> bool:
    """Say whether cells are whole numbers that grow by one from row to row."""
    if not all(cell.isdecimal() for cell in cells):
        return False
    return bool((np.diff([int(cell) for cell in cells]) == 1).all())


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"{name:.60}" for name in names[:_SHOWN]) + more
