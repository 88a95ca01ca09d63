"""From run directories to the rows of a comparison's table, and to its curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from deploy.compare.cells import NOT_REACHED, NOT_RUN, Spread, over_seeds, spread
from deploy.compare.deltas import delta_cells
from deploy.compare.plan import Plan, PlannedRun
from deploy.compare.progress import COMPLETE
from server_app.formats import NOT_EVALUATED, NOT_RECORDED
from server_app.records.basis import caveats
from server_app.records.client_tasks import ClientTask
from server_app.records.curves import Point, TaskView, task_views
from server_app.records.run_reader import RunRecords, read_run, section
from server_app.records.scores import Scores, main_scores, task_scores
from server_app.records.spending import flops_per_round, spent_before

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

SERVER_FIELD = "server_score"
"""The main score of the server's own model; `SERVER_PREFIX` and a name for each of its scores."""
SERVER_PREFIX = "server_"

TRAINED_FIELD = "trained"
"""The mean after local training, of runs that measured it beside the one before."""

TARGET_FIELDS = ("rounds_to_target", "uplink_to_target", "downlink_to_target", "flops_to_target")

RATIO_FIELD = "rounds_over_reference"
"""Rounds to the target over those of the method that the comparison names as reference."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What one complete run contributes.

    Attributes
    ----------
    values : dict of str to float or str
        By column: a value, or words for why there is none.
    points : dict of str to list of Point
        Its mean scores by name: "accuracy", or "multilabel map" and the like with several tasks.
    scores : Scores
        Every client's main scores.
    final : dict of int to float
        Main score of every client in the last evaluation.
    rests_on : tuple of str
        What a reader would not think of its scores, see `records.basis`.
    """

    values: Mapping[str, float | str]
    points: Mapping[str, Sequence[Point]]
    scores: Scores
    final: Mapping[int, float]
    rests_on: tuple[str, ...] = ()


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
    curves : dict of str to list of (float, Spread)
        By name, a mean score over rounds, where all complete seeds have a value.
    finals : dict of int to dict
        By complete seed: the last main score of every client.
    tasks : dict of int to ClientTask
        By client.
    notes : list of str
        Whom `delta` leaves out, and why.
    rests_on : str
        Where its scores rest on less than a reader would think.
    """

    variant: str
    label: str
    method: str
    complete: int
    planned: int
    cells: Mapping[str, Spread | str]
    curves: Mapping[str, Sequence[tuple[float, Spread]]]
    finals: Mapping[int, Mapping[int, float]]
    tasks: Mapping[int, ClientTask]
    notes: Sequence[str] = ()
    rests_on: str = ""


def collect(plan: Plan, states: Mapping[str, str]) -> list[Row]:
    """Read all complete runs and make the table's rows, in the order of the file."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.variant, run.label), []).append(run)
    read = {
        at: {
            run.seed: _known_result(run.directory, plan.target)
            for run in runs
            if states.get(run.name) == COMPLETE
        }
        for at, runs in groups.items()
    }
    return [
        _row(plan, runs, by_seed=read[at], reference=read.get((at[0], plan.reference or "")))
        for at, runs in groups.items()
    ]


def _row(
    plan: Plan,
    runs: Sequence[PlannedRun],
    by_seed: Mapping[int, RunResult],
    reference: Mapping[int, RunResult] | None,
) -> Row:
    """Make one row of its complete runs and those of the reference in the same variant."""
    results = list(by_seed.values())
    tasks = plan.tasks
    cells = _cells(results, plan.target, tasks)
    notes: list[str] = []
    if reference is not None:
        if plan.target is not None:
            cells[RATIO_FIELD] = over_reference(by_seed, reference)
        own, base = (
            {seed: result.scores for seed, result in of.items()} for of in (by_seed, reference)
        )
        changes, notes = delta_cells(own, base, str(plan.reference), list(tasks))
        cells |= changes
    clients = {i: task for result in results for i, task in result.scores.clients.items()}
    return Row(
        variant=runs[0].variant,
        label=runs[0].label,
        method=runs[0].method,
        complete=len(results),
        planned=len(runs),
        cells=cells,
        curves=_curves(results),
        finals={seed: result.final for seed, result in by_seed.items()},
        tasks=clients,
        notes=notes,
        rests_on=_over_seeds({seed: result.rests_on for seed, result in by_seed.items()}),
    )


def _over_seeds(texts: Mapping[int, Sequence[str]]) -> str:
    """Join what is said of the seeds; of a text that is not said of all, the seeds are named."""
    seeds: dict[str, list[int]] = {}
    for seed, said in texts.items():
        for text in said:
            seeds.setdefault(text, []).append(seed)
    return "; ".join(
        text if len(own) == len(texts) else f"{text} (seed {', '.join(map(str, own))})"
        for text, own in seeds.items()
    )


def _known_result(directory: Path, target: float | None) -> RunResult:
    """Read a complete run once, however often the table is made; it is read anew if it changes."""
    files = [(directory / name).stat() for name in ("summary.json", "metrics.csv")]
    stamp = tuple((file.st_mtime_ns, file.st_size, file.st_ino) for file in files)
    return _read_once(directory, target, stamp)


@lru_cache(maxsize=4096)
def _read_once(
    directory: Path, target: float | None, stamp: tuple[tuple[int, int, int], ...]
) -> RunResult:
    return read_result(directory, target)


def read_result(directory: Path, target: float | None) -> RunResult:
    """Read one complete run."""
    run = read_run(directory)
    values: dict[str, float | str] = {}
    for column, (part, key) in SUMMARY_FIELDS.items():
        missing = NOT_EVALUATED if part == "accuracy" else NOT_RECORDED
        values[column] = _or_words(section(run.summary, part).get(key), missing)
    values |= _server_scores(run)
    if (trained := section(run.summary, "accuracy").get(TRAINED_FIELD)) is not None:
        values[TRAINED_FIELD] = trained
    values[FLOPS_FIELD] = _or_words(flops_per_round(run), NOT_RECORDED)
    scores = main_scores(run)
    for task, metric in scores.tasks.items():
        final = task_scores(scores.of_task(task), metric)["final"]
        values[score_field(task, metric)] = _or_words(final, NOT_EVALUATED)
    if target is not None:
        values |= to_target(run, TaskView("", "accuracy", run).points, target)
    points = {view.name: view.points for view in task_views(run)}
    return RunResult(values, points, scores, scores.last(), _rests_on(run))


def _server_scores(run: RunRecords) -> dict[str, float]:
    """Return the last scores of the server's own model; nothing where it was not scored."""
    found = section(run.summary, "server")
    scores = section(found, "finals")
    values = {SERVER_PREFIX + name: value for name, value in scores.items() if value is not None}
    if found.get("final") is not None:
        values[SERVER_FIELD] = found["final"]
    return values


def _rests_on(run: RunRecords) -> tuple[str, ...]:
    found = []
    for view in task_views(run):
        part = section(section(run.summary, "scores"), view.task) if view.task else None
        entry = part or section(run.summary, "accuracy")
        of_final, of_best = caveats(run, view.task, entry)
        texts = [of_final] if of_final else []
        texts += [f"best {of_best}"] if of_best else []
        found += [f"{view.task}: {text}" if view.task else text for text in texts]
    return tuple(found)


def score_field(task: str, metric: str) -> str:
    """Return the column of one task's mean last score."""
    return f"{task}_{metric}"


def _or_words(value: float | None, words: str) -> float | str:
    return words if value is None else value


def to_target(run: RunRecords, points: Sequence[Point], target: float) -> dict[str, float | str]:
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


def mean_curve(curves: Sequence[Sequence[Point]]) -> list[tuple[float, Spread]]:
    """Average the accuracies of several seeds at every place that all of them have."""
    by_place = [{point.x: point.mean for point in points} for points in curves]
    if not by_place:
        return []
    shared = set.intersection(*(set(places) for places in by_place))
    return [(x, spread(places[x] for places in by_place)) for x in sorted(shared)]


def _cells(
    results: Sequence[RunResult], target: float | None, tasks: Mapping[str, str]
) -> dict[str, Spread | str]:
    columns = [*SUMMARY_FIELDS, FLOPS_FIELD, *(TARGET_FIELDS if target is not None else ())]
    columns += [score_field(task, metric) for task, metric in tasks.items()]
    of_server = {name for r in results for name in r.values if name.startswith(SERVER_PREFIX)}
    columns += sorted(of_server)
    columns += [TRAINED_FIELD] if any(TRAINED_FIELD in r.values for r in results) else []
    return {
        # A task that none of these runs has stays blank.
        column: over_seeds([r.values.get(column, "") for r in results]) if results else NOT_RUN
        for column in columns
    }


def _curves(results: Sequence[RunResult]) -> dict[str, list[tuple[float, Spread]]]:
    names = dict.fromkeys(name for result in results for name in result.points)
    return {name: mean_curve([r.points.get(name, []) for r in results]) for name in names}
