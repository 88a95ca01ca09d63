"""Which columns of a table are label and sentence: by header, by key, or by their places."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.spec import DataError

LABEL_NAMES = frozenset(
    (
        *("label", "labels", "class", "classes", "category", "target", "sentiment", "topic"),
        *("intent", "tag", "polarity", "gold", "gold_label", "class_label", "label_text"),
    )
)
"""Names in a header that mean the label, in lower case, with _ for blanks and hyphens."""
TEXT_NAMES = frozenset(
    (
        *("sentence", "sentences", "text", "texts", "review", "comment", "content", "document"),
        *("message", "utterance", "phrase", "tweet", "title", "body", "description", "question"),
        "headline",
    )
)
"""Names in a header that mean the sentence."""

_NAMES = {"label-column": LABEL_NAMES, "text-column": TEXT_NAMES}

Row = tuple[int, list[str]]
"""A line's number, from 1, and its cells."""


@dataclass(frozen=True)
class Columns:
    """Which column is which.

    Attributes
    ----------
    label, text : int
        Positions from 0.
    count : int
        Number of columns; 0 where the sentence is all that follows the label, tabs included.
    names : tuple of str
        Those of a header; empty without one.
    chosen : bool
        Whether the user named the columns.
    """

    label: int = 0
    text: int = 1
    count: int = 0
    names: tuple[str, ...] = ()
    chosen: bool = False


def find_columns(
    path: Path, rows: list[Row], label: str, text: str, like: Columns | None = None
) -> Columns:
    """Tell which columns are meant; parameters and errors are those of `tables.read_table`.

    Parameters
    ----------
    path, label, text, like
        As there.
    rows : list of Row
        All rows of the file, one at least.
    """
    return _header(path, rows, label, text) or _without_header(path, rows, label, text, like)


def column_names(names: Sequence[str]) -> str:
    """List columns for a message."""
    return ", ".join(f"{number} {name!r:.40}" for number, name in enumerate(names, start=1))


def known_name(name: str) -> str:
    """Return what a column's name is compared by: lower case, _ for blanks and hyphens."""
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def _header(path: Path, rows: list[Row], label: str, text: str) -> Columns | None:
    """Return the layout that the first line names; None if it is no header."""
    first = rows[0][1]
    if label or text:
        return _chosen(path, first, {"label-column": label, "text-column": text})
    labels, texts = _places(first, LABEL_NAMES), _places(first, TEXT_NAMES)
    if len(labels) == len(texts) == 1:
        return Columns(labels[0], texts[0], len(first), tuple(first))
    if labels and texts:
        key = "label-column" if len(labels) > 1 else "text-column"
        raise DataError(
            f"tsv: {path} has several columns that may be meant: {column_names(first)}; set {key} "
            "to one of these names."
        )
    # One known name alone may be an example's cell, if it or its neighbours come again.
    if len(labels or texts) != 1 or any(
        cell in cells[place : place + 1]
        for place, cell in enumerate(first)
        for _, cells in rows[1:]
    ):
        return None
    if len(first) == 2:
        column = labels[0] if labels else 1 - texts[0]
        values = [cells[column] for _, cells in rows[1:] if len(cells) > column]
        fits = bool(values) and 2 * len(set(values)) <= len(values)
        return Columns(column, 1 - column, 2, tuple(first)) if fits else None
    if len(first) > 2 and all(len(cells) == len(first) for _, cells in rows):
        unknown = ("sentence", "text") if labels else ("label", "label")
        raise DataError(
            f"tsv: the first line of {path} looks like a header, and which column is the "
            f"{unknown[0]} is not known: {column_names(first)}; set {unknown[1]}-column to one of "
            "these names."
        )
    return None


def _places(names: Sequence[str], known: frozenset[str]) -> list[int]:
    return [place for place, name in enumerate(names) if known_name(name) in known]


def _chosen(path: Path, first: list[str], given: Mapping[str, str]) -> Columns | None:
    """Return the layout of columns that the user named; None if the line lacks such a name."""
    names = [known_name(name) for name in first]
    places: dict[str, int] = {}
    header = False
    for key, value in given.items():
        if value and known_name(value) in names:
            places[key], header = names.index(known_name(value)), True
        elif value.strip().isdecimal():
            places[key] = int(value) - 1
            if not 0 <= places[key] < len(first):
                raise DataError(
                    f"{key}={value!r}: {path} has the columns {column_names(first)}; give a name "
                    f"of its header or a number from 1 to {len(first)}."
                )
            header = header or names[places[key]] in _NAMES[key]
        elif value:
            return None
    for key in given.keys() - places.keys():
        places[key] = _other(path, first, key, *places.values(), header=header)
    if len(set(places.values())) == 1:
        raise DataError(
            f"label-column and text-column are both column {places['text-column'] + 1} of {path}: "
            f"{column_names(first)}; give two."
        )
    named = tuple(first) if header else ()
    return Columns(places["label-column"], places["text-column"], len(first), named, chosen=True)


def _other(path: Path, first: list[str], key: str, taken: int, *, header: bool) -> int:
    """Return the column that the user did not name: the only other one, or one of a known name."""
    rest = [place for place in range(len(first)) if place != taken]
    if len(rest) > 1 and header:
        rest = [place for place in rest if known_name(first[place]) in _NAMES[key]]
    if len(rest) != 1:
        raise DataError(
            f"{key} is not set, and which other column of {path} is meant is not clear: "
            f"{column_names(first)}; set it to a name or a number of these."
        )
    return rest[0]


def _without_header(
    path: Path, rows: list[Row], label: str, text: str, like: Columns | None
) -> Columns:
    if like is not None:
        return like
    first = rows[0][1]
    if label or text:
        raise DataError(
            f"label-column={label!r}, text-column={text!r}: the first line of {path} has the "
            f"columns {column_names(first)}; give names of its header, or numbers from 1."
        )
    if len(first) > 2 and len(rows) > 1 and all(len(row) == len(first) for _, row in rows):
        raise DataError(
            f"tsv: {path} has {len(first)} columns and no header that is understood; its first "
            f"line is {column_names(first)}. Set label-column and text-column to a name in that "
            "line if it is a header, else to a number from 1."
        )
    _refuse_doubtful(path, rows)
    return Columns()


def _refuse_doubtful(path: Path, rows: list[Row]) -> None:
    """Refuse a first line whose label is the only one that occurs once: likely a header."""
    counts = Counter(cells[0].casefold() for _, cells in rows)
    first = rows[0][1]
    if counts.pop(first[0].casefold()) > 1 or len(first) != 2 or len(counts) < 2:
        return
    if min(counts.values()) > 1:
        names = f"label-column={first[0]!r} text-column={first[1]!r:.60}"
        raise DataError(
            f"tsv: the first line of {path} is {first[0]!r:.60}, {first[1]!r:.60}, and its label "
            f"is the only one that occurs once. If it is a header, set {names}; if it is an "
            "example, set label-column='1' text-column='2'."
        )
