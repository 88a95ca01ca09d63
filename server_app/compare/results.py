"""From run directories to the rows of a comparison's table, and to its curves."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from server_app.compare.plan import Plan, PlannedRun
from server_app.compare.state import COMPLETE
from server_app.recorder import EVALUATION_PHASES
from server_app.report.data import RunData, read_run
from server_app.report.stats import (
    Point,
    curve,
    flops_per_round,
    main_phase,
    measured,
    spent_before,
)

NOT_EVALUATED, NOT_REACHED, NOT_RUN = "not evaluated", "not reached", "not run"
NOT_RECORDED = "not recorded"

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

FLOPS_FIELD = "flops_per_round"

TARGET_FIELDS = ("rounds_to_target", "uplink_to_target", "downlink_to_target", "flops_to_target")

RATIO_FIELD = "rounds_over_reference"
"""Rounds to the target over those of the method that the comparison names as reference."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean over seeds and, from two seeds on, their sample standard deviation."""

    mean: float
    std: float | None


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What one complete run contributes.

    Attributes
    ----------
    values : dict of str to float or str
        By column: a value, or words for why there is none.
    points : list of Point
        Its mean accuracies.
    final : dict of int to float
        Accuracy of every client in the last evaluation.
    """

    values: Mapping[str, float | str]
    points: Sequence[Point]
    final: Mapping[int, float]


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
    finals : dict of int to dict
        By complete seed: the last accuracy of every client.
    """

    variant: str
    label: str
    method: str
    complete: int
    planned: int
    cells: Mapping[str, Spread | str]
    curve: Sequence[tuple[float, Spread]]
    finals: Mapping[int, Mapping[int, float]]


def collect(plan: Plan, states: Mapping[str, str]) -> list[Row]:
    """Read all complete runs and make the table's rows, in the order of the file."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.variant, run.label), []).append(run)
    read = {
        at: {
            run.seed: read_result(run.directory, plan.target)
            for run in runs
            if states.get(run.name) == COMPLETE
        }
        for at, runs in groups.items()
    }
    rows = []
    for (variant, label), runs in groups.items():
        by_seed = read[variant, label]
        results = list(by_seed.values())
        cells = _cells(results, plan.target)
        if plan.reference is not None:
            cells[RATIO_FIELD] = over_reference(by_seed, read[variant, plan.reference])
        rows.append(
            Row(
                variant=variant,
                label=label,
                method=runs[0].method,
                complete=len(results),
                planned=len(runs),
                cells=cells,
                curve=mean_curve([result.points for result in results]),
                finals={seed: result.final for seed, result in by_seed.items()},
            )
        )
    return rows


def read_result(directory: Path, target: float | None) -> RunResult:
    """Read one complete run."""
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    values: dict[str, float | str] = {}
    for column, (section, key) in SUMMARY_FIELDS.items():
        missing = NOT_EVALUATED if section == "accuracy" else NOT_RECORDED
        values[column] = _or_words(summary[section].get(key), missing)
    run = read_run(directory)
    values[FLOPS_FIELD] = _or_words(flops_per_round(run), NOT_RECORDED)
    table = measured(run, "accuracy")
    points = curve(table, main_phase(table))
    if target is not None:
        values |= to_target(run, points, target)
    last = max(table, key=lambda at: (at[0], EVALUATION_PHASES.index(at[1])), default=None)
    final = {client: value for client, (value, _) in table[last].items()} if last else {}
    return RunResult(values, points, final)


def _or_words(value: float | None, words: str) -> float | str:
    return words if value is None else value


def to_target(run: RunData, points: Sequence[Point], target: float) -> dict[str, float | str]:
    """Return what training had cost when the mean accuracy first reached the target.

    An accuracy measured before the training of round t (`pre`) was reached with t - 1 rounds; one
    measured after it, and the closing one, with all rounds up to then. Evaluations cost nothing
    here.
    """
    first = next((point for point in points if point.mean >= target), None)
    if first is None:
        return dict.fromkeys(TARGET_FIELDS, NOT_REACHED if points else NOT_EVALUATED)
    (spent,) = spent_before(run, [first])
    return {
        "rounds_to_target": spent.rounds,
        "uplink_to_target": _or_words(spent.up_scalars, NOT_RECORDED),
        "downlink_to_target": _or_words(spent.down_scalars, NOT_RECORDED),
        "flops_to_target": _or_words(spent.flops, NOT_RECORDED),
    }


def over_reference(
    own: Mapping[int, RunResult], reference: Mapping[int, RunResult]
) -> Spread | str:
    """Return the ratio of two methods' rounds to the target, seed by seed.

    Parameters
    ----------
    own, reference : Mapping of int to RunResult
        Both methods' complete runs in one variant, by seed.

    Returns
    -------
    Spread or str
        Over the seeds that are complete for both; "" if one of them has no ratio, because either
        method did not reach the target or the reference had it before any training.
    """
    if not own:
        return NOT_RUN
    ratios = []
    for seed in sorted(own.keys() & reference.keys()):
        rounds, base = (of[seed].values["rounds_to_target"] for of in (own, reference))
        if isinstance(rounds, str) or isinstance(base, str) or not base:
            return ""
        ratios.append(rounds / base)
    return spread(ratios) if ratios else ""


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
    columns = [*SUMMARY_FIELDS, FLOPS_FIELD, *(TARGET_FIELDS if target is not None else ())]
    return {
        column: _cell([result.values[column] for result in results]) if results else NOT_RUN
        for column in columns
    }


def _cell(values: Sequence[float | str]) -> Spread | str:
    """Average over seeds, or say for how many of them there is no number and why."""
    missing = Counter(value for value in values if isinstance(value, str))
    if not missing:
        return spread(value for value in values if not isinstance(value, str))
    if list(missing.values()) == [len(values)]:
        return next(iter(missing))
    return ", ".join(
        f"{words} {'by' if words == NOT_REACHED else 'in'} {count} of {len(values)} seeds"
        for words, count in missing.items()
    )
