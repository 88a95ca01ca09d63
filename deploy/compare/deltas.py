"""Relative changes of the last main scores against the comparison's reference, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from deploy.compare.cells import NOT_COMPARABLE, NOT_RUN, Spread, spread
from deploy.compare.plan import PlannedRun
from server_app.records.relative_change import relative_changes, some_left_out
from server_app.records.scores import Scores
from strategies.base.options import ConfigError

DELTA_FIELD = "delta"
"""Mean over clients of 100 (a_n - a_n^ref) / a_n^ref, a_n being client n's last main score."""


def delta_field(task: str) -> str:
    """Return the column of one task's changes."""
    return f"{DELTA_FIELD}_{task}"


def delta_cells(
    own: Mapping[int, Scores], reference: Mapping[int, Scores], label: str, tasks: Sequence[str]
) -> tuple[dict[str, Spread | str], list[str]]:
    """Compare a method's complete runs with those of the reference in the same variant.

    Parameters
    ----------
    own, reference : Mapping of int to Scores
        Both methods' main scores by seed.
    label : str
        Of the reference.
    tasks : sequence of str
        Those that have a column of their own.

    Returns
    -------
    cells : dict of str to Spread or str
        Over the seeds complete for both; "" where there is none, or where one of them leaves no
        client to compare.
    notes : list of str
        Who was left out, and why, by seed.
    """
    fields = {DELTA_FIELD: "", **{delta_field(task): task for task in tasks}}
    if not own:
        return dict.fromkeys(fields, NOT_RUN), []
    percents: dict[str, list[float | None]] = {field: [] for field in fields}
    notes = []
    for seed in sorted(own.keys() & reference.keys()):
        try:
            found = relative_changes(own[seed], reference[seed], label)
        except ConfigError as error:
            return dict.fromkeys(fields, NOT_COMPARABLE), [f"seed {seed}: {error}"]
        for field, task in fields.items():
            percents[field].append(found.by_task.get(task) if task else found.percent)
        if found.left_out:
            notes.append(f"seed {seed}: {some_left_out(found.left_out)}")
    return {field: _over_seeds(values) for field, values in percents.items()}, notes


def unlike_models(runs: Sequence[PlannedRun]) -> str:
    """Say that some methods' clients have models of another form; empty where all are alike.

    Of a pretrained encoder a task model trains adapters, any other model all weights: a change
    against Local then tells as much about that as about the method.
    """
    without_tasks = [run.run.chosen_method for run in runs if not run.run.tasks]
    those = sorted({method.name for method in without_tasks if method.task_models})
    others = sorted({method.name for method in without_tasks if not method.task_models})
    if not those or not others:
        return ""
    return (
        f"The models of {', '.join(those)} are task models (the head reads the encoder, of which, "
        f"if pretrained, lora-rank has adapters trained alone), those of {', '.join(others)} are "
        "not, as the runs name no tasks; with tasks='classification' local has task models, too."
    )


def _over_seeds(values: Iterable[float | None]) -> Spread | str:
    values = list(values)
    known = [value for value in values if value is not None]
    return spread(known) if known and len(known) == len(values) else ""
