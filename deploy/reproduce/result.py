"""The paper's cells beside those of the runs: every cell of a preset, run or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from deploy.compare.cells import NOT_RUN, Spread
from deploy.compare.plan import Plan
from deploy.compare.results import Row
from deploy.reproduce.preset import Preset, Published, why_absent
from deploy.reproduce.quantities import Quantity, quantity

NO_CELL = "not in the text"
OTHER_SCALE = "not compared"
HEADS = ("method", "quantity", "paper", "here", "difference", "spread over seeds", "seeds")


@dataclasses.dataclass(frozen=True)
class ResultPage:
    """All that a page says.

    Attributes
    ----------
    title, scale : str
        The preset's name, and in words at which scale it ran.
    comparable : bool
        Whether the numbers are those of the paper's scale.
    source : str
        Paper, table, and what was read.
    cells : list of list of str
        Under `HEADS`, one line a cell.
    claims, gaps : sequence of str
        What the paper's text says without a cell, and what of its setting could not be had.
    """

    title: str
    scale: str
    comparable: bool
    source: str
    cells: list[list[str]]
    claims: Sequence[str]
    gaps: Sequence[str]


def result_of(preset: Preset, scale: str, plan: Plan, rows: Sequence[Row]) -> ResultPage:
    """Set the rows of a comparison beside the paper's cells."""
    comparable = scale == "full"
    source = preset.source
    return ResultPage(
        title=preset.name,
        scale=preset.scale(scale).words,
        comparable=comparable,
        source=f"{source.paper}, {source.table}; from {source.text}.",
        cells=[
            line
            for label in (*preset.labels, *preset.absent)
            for line in _lines(preset, label, comparable, plan, rows)
        ],
        claims=preset.claims,
        gaps=preset.gaps,
    )


def quantities_of(preset: Preset, label: str) -> list[str]:
    """Return a method's own quantities; without cells of its own, what the others have."""
    own = list(preset.expected.get(label, {}))
    others = dict.fromkeys(name for cells in preset.expected.values() for name in cells)
    shared = [name for name in others if name in ("final", "best", "delta")]
    return own or shared or ["final"]


def _lines(
    preset: Preset, label: str, comparable: bool, plan: Plan, rows: Sequence[Row]
) -> list[list[str]]:
    row = next((row for row in rows if row.label == label), None)
    lines = []
    for name in quantities_of(preset, label):
        kind = quantity(name)
        published = preset.expected.get(label, {}).get(name)
        if row is not None and row.complete:
            cell = kind.take(plan, row, rows)
        else:
            cell = _why_not(preset, label, row)
        seeds = f"{row.complete} of {row.planned}" if row else "0"
        lines.append([
            label, kind.heading, _paper(kind, published), *_here(kind, published, cell, comparable),
            seeds,
        ])  # fmt: skip
    return lines


def _why_not(preset: Preset, label: str, row: Row | None) -> str:
    if label in preset.absent:
        return f"{NOT_RUN}: {why_absent(label)}"
    return f"{NOT_RUN}: not asked for" if row is None else NOT_RUN


def _paper(kind: Quantity, published: Published | None) -> str:
    if published is None:
        return NO_CELL
    text = f"{published.value:,.{kind.decimals}f}"
    return text if published.spread is None else f"{text} ± {published.spread:,.{kind.decimals}f}"


def _here(
    kind: Quantity, published: Published | None, cell: Spread | str, comparable: bool
) -> tuple[str, str, str]:
    """Return the texts of here, difference and spread."""
    if isinstance(cell, str):
        return cell, "", ""
    shown = f"{cell.mean:,.{kind.decimals}f}"
    spread = "one seed" if cell.std is None else f"{cell.std:,.{kind.decimals}f}"
    if not comparable:
        return shown, OTHER_SCALE, spread
    if published is None:
        return shown, "", spread
    return shown, f"{cell.mean - published.value:+,.{kind.decimals}f}", spread
