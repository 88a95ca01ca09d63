"""From a column's training cells to how it is read, and from cells to numbers by that."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.schema import Column
from data.spec import DataError
from data.table_files import is_number
from data.vectors import LARGEST

MOST_CATEGORIES = 200
"""Most different words of a column that is used."""
REACH = 10.0
"""Deviations from the mean at which standardised numbers are cut off."""

# Written for people: 1,234.5 or $12 or 7%. Python reads none of them as numbers.
_FOR_PEOPLE = re.compile(r"[-+]?[$€£]?\s?\d{1,3}(,\d{3})*(\.\d+)?\s?[%$€£]?")
_MOSTLY = 0.9


def plan_column(
    owner: str, name: str, cells: Sequence[str], lines: Sequence[int]
) -> tuple[Column | None, str]:
    """Decide how a column is read, by its training cells.

    Parameters
    ----------
    owner, name : str
        The file, for errors, and the column.
    cells : Sequence[str]
        (n,) cells of the training rows, "" for a gap.
    lines : Sequence[int]
        (n,) where they are in the file.

    Returns
    -------
    column : Column, optional
        None for one that is left out.
    note : str
        Why it is left out.

    Raises
    ------
    DataError
        If most cells are numbers and some are none, or are too large; names the first.
    """
    filled = [cell for cell in cells if cell]
    if len(set(filled)) <= 1 and (len(filled) == len(cells) or not filled):
        return None, f"the same in all training rows: {name!r}"
    gaps = len(filled) < len(cells)
    numbers = [is_number(cell) for cell in filled]
    if all(numbers):
        values = read_numbers(owner, name, cells, lines)
        return Column.of_numbers(name, values[~np.isnan(values)], gaps=gaps), ""
    _refuse_near_numbers(owner, name, cells, lines, sum(numbers) / len(filled))
    words = sorted(set(filled))
    if len(words) > MOST_CATEGORIES or (len(words) > 20 and 2 * len(words) > len(filled)):
        return None, f"{len(words):,} different words: {name!r}"
    return Column(name, categories=tuple(words), gaps=gaps), ""


def column_inputs(
    owner: str, column: Column, cells: Sequence[str], lines: Sequence[int]
) -> tuple[NDArray[np.float32], int]:
    """Turn a column's cells into inputs.

    Returns
    -------
    inputs : NDArray[np.float32]
        (n, width) as `Column` says.
    odd : int
        How many cells are words that are no category, or numbers that were cut off.

    Raises
    ------
    DataError
        If a cell is no number where numbers are expected, or too large.
    """
    inputs = np.zeros((len(cells), column.width), dtype=np.float32)
    empty = np.array([not cell for cell in cells], dtype=bool)
    if column.categories is None:
        values = read_numbers(owner, column.name, cells, lines)
        standard = np.where(empty, 0.0, (values - column.mean) / column.scale)
        odd = int((np.abs(standard) > REACH).sum())
        inputs[:, 0] = np.clip(standard, -REACH, REACH)
    else:
        places = {word: place for place, word in enumerate(column.categories)}
        found = np.array([places.get(cell, -1) for cell in cells], dtype=np.int64)
        rows = np.flatnonzero(found >= 0)
        inputs[rows, found[rows]] = 1.0
        odd = int(((found < 0) & ~empty).sum())
    if column.gaps:
        inputs[:, -1] = empty
    return inputs, odd


def read_numbers(
    owner: str, name: str, cells: Sequence[str], lines: Sequence[int]
) -> NDArray[np.float64]:
    """Read numbers, NaN for gaps; raises `DataError` naming the line of what is none."""
    values = np.full(len(cells), np.nan)
    for place, cell in enumerate(cells):
        if not cell:
            continue
        if not is_number(cell) or not abs(float(cell)) < LARGEST:
            raise DataError(
                f"{owner}, line {lines[place]}: column {name!r} is {cell!r:.40} and has numbers "
                f"up to {LARGEST:g}; mend the cell, or leave it empty."
            )
        values[place] = float(cell)
    return values


def _refuse_near_numbers(
    owner: str, name: str, cells: Sequence[str], lines: Sequence[int], share: float
) -> None:
    """Refuse words among numbers, and numbers written for people, which would be categories."""
    odd = [place for place, cell in enumerate(cells) if cell and not is_number(cell)]
    filled = sum(map(bool, cells))
    alike = sum(_FOR_PEOPLE.fullmatch(cells[place]) is not None for place in odd)
    if share < _MOSTLY and share + alike / filled < _MOSTLY:
        return
    shown = cells[odd[0]]
    raise DataError(
        f"{owner}, line {lines[odd[0]]}: column {name!r} has numbers, and {len(odd)} of "
        f"{filled} cells such as {shown!r:.40}; write them as 1234.5, without signs, or leave "
        "them empty. If the column has words, begin all of them with a letter."
    )
