"""From run directories to the rows of a comparison's table, and to its curves."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.compare.plan import Plan, PlannedRun
from server_app.compare.state import COMPLETE
from server_app.report.data import RunData, read_run
from server_app.report.stats import Point, curve, main_phase, measured

NOT_EVALUATED, NOT_REACHED, NOT_RUN = "not evaluated", "not reached", "not run"

SUMMARY_FIELDS: dict[str, tuple[str, str]] = {
    "final": ("accuracy", "final"),
    "best": ("accuracy", "best"),
    "mean_over_clients": ("accuracy", "mean_over_clients"),
    "spread": ("accuracy", "std_over_clients"),
    "worst_client": ("accuracy", "worst_client"),
    "uplink_per_round": ("traffic", "uplink_scalars_per_round"),
    "downlink_per_round": ("traffic", "downlink_scalars_per_round"),
    "round_s": ("time", "round_s_median"),
    "total_s": ("time", "total_s"),
}
"""Columns that are a value of summary.json: section and key."""

TARGET_FIELDS = ("rounds_to_target", "uplink_to_target", "downlink_to_target")


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean over seeds and, from two seeds on, their sample standard deviation."""

    mean: float
    std: float | None


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What one complete run contributes: a value by column, None where there is none."""

    values: Mapping[str, float | None]
    points: Sequence[Point]


@dataclasses.dataclass(frozen=True)
class Row:
    """One method in one variant.

    Attributes
    ----------
    variant, label, method : str
        Which.
    complete, planned : int
        How many seeds are complete, and how many there shall be.
    cells : dict of str to Spread or str
        By column: a value over the complete seeds, or words for why there is none.
    curve : list of (float, Spread)
        Accuracy over rounds, where all complete seeds have a value.
    """

    variant: str
    label: str
    method: str
    complete: int
    planned: int
    cells: Mapping[str, Spread | str]
    curve: Sequence[tuple[float, Spread]]


def collect(plan: Plan, states: Mapping[str, str]) -> list[Row]:
    """Read all complete runs and make the table's rows, in the order of the file."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.variant, run.label), []).append(run)
    rows = []
    for (variant, label), runs in groups.items():
        results = [
            read_result(run.directory, plan.target)
            for run in runs
            if states.get(run.name) == COMPLETE
        ]
        cells, line = _cells(results, plan.target), mean_curve([r.points for r in results])
        rows.append(Row(variant, label, runs[0].method, len(results), len(runs), cells, line))
    return rows


def read_result(directory: Path, target: float | None) -> RunResult:
    """Read one complete run."""
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    values: dict[str, float | None] = {
        column: summary[section].get(key) for column, (section, key) in SUMMARY_FIELDS.items()
    }
    run = read_run(directory)
    table = measured(run, "accuracy")
    points = curve(table, main_phase(table))
    if target is not None:
        values |= to_target(run, points, target)
    return RunResult(values, points)


def to_target(run: RunData, points: Sequence[Point], target: float) -> dict[str, float | None]:
    """Return rounds and scalars spent when the mean accuracy first reached the target.

    An accuracy measured before the training of round t (`pre`) was reached with t - 1 rounds; one
    measured after it, and the closing one, with all rounds up to then. Traffic of evaluations is
    not counted.
    """
    first = next((point for point in points if point.mean >= target), None)
    if first is None:
        return dict.fromkeys(TARGET_FIELDS)
    rounds = first.x - 1 if first.phase == "pre" else first.x
    spent = {"uplink": 0.0, "downlink": 0.0}
    for row in run.traffic:
        if row.purpose == "train" and row.round <= rounds:
            spent[row.direction] += row.scalars
    return {
        "rounds_to_target": rounds,
        "uplink_to_target": spent["uplink"],
        "downlink_to_target": spent["downlink"],
    }


def spread(values: Iterable[float]) -> Spread:
    """Return mean and sample standard deviation of at least one value."""
    values = list(values)
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def mean_curve(curves: Sequence[Sequence[Point]]) -> list[tuple[float, Spread]]:
    """Average the accuracies of several seeds at every place that all of them have."""
    by_place = [{point.x: point.mean for point in points} for points in curves]
    if not by_place:
        return []
    shared = set.intersection(*(set(places) for places in by_place))
    return [(x, spread(places[x] for places in by_place)) for x in sorted(shared)]


def _cells(results: Sequence[RunResult], target: float | None) -> dict[str, Spread | str]:
    columns = [*SUMMARY_FIELDS, *(TARGET_FIELDS if target is not None else ())]
    cells: dict[str, Spread | str] = {}
    for column in columns:
        found: list[Any] = [r.values[column] for r in results if r.values[column] is not None]
        if not results:
            cells[column] = NOT_RUN
        elif len(found) == len(results):
            cells[column] = spread(found)
        elif column in TARGET_FIELDS:
            reached = f" by {len(results) - len(found)} of {len(results)} seeds"
            cells[column] = NOT_REACHED + (reached if found else "")
        else:
            some = f" in {len(results) - len(found)} of {len(results)} seeds"
            cells[column] = NOT_EVALUATED + (some if found else "")
    return cells
