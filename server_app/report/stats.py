"""Aggregate a parsed run: means over clients, traffic, FLOPs, losses and clients' histories."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from server_app.records.scores import ClientTask, tasks_in_order
from server_app.report.data import RunData
from server_app.report.tasks import View, client_tasks, views

#: (round, phase) -> client -> (value, examples)
Measured = dict[tuple[int, str], dict[int, tuple[float, float]]]


@dataclass(frozen=True)
class Point:
    """One evaluation of the federation: mean weighted by examples, spread unweighted (0..1)."""

    x: float
    label: str
    phase: str
    mean: float
    std: float
    clients: int


def weighted_mean(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Mean of (value, weight) pairs; None without a finite value of positive weight."""
    usable = [(v, w) for v, w in pairs if math.isfinite(v) and w > 0]
    total = math.fsum(w for _, w in usable)
    return math.fsum(v * w for v, w in usable) / total if total else None


def measured(run: RunData, metric: str) -> Measured:
    """Group one client metric by (round, phase); values that are not finite are left out."""
    table: Measured = defaultdict(dict)
    for row in run.metrics:
        if row.metric == metric and row.client is not None and math.isfinite(row.value):
            # A row without its number of examples counts as one example, so that it is not lost.
            weight = 1.0 if row.examples is None else row.examples
            if weight > 0:
                table[row.round, row.phase][row.client] = (row.value, weight)
    return dict(table)


def main_phase(table: Measured) -> str:
    """Return the phase the curve follows: the one with the most values ("pre" on a tie)."""
    sizes = {"pre": 0, "post": 0}
    for (_, phase), values in table.items():
        if phase in sizes:
            sizes[phase] += len(values)
    return "post" if sizes["post"] > sizes["pre"] else "pre"


def placed(table: Measured, phase: str) -> dict[float, tuple[str, dict[int, tuple[float, float]]]]:
    """Lay the evaluations of ``phase`` and the closing one along the round axis.

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


def curve(table: Measured, phase: str) -> list[Point]:
    """Mean and spread over clients, in the order of the round axis."""
    points = []
    for x, (label, values) in placed(table, phase).items():
        mean = weighted_mean(values.values())
        if mean is not None:
            spread = float(np.std([value for value, _ in values.values()]))
            points.append(Point(x, label, phase, mean, spread, len(values)))
    return points


def losses(run: RunData) -> dict[str, list[tuple[float, float]]]:
    """Return (round, value) by loss term: clients weighted by examples, the server's as it is.

    Losses of unlike tasks are not averaged: where a run has several, a client's term is named
    "loss · multilabel".
    """
    tasks = client_tasks(run)
    several = len(tasks_in_order(tasks)) > 1
    pairs: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in run.metrics:
        if row.phase in ("train", "aggregate") and "loss" in row.metric:
            name = row.metric
            if several and row.client is not None:
                name += f" · {tasks.get(row.client, ClientTask()).task}"
            pairs[name, row.round].append((row.value, row.examples or 1.0))
    terms: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, number in sorted(pairs):
        mean = weighted_mean(pairs[name, number])
        if mean is not None:
            terms[name].append((float(number), mean))
    return dict(terms)


@dataclass
class RoundTraffic:
    """Totals of one round: training by direction, everything else together."""

    up_bytes: float = 0.0
    down_bytes: float = 0.0
    up_scalars: float = 0.0
    down_scalars: float = 0.0
    other_bytes: float = 0.0


def traffic_by_round(run: RunData) -> dict[int, RoundTraffic]:
    """Sum the traffic of every recorded round; evaluation and registration are kept apart."""
    totals: dict[int, RoundTraffic] = defaultdict(RoundTraffic)
    for row in run.traffic:
        entry = totals[row.round]
        size = row.bytes if math.isfinite(row.bytes) else 0.0
        if row.purpose != "train":
            entry.other_bytes += size
            continue
        scalars = row.scalars if math.isfinite(row.scalars) else 0.0
        if row.direction == "uplink":
            entry.up_bytes += size
            entry.up_scalars += scalars
        else:
            entry.down_bytes += size
            entry.down_scalars += scalars
    return dict(sorted(totals.items()))


def training_flops(run: RunData) -> dict[int, float | None]:
    """Floating-point operations of each round's training, summed over the clients that trained.

    None for a round in which one of them did not record its operations: the sum is unknown then.
    """
    trained: dict[int, set[int]] = defaultdict(set)
    counted: dict[int, dict[int, float]] = defaultdict(dict)
    for row in run.metrics:
        if row.phase == "train" and row.client is not None:
            trained[row.round].add(row.client)
            if row.metric == "flops" and math.isfinite(row.value):
                counted[row.round][row.client] = row.value
    return {
        number: math.fsum(counted[number].values()) if clients == counted[number].keys() else None
        for number, clients in sorted(trained.items())
    }


def flops_per_round(run: RunData) -> float | None:
    """Return the training operations of the fullest round; None if not every round has them."""
    amounts = list(training_flops(run).values())
    known = [amount for amount in amounts if amount is not None]
    return max(known) if known and len(known) == len(amounts) else None


@dataclass(frozen=True)
class Spent:
    """What training had cost when an accuracy was measured; ``None`` = not recorded.

    Attributes
    ----------
    rounds
        Rounds of training up to then.
    bytes
        Of the training messages, both directions.
    up_scalars, down_scalars
        Of the training messages, as the methods' papers count them.
    flops
        Floating-point operations of the clients' training steps.
    """

    rounds: int
    bytes: float | None
    up_scalars: float | None
    down_scalars: float | None
    flops: float | None


def spent_before(run: RunData, points: Iterable[Point]) -> list[Spent]:
    """Return what all clients' training had cost when each point was measured.

    A "pre" value of round t was measured before anything of round t was trained, so only the
    rounds before t count; a "post" value counts round t; the closing one counts everything.
    """
    traffic, flops = traffic_by_round(run), training_flops(run)
    spent = []
    for point in points:
        last = int(point.x) - 1 if point.phase == "pre" else int(point.x)
        sent = [entry for number, entry in traffic.items() if number <= last]
        done = [amount for number, amount in flops.items() if number <= last]
        known = [amount for amount in done if amount is not None]
        spent.append(
            Spent(
                last,
                math.fsum(e.up_bytes + e.down_bytes for e in sent) if traffic else None,
                math.fsum(e.up_scalars for e in sent) if traffic else None,
                math.fsum(e.down_scalars for e in sent) if traffic else None,
                math.fsum(known) if flops and len(known) == len(done) else None,
            )
        )
    return spent


@dataclass
class History:
    """What one client went through; ``None`` = never measured."""

    rounds_trained: set[int] = field(default_factory=set)
    first: float | None = None
    best: float | None = None
    final: float | None = None
    up_bytes: float | None = None
    down_bytes: float | None = None
    failures: int = 0


def histories(run: RunData) -> tuple[dict[int, History], bool]:
    """Follow every client through the run, by the score of its task.

    Returns
    -------
    The history by client id, and whether "best" is the score in the client's best validation
    round (True) or merely the highest score seen, for want of validation values (False).
    """
    found: dict[int, History] = defaultdict(History)
    by_validation = [_add_scores(view, found) for view in views(run)]
    for row in run.metrics:
        if row.phase == "train" and row.client is not None:
            found[row.client].rounds_trained.add(row.round)
    _add_traffic_and_failures(run, found)
    return dict(found), all(by_validation)


def _add_scores(view: View, found: dict[int, History]) -> bool:
    """Add the scores of one task; say whether "best" could be chosen by validation values."""
    scores, validation = (
        measured(view.run, name) for name in (view.metric, f"validation_{view.metric}")
    )
    line = placed(scores, main_phase(scores))
    rule = placed(validation, main_phase(scores))
    best: dict[int, tuple[float, float]] = {}
    for x, (_, values) in line.items():
        chosen_by = (rule[x][1] if x in rule else {}) if rule else values
        for client, (value, _) in values.items():
            entry = found[client]
            entry.first = value if entry.first is None else entry.first
            entry.final = value
            by = chosen_by.get(client)
            if by is not None and (client not in best or by[0] > best[client][0]):
                best[client] = (by[0], value)
                entry.best = value
    return bool(rule)


def _add_traffic_and_failures(run: RunData, found: dict[int, History]) -> None:
    for row in run.traffic:
        entry = found[row.client]
        if row.purpose == "train" and math.isfinite(row.bytes):
            if row.direction == "uplink":
                entry.up_bytes = (entry.up_bytes or 0.0) + row.bytes
            else:
                entry.down_bytes = (entry.down_bytes or 0.0) + row.bytes
    for failure in run.failures:
        if failure.client.lstrip("-").isdigit():
            found[int(failure.client)].failures += 1
