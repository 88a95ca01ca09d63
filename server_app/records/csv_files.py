"""The CSV files of a run, row by row; what needs whole tables uses `run_reader`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from server_app.records.client_tasks import ClientTask, client_tasks
from strategies.base.files import replacing

HEADERS: dict[str, tuple[str, ...]] = {
    "metrics.csv": ("round", "client", "phase", "metric", "value", "examples"),
    "traffic.csv": ("round", "client", "direction", "messages", "scalars", "bytes", "purpose"),
    "rounds.csv": (
        "round", "seconds", "client_compute_s", "participants", "failed", "evaluated",
        "accuracy", "validation_accuracy", "workers", "closing",
    ),
    "failures.csv": ("round", "client", "kind", "reason"),
}  # fmt: skip

LONGEST_CELL = 2_000_000
"""Signs of a cell that is read; Python's own bound is 131,072. A client's counts of `MOST_CLASSES`
classes, which together are no more than `MOST_EXAMPLES` examples, take less."""
csv.field_size_limit(LONGEST_CELL)

EVALUATION_PHASES = ("pre", "post", "final")
"""Phases of an evaluation in the order in which they are made within a round."""


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a whole table, atomically."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def numbered_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of every row, the header's first; none without a file.

    A last line that a killed process left unfinished is not a row. Only a row at a time is in
    memory.

    Raises
    ------
    csv.Error
        If the text is not CSV.
    """
    if not path.is_file():
        return
    with path.open("rb") as raw:
        # A cut may go through a character, or shorten the last number: only whole lines count.
        lines = (line.decode("utf-8", errors="replace") for line in raw if line.endswith(b"\n"))
        reader = csv.reader(lines)
        for fields in reader:
            if fields:
                yield reader.line_num, fields


def iterate_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file; damaged ones, with too few or too many fields, are left out."""
    rows = numbered_rows(path)
    header = next(rows, (0, []))[1]
    for _, fields in rows:
        if len(fields) == len(header):
            yield dict(zip(header, fields, strict=True))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return all rows of a CSV file, see `iterate_rows`."""
    return list(iterate_rows(path))


def finished_rounds(directory: Path) -> set[int]:
    """Return the rounds that a run has on record."""
    return {int(row["round"]) for row in iterate_rows(directory / "rounds.csv")}


def read_tasks(directory: Path) -> dict[int, ClientTask]:
    """Return every client's task from a run's clients.csv, in the order of the ids."""
    return client_tasks(iterate_rows(directory / "clients.csv"))
