"""Scores and losses over the rounds of a run."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cached_property

import numpy as np
import pandas as pd

from server_app.records.client_tasks import (
    ClientTask,
    is_plain,
    named_clients,
    tasks_in_order,
)
from server_app.records.run_reader import RunRecords
from server_app.records.scores import Evaluations, Measured, evaluations, weighted_mean
from strategies.base.messages import TRAINED, VALIDATION

Line = dict[float, tuple[str, Measured]]
"""Place on the round axis -> (label, what was measured there)."""

NO_LOSS = "loss_growth"
"""The warning of a training that diverged (`strategies.base.kept.GROWTH`) is a ratio of losses."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One evaluation of the federation: mean weighted by examples, spread unweighted (0..1)."""

    x: float
    label: str
    phase: str
    mean: float
    std: float
    clients: int
    who: frozenset[int] = frozenset()


def main_phase(table: Evaluations) -> str:
    """Return the phase the curve follows: the one with the most values ("pre" on a tie)."""
    sizes = {"pre": 0, "post": 0}
    for (_, phase), values in table.items():
        if phase in sizes:
            sizes[phase] += len(values)
    return "post" if sizes["post"] > sizes["pre"] else "pre"


def placed(table: Evaluations, phase: str) -> Line:
    """Lay the evaluations of `phase` and the closing one along the round axis.

    The closing evaluation comes after the last round. A "pre" value of that round was measured
    before its training, so the closing one gets its own place, one further; a "post" value was
    measured at the same moment, so the closing one takes its place.
    """
    line = {float(r): (f"round {r}", values) for (r, p), values in table.items() if p == phase}
    closing = [(r, values) for (r, p), values in table.items() if p == "final"]
    if closing:
        last, values = max(closing, key=lambda item: item[0])
        line[float(last + 1 if phase == "pre" else last)] = ("final", values)
    return dict(sorted(line.items()))


def curve(table: Evaluations, phase: str) -> list[Point]:
    """Mean and spread over clients, in the order of the round axis."""
    points = []
    for x, (label, values) in placed(table, phase).items():
        mean = weighted_mean(values.values())
        if mean is not None:
            spread = float(np.std([value for value, _ in values.values()]))
            points.append(Point(x, label, phase, mean, spread, len(values), frozenset(values)))
    return points


def changes_of_clients(points: list[Point]) -> list[tuple[Point, str]]:
    """Return the points that other clients were evaluated for than before, and who changed."""
    found = []
    for before, point in itertools.pairwise(points):
        joined, gone = sorted(point.who - before.who), sorted(before.who - point.who)
        words = [f"{len(joined)} more ({named_clients(joined)})"] if joined else []
        words += [f"{len(gone)} fewer ({named_clients(gone)})"] if gone else []
        if words:
            found.append((point, f"from {point.label} on {', '.join(words)}"))
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class TaskView:
    """The clients of one task, whose scores may be averaged.

    Attributes
    ----------
    task : str
        The task; "" where one mean accuracy tells of all clients.
    metric : str
        What its clients are measured by.
    run : RunRecords
        The run with these clients and what they measured alone; traffic is that of all clients.
    """

    task: str
    metric: str
    run: RunRecords

    @property
    def name(self) -> str:
        """What its clients' score is called: "accuracy", "multilabel map"."""
        return f"{self.task} {self.metric}" if self.task else self.metric

    @property
    def title(self) -> str:
        """The name as the beginning of a heading."""
        return self.name[0].upper() + self.name[1:]

    def measured(self, metric: str) -> Evaluations:
        """Return what the clients measured under a name."""
        rows = self.run.metrics
        return evaluations(rows[rows["metric"] == metric])

    @cached_property
    def tests(self) -> Evaluations:
        """The clients' main scores."""
        return self.measured(self.metric)

    @cached_property
    def trained(self) -> Evaluations:
        """Participants' main scores after training, where `tests` were measured before it."""
        return self.measured(f"{TRAINED}{self.metric}")

    @cached_property
    def validations(self) -> Evaluations:
        """The clients' main scores on their validation split."""
        return self.measured(f"{VALIDATION}{self.metric}")

    @property
    def phase(self) -> str:
        """The phase that the curve follows."""
        return main_phase(self.tests)

    @cached_property
    def line(self) -> Line:
        """The main scores along the round axis."""
        return placed(self.tests, self.phase)

    @cached_property
    def points(self) -> list[Point]:
        """The mean main scores along the round axis."""
        return curve(self.tests, self.phase)


def task_views(run: RunRecords) -> list[TaskView]:
    """Return the run's tasks in the order of their first clients; one for a run without tasks."""
    tasks = tasks_in_order({card.client: card.task for card in run.clients})
    if is_plain(tasks):
        return [TaskView("", ClientTask.metric, run)]
    return [TaskView(task, metric, run.of_task(task)) for task, metric in tasks.items()]


def losses(run: RunRecords) -> dict[str, list[tuple[float, float]]]:
    """Return (round, value) by loss term: clients weighted by examples, the server's as it is.

    Losses of unlike tasks are not averaged: where a run has several, a client's term is named
    "loss · multilabel".
    """
    tasks = {card.client: card.task for card in run.clients}
    rows = run.metrics[run.metrics["phase"] == "train"]
    if len(tasks_in_order(tasks)) > 1:
        own = rows["client"].map(lambda client: tasks.get(client, ClientTask()).task)
        rows = rows.assign(metric=rows["metric"] + " · " + own)
    of_server = run.server_metrics[run.server_metrics["phase"] == "aggregate"].assign(examples=1.0)
    terms = pd.concat([rows.drop(columns="client"), of_server])
    is_loss = terms["metric"].str.contains("loss", regex=False)
    terms = terms[is_loss & ~terms["metric"].str.startswith(NO_LOSS)]
    terms = terms.assign(weighted=terms["value"] * terms["examples"])
    sums = terms.groupby(["metric", "round"])[["weighted", "examples"]].sum()
    found: dict[str, list[tuple[float, float]]] = {}
    for (name, number), mean in (sums["weighted"] / sums["examples"]).dropna().items():
        found.setdefault(name, []).append((float(number), float(mean)))
    return found
