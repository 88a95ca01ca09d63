"""The run's records: tidy CSV files, appended after every round and cut back on resume.

Rows are written in an order that depends on the run alone, and metrics.csv holds no times, so two
runs with one seed leave the same metrics.csv.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from server_app.records.client_tasks import ClientTask, TaskScore, tasks_in_order
from server_app.records.csv_files import (
    EVALUATION_PHASES,
    HEADERS,
    finished_rounds,
    iterate_rows,
    read_tasks,
)
from server_app.records.round_result import Failure, RoundResult, Traffic
from server_app.records.scores import weighted_mean
from server_app.records.server_score import SCORE_PHASE
from strategies.base.files import replacing, written
from strategies.base.messages import PHASES, VALIDATION, MetricRow
from strategies.base.received_text import harmless_cell
from strategies.base.state import StateError

SERVER_PHASE = "aggregate"


class Recorder:
    """Writes a run's CSV files and remembers each client's last main score.

    Attributes
    ----------
    accuracy : dict of int to float
        Every client's last main score: its accuracy or, with another task, what that is measured
        by (see `data.tasks.METRIC_OF`). A method that selects by it may compare clients of one
        task only.
    validation : dict of int to float
        The same on validation examples, of the clients that have any.
    trained : dict of int to int
        In how many rounds every client has trained.
    tasks : dict of int to ClientTask
        By client, as clients.csv has them; read again when a client is not in it.
    latest : list of TaskScore
        Of the round added last: every task of the run, in the order of the first clients.
    best : dict of str to float
        By task, the mean of the best round since the start or resume over the very clients of its
        latest evaluation, closing evaluations left out. Validation scores choose it where there
        are any, as in the summary, else the test scores themselves.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.accuracy: dict[int, float] = {}
        self.validation: dict[int, float] = {}
        self.trained: dict[int, int] = {}
        self.tasks: dict[int, ClientTask] = {}
        self.latest: list[TaskScore] = []
        self.best: dict[str, float] = {}
        self._best_of: dict[tuple[str, frozenset[int]], tuple[float, float]] = {}

    def begin(self, keep_rounds: int, others: Mapping[Path, str] | None = None) -> None:
        """Make the files, or cut them back to `keep_rounds` finished rounds of a resumed run.

        The closing evaluation of an earlier end is dropped: it is made again at the new end. If
        anything fails, a full disk for one, all files stay as they were.

        Parameters
        ----------
        keep_rounds : int
            Rounds to keep; 0 for a new run.
        others : Mapping of Path to str, optional
            Texts of further files of the run, which take their places just before the records.

        Raises
        ------
        StateError
            If a round up to `keep_rounds` has no row in rounds.csv.
        """
        if lost := set(range(1, keep_rounds + 1)) - finished_rounds(self.directory):
            raise StateError(
                f"{self.directory / 'rounds.csv'}: round {min(lost)} is not recorded, though there "
                "is a checkpoint after it; the records are damaged, start a new run"
            )
        with ExitStack() as files:  # all are written, then moved, the last one first
            for name, header in HEADERS.items():
                path = self.directory / name
                _cut_back(path, files.enter_context(replacing(path)), header, keep_rounds)
            for path, text in (others or {}).items():
                partial = files.enter_context(replacing(path, durable=True))
                partial.write_text(text, encoding="utf-8", newline="")
        self.tasks = read_tasks(self.directory)
        for row in iterate_rows(self.directory / "metrics.csv"):
            if row["client"] != "server":
                metric = MetricRow(row["phase"], row["metric"], float(row["value"]), 0)
                self._remember(int(row["client"]), metric)

    def add(self, result: RoundResult, *, closing: bool = False) -> tuple[float | None, int]:
        """Append a round; return its mean accuracy and how many clients have a main score.

        The mean is over clients whose main score is accuracy, and None where there are none;
        `latest` has the means of all tasks.
        """
        number = result.server_round
        rows = sorted(
            result.rows, key=lambda pair: (PHASES.index(pair[1].phase), pair[0], pair[1].metric)
        )
        if any(client not in self.tasks for client, _ in rows):
            self.tasks = read_tasks(self.directory)
        for client, row in rows:
            self._remember(client, row)
        self._append("metrics.csv", _metric_lines(result, rows))
        self._append("traffic.csv", _traffic_lines(result, "closing" if closing else None))
        self.add_failures(number, result.failures, closing=closing)
        evaluated = {client for client, row in rows if self._is_score(client, row)}
        self._note_scores(rows, closing=closing)
        accuracy = self._mean_of(rows, "accuracy")
        validation = self._mean_of(rows, "validation_accuracy")
        # The last file to be written: a round counts once it is in rounds.csv.
        self._append(
            "rounds.csv",
            [
                (
                    number, f"{result.seconds:.4f}", f"{result.compute_s:.4f}",
                    len(result.participants), sum(f.kind != "skipped" for f in result.failures),
                    len(evaluated), _blank(accuracy), _blank(validation),
                    len(result.workers), closing,
                )
            ],
        )  # fmt: skip
        return accuracy, len(evaluated)

    def add_failures(
        self, server_round: int, failures: Iterable[Failure], *, closing: bool = False
    ) -> None:
        """Append clients that could not be used, and why."""
        rows = (
            (
                server_round, "" if f.client_id is None else f.client_id,
                "closing" if closing else f.kind, harmless_cell(f.reason),
            )
            for f in failures
        )  # fmt: skip
        self._append("failures.csv", rows)

    def _task(self, client: int) -> ClientTask:
        return self.tasks.get(client, ClientTask())

    def _is_score(self, client: int, row: MetricRow, prefix: str = "") -> bool:
        named = row.metric == prefix + self._task(client).metric
        return named and row.phase in EVALUATION_PHASES

    def _mean_of(self, rows: Iterable[tuple[int, MetricRow]], metric: str) -> float | None:
        """Return the mean of an accuracy over the clients whose main score is accuracy."""
        return weighted_mean(
            (row.value, row.examples)
            for client, row in rows
            if row.metric == metric
            and row.phase in EVALUATION_PHASES
            and self._task(client).metric == "accuracy"
        )

    def _note_scores(self, rows: Sequence[tuple[int, MetricRow]], *, closing: bool) -> None:
        scored = [(client, row) for client, row in rows if self._is_score(client, row)]
        known = {client: self._task(client) for client in {*self.tasks, *(c for c, _ in scored)}}
        self.latest = []
        for task, metric in tasks_in_order(known).items():
            own = [(c, row) for c, row in scored if known[c].task == task]
            mean = weighted_mean((row.value, row.examples) for _, row in own)
            clients = frozenset(client for client, _ in own)
            self.latest.append(TaskScore(task, metric, mean, len(clients)))
            if mean is not None and not closing:
                validation = weighted_mean(
                    (row.value, row.examples)
                    for client, row in rows
                    if known.get(client, ClientTask()).task == task
                    and self._is_score(client, row, VALIDATION)
                )
                chosen_by = mean if validation is None else validation
                # As in the summary: the mean of other clients is another quantity.
                so_far = self._best_of.get((task, clients))
                if so_far is None or chosen_by > so_far[0]:
                    so_far = self._best_of[task, clients] = chosen_by, mean
                self.best[task] = so_far[1]

    def _remember(self, client: int, row: MetricRow) -> None:
        if self._is_score(client, row):
            self.accuracy[client] = row.value
        if self._is_score(client, row, VALIDATION):
            self.validation[client] = row.value
        if row.phase == "train" and row.metric == "loss":
            self.trained[client] = self.trained.get(client, 0) + 1

    def _append(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        path = self.directory / name
        with written(path), path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
            file.flush()
            # The checkpoint that follows is on the disk; what it follows must be, too.
            os.fsync(file.fileno())


def _cut_back(path: Path, partial: Path, header: Sequence[str], keep_rounds: int) -> None:
    """Write to `partial` the header and the finished rounds of `path`, without closing rows."""
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        for row in iterate_rows(path):
            closing = row.get("phase") == "final" or row.get("closing") == "True"
            closing = closing or "closing" in (row.get("purpose"), row.get("kind"))
            if int(row["round"]) <= keep_rounds and not closing:
                writer.writerow(row)


def _metric_lines(
    result: RoundResult, rows: Iterable[tuple[int, MetricRow]]
) -> Iterator[tuple[Any, ...]]:
    number, trained = result.server_round, len(result.participants)
    for client, row in rows:
        yield number, client, row.phase, row.metric, repr(row.value), row.examples
    for name, value in sorted(result.server_metrics.items()):
        yield number, "server", SERVER_PHASE, name, repr(float(value)), trained
    if (scores := result.server_scores) is not None:
        for name, value in sorted(scores.values.items()):
            yield number, "server", SCORE_PHASE, name, repr(float(value)), scores.examples


def _traffic_lines(result: RoundResult, kind: str | None) -> Iterator[tuple[Any, ...]]:
    for (purpose, direction, client), amounts in _summed(result.traffic).items():
        yield result.server_round, client, direction, *amounts, kind or purpose


def _summed(traffic: Iterable[Traffic]) -> dict[tuple[str, str, int], tuple[int, int, int]]:
    """Return messages, scalars and bytes by purpose, direction and client, in this order.

    A round of several exchanges sends a client several messages of one kind.
    """
    totals: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    for t in sorted(traffic, key=lambda t: (t.purpose, t.direction, t.client_id)):
        key = t.purpose, t.direction, t.client_id
        messages, scalars, size = totals.get(key, (0, 0, 0))
        totals[key] = messages + 1, scalars + t.scalars, size + t.num_bytes
    return totals


def _blank(value: float | None) -> str:
    return "" if value is None else repr(value)
