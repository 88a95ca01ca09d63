"""A comparison's table as Markdown and CSV, and the page around it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence

from deploy.compare.cells import NOT_RUN, Spread
from deploy.compare.deltas import DELTA_FIELD, delta_field, unlike_models
from deploy.compare.differences import differences, markdown_table, tables
from deploy.compare.page import RESTS_ON, page
from deploy.compare.plan import Plan
from deploy.compare.results import (
    RATIO_FIELD,
    SERVER_FIELD,
    TARGET_FIELDS,
    TRAINED_FIELD,
    Row,
    collect,
    score_field,
)
from server_app.formats import human
from server_app.records.run_directory import write_atomically


def _percent(value: Spread) -> str:
    text = f"{100 * value.mean:.2f}"
    return f"{text} ± {100 * value.std:.2f}" if value.std is not None else text


def _change(value: Spread) -> str:
    return f"{value.mean:+.2f}" + (f" ± {value.std:.2f}" if value.std is not None else "")


def _count(value: Spread) -> str:
    text = f"{value.mean:,.0f}"
    return f"{text} ± {value.std:,.0f}" if value.std else text


def _operations(value: Spread) -> str:
    return human(value.mean, "", " ") + (f" ± {human(value.std, '', ' ')}" if value.std else "")


def _rounds(value: Spread) -> str:
    text = f"{value.mean:g}" if value.mean == int(value.mean) else f"{value.mean:.1f}"
    return f"{text} ± {value.std:.1f}" if value.std else text


def _ratio(value: Spread) -> str:
    return f"{value.mean:.2f}" + (f" ± {value.std:.2f}" if value.std is not None else "")


def _seconds(value: Spread) -> str:
    return f"{value.mean:.3g}" if value.mean < 100 else f"{value.mean:,.0f}"


Column = tuple[str, Callable[[Spread], str]]
"""Heading, in which "{reference}" stands for the reference's label, and format."""

ACCURACIES: dict[str, Column] = {
    "final": ("final accuracy %", _percent),
    "best": ("best %", _percent),
    "mean_over_clients": ("mean over clients %", _percent),
    "spread": ("spread over clients %", _percent),
    "worst_client": ("worst client %", _percent),
}
"""Columns of comparisons in which one mean accuracy tells of all clients of a run."""

_SOMETIMES: dict[str, Column] = {
    TRAINED_FIELD: ("after training %", _percent),
    SERVER_FIELD: ("server's model %", _percent),
}
"""Columns that are there only where a run measured them."""

COSTS: dict[str, Column] = {
    "rounds_to_target": ("rounds to target", _rounds),
    RATIO_FIELD: ("rounds / {reference}", _ratio),
    "uplink_to_target": ("uplink scalars to target", _count),
    "downlink_to_target": ("downlink scalars to target", _count),
    "flops_to_target": ("training FLOPs to target", _operations),
    "uplink_per_round": ("uplink scalars/round", _count),
    "downlink_per_round": ("downlink scalars/round", _count),
    "flops_per_round": ("FLOPs/round", _operations),
    "round_s": ("s/round", _seconds),
    "total_s": ("s total", _seconds),
}


def columns_of(plan: Plan) -> dict[str, Column]:
    """Return the columns of the table in their order.

    Where clients have other tasks than the one that accuracy tells of, each task has its mean
    last score in place of the accuracies. Columns about target and reference are there only if
    the comparison names one.
    """
    tasks = plan.tasks
    scores = {score_field(t, metric): (f"{t} {metric} %", _percent) for t, metric in tasks.items()}
    changes: dict[str, Column] = {}
    if plan.reference is not None:
        changes[DELTA_FIELD] = ("delta against {reference} %", _change)
        if len(tasks) > 1:
            changes |= {delta_field(task): (f"delta {task} %", _change) for task in tasks}
    left_out = {
        *(TARGET_FIELDS if plan.target is None else ()),
        *((RATIO_FIELD,) if plan.reference is None or plan.target is None else ()),
    }
    costs = {name: column for name, column in COSTS.items() if name not in left_out}
    return {**(scores if tasks else ACCURACIES), **changes, **costs}


def shown_columns(plan: Plan, rows: Sequence[Row]) -> dict[str, Column]:
    """Return `columns_of`, with what only some runs measure where a row has it.

    These are the mean after local training beside the one before it, and the score of the server's
    own model.
    """
    columns = columns_of(plan)
    beside: dict[str, Column] = {
        name: column
        for name, column in _SOMETIMES.items()
        if any(isinstance(row.cells.get(name), Spread) for row in rows)
    }
    scores = len(plan.tasks) or len(ACCURACIES)
    names = list(columns.items())
    return {**dict(names[:scores]), **beside, **dict(names[scores:])}


def write_outputs(plan: Plan, states: Mapping[str, str], notes: Mapping[str, str]) -> list[Row]:
    """Write `<name>.md`, `<name>.csv` and `<name>.html`, each whole or not at all.

    Parameters
    ----------
    plan : Plan
        The comparison.
    states : Mapping of str to str
        How much there is of every run, by its name.
    notes : Mapping of str to str
        Why a run is not complete, by its name.

    Returns
    -------
    list of Row
        The table's rows.
    """
    rows = collect(plan, states)
    plan.output.mkdir(parents=True, exist_ok=True)
    heads, body = table_cells(plan, rows)
    found = differences(plan, rows)
    texts = {
        "md": markdown(plan, heads, body, left_out(rows)) + tables(found),
        "csv": csv_text(plan, rows),
        "html": page(
            plan,
            states,
            notes,
            rows,
            heads,
            body,
            [explanation(plan), *resting(rows), *left_out(rows)],
            found,
        ),
    }
    for suffix, text in texts.items():
        write_atomically(plan.output / f"{plan.name}.{suffix}", text)
    return rows


def table_cells(plan: Plan, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the table's headings and its cells as texts.

    The last column says where scores rest on less than a reader would think; it is there only if
    that is so in a row.
    """
    variants = any(row.variant for row in rows)
    columns = shown_columns(plan, rows)
    first = ["variant", "method"] if variants else ["method"]
    titles = [title.format(reference=plan.reference) for title, _ in columns.values()]
    rests_on = [RESTS_ON] if any(row.rests_on for row in rows) else []
    heads = [*first, *titles, "seeds", *rests_on]
    body = []
    for row in rows:
        cells = [_cell(row, column) for column in columns]
        texts = [
            cell if isinstance(cell, str) else form(cell)
            for cell, (_, form) in zip(cells, columns.values(), strict=True)
        ]
        names = [row.variant, row.label] if variants else [row.label]
        last = [row.rests_on] if rests_on else []
        body.append([*names, *texts, f"{row.complete} of {row.planned}", *last])
    return heads, body


def _cell(row: Row, column: str) -> Spread | str:
    """Return a row's cell; blank where only other rows have such a value."""
    return row.cells.get(column, "" if row.complete else NOT_RUN)


def explanation(plan: Plan) -> str:
    """Say in words what the columns are."""
    if plan.tasks:
        scores = (
            "Scores are on the clients' test splits in the last evaluation, means over the clients "
            "of one task alone, weighted by test examples; accuracy, map (mean average precision) "
            "and miou (mean intersection over union) are not averaged with each other. "
        )
    else:
        scores = (
            "Accuracies are on the clients' test splits: final (last evaluation) and best (the "
            "round with the highest validation accuracy, or test accuracy where nothing is set "
            "aside for validation) are weighted by test examples; mean, spread (standard "
            "deviation) and worst count all clients alike. "
        )
    return (
        f"{scores}± is the sample standard deviation "
        "over seeds. Scalars are counted as in the methods' papers, FLOPs (floating-point "
        "operations of the training steps) by PyTorch's counter, both over all participants of "
        "the fullest round; s/round is the median, s total all rounds without the start of "
        f"Ray.{_about_trained(plan)}{_about_target(plan)}{_about_delta(plan)}"
        f"{_about_models(plan)}"
    )


def _about_trained(plan: Plan) -> str:
    if not any(run.run.evaluates_trained for run in plan.runs):
        return ""
    return (
        " After training: what the participants of the last round scored right after their local "
        "training in it; all other accuracies were measured before local training."
    )


def _about_target(plan: Plan) -> str:
    if plan.target is None:
        return ""
    whose = " of the clients measured by it" if plan.tasks else ""
    text = (
        f" Target: mean accuracy{whose} {100 * plan.target:g} %; scalars of training messages "
        "and FLOPs of all training up to then."
    )
    if plan.reference is not None:
        text += (
            f' "rounds / {plan.reference}" are the rounds to the target over those of '
            f"{plan.reference} with the same seed: below 1 is faster; blank where either did not "
            "reach the target in one of the seeds."
        )
    return text


def _about_delta(plan: Plan) -> str:
    if plan.reference is None:
        return ""
    score = "score of its task" if plan.tasks else "accuracy"
    return (
        " Delta is the mean over clients, all alike, of 100 (a - b) / b: a client's last "
        f"{score} a against its b with {plan.reference} and the same seed, without clients whose b "
        "is 0 or that have no a or b."
    )


def _about_models(plan: Plan) -> str:
    said = unlike_models(plan.runs)
    return f" {said}" if said else ""


def left_out(rows: Sequence[Row]) -> list[str]:
    """Return whom delta leaves out, one sentence a row."""
    return [f"delta of {_name(row)}: {'; '.join(row.notes)}" for row in rows if row.notes]


def resting(rows: Sequence[Row]) -> list[str]:
    """Return on what the rows' scores rest where it is less than one would think, one a row."""
    return [f"{RESTS_ON}: {_name(row)}: {row.rests_on}" for row in rows if row.rests_on]


def _name(row: Row) -> str:
    return row.label + (f", {row.variant}" if row.variant else "")


def markdown(
    plan: Plan,
    heads: Sequence[str],
    body: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
) -> str:
    """Return the table for GitHub, and notes on its numbers below it."""
    texts = ("variant", "method", RESTS_ON)
    lines = markdown_table(heads, [":---" if h in texts else "---:" for h in heads], body)
    listed = ["", "Left out:", "", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join([f"# {plan.name}", "", *lines, "", explanation(plan), *listed, ""])


def csv_text(plan: Plan, rows: Sequence[Row]) -> str:
    """Return the table for programs: means and deviations as fractions and plain numbers.

    Where there is no number, the mean's cell says why in words and the deviation's is empty.
    """
    columns = shown_columns(plan, rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    measures = [f"{column}{part}" for column in columns for part in ("", "_std")]
    ends: list[object] = ["seeds_complete", "seeds_planned", "rests_on"]
    writer.writerow(["variant", "label", "method", *measures, *ends])
    for row in rows:
        cells: list[object] = []
        for column in columns:
            cell = _cell(row, column)
            if isinstance(cell, str):
                cells += [cell, ""]
            else:
                cells += [repr(cell.mean), "" if cell.std is None else repr(cell.std)]
        ends = [row.complete, row.planned, row.rests_on]
        writer.writerow([row.variant, row.label, row.method, *cells, *ends])
    return out.getvalue()
