"""The points of a run's series, read from its CSV files as these grow.

========================================  ==========================================================
``post/accuracy/client-3``                a row of metrics.csv: phase, metric, client
``post/accuracy/mean``                    the clients' mean, weighted by examples
``post/accuracy/mean-of-segmentation``    the same of one task's clients, if there are several
``aggregate/server_loss``                 what the server measured
``server/accuracy``                       the score of the server's own model
``traffic/train/uplink-bytes``            the sum over clients, by purpose; also ``-scalars``
``time/seconds``                          of the round, and ``time/client_compute_s``
``clients/participants``                  how many; also ``failed`` and ``evaluated``
========================================  ==========================================================
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from server_app.records.client_tasks import ClientTask, tasks_in_order
from server_app.records.csv_files import read_tasks
from server_app.records.scores import weighted_mean
from server_app.tracking.base import Point

Row = Mapping[str, str]
_FILES = ("metrics.csv", "traffic.csv", "rounds.csv")
_CLOSING = "closing/"
_OF_ROUND = {
    "seconds": "time/seconds",
    "client_compute_s": "time/client_compute_s",
    "participants": "clients/participants",
    "failed": "clients/failed",
    "evaluated": "clients/evaluated",
}


def is_closing(point: Point) -> bool:
    """Whether a point is of the closing evaluation, which has the number of the last round."""
    return point.series.startswith(("final/", "traffic/closing/", _CLOSING))


class RecordFollower:
    """Reads what was added to a run's CSV files since it last looked.

    Parameters
    ----------
    directory : Path
        Of the run, with its files begun.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._tails = {name: _Tail(directory / name) for name in _FILES}
        self._tasks: dict[int, ClientTask] = {}

    def new_points(self) -> list[Point]:
        """Return the points of all rows since the last call, those without a finite value left out.

        The rows of a round have to be whole when this is called.
        """
        rows = {name: list(tail.new_rows()) for name, tail in self._tails.items()}
        found = [
            *self._of_metrics(rows["metrics.csv"]),
            *_of_traffic(rows["traffic.csv"]),
            *_of_rounds(rows["rounds.csv"]),
        ]
        return [point for point in found if math.isfinite(point.value)]

    def _of_metrics(self, rows: Iterable[Row]) -> Iterator[Point]:
        pairs: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for row in rows:
            name, number, value = f"{row['phase']}/{row['metric']}", int(row["round"]), row["value"]
            if row["client"] == "server":
                yield Point(name, number, float(value))
                continue
            yield Point(f"{name}/client-{row['client']}", number, float(value))
            if math.isfinite(float(value)):
                mean = f"{name}/{self._mean(int(row['client']))}"
                # As in the report, a row without its number of examples counts as one example
                pairs[mean, number].append((float(value), float(row["examples"] or 1)))
        for (series, number), values in pairs.items():
            if (average := weighted_mean(values)) is not None:
                yield Point(series, number, average)

    def _mean(self, client: int) -> str:
        """Return what the mean is called that a client counts in: one of its own task."""
        if client not in self._tasks:
            self._tasks = {client: ClientTask()} | read_tasks(self.directory)
        several = len(tasks_in_order(self._tasks)) > 1
        return f"mean-of-{self._tasks[client].task}" if several else "mean"


class _Tail:
    """The rows of a growing CSV file whose cells have no line ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header: list[str] = []
        self._read = 0

    def new_rows(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            file.seek(self._read)
            lines = file.readlines()
            self._read = file.tell()
        for fields in csv.reader(line.decode("utf-8") for line in lines):
            if self._header:
                yield dict(zip(self._header, fields, strict=True))
            else:
                self._header = fields


def _of_traffic(rows: Iterable[Row]) -> Iterator[Point]:
    sums: dict[tuple[str, int], float] = defaultdict(float)
    for row in rows:
        for unit in ("scalars", "bytes"):
            name = f"traffic/{row['purpose']}/{row['direction']}-{unit}"
            sums[name, int(row["round"])] += float(row[unit])
    for (series, number), total in sums.items():
        yield Point(series, number, total)


def _of_rounds(rows: Iterable[Row]) -> Iterator[Point]:
    for row in rows:
        kind = _CLOSING if row["closing"] == "True" else ""
        for column, series in _OF_ROUND.items():
            if row[column]:
                yield Point(kind + series, int(row["round"]), float(row[column]))
