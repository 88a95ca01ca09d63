"""A comparison's page: accuracy over rounds, differences by client, the table, and its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.compare.bars import CHART_STYLE, bar_chart
from deploy.compare.cells import Spread
from deploy.compare.differences import Difference
from deploy.compare.plan import Plan
from deploy.compare.progress import COMPLETE
from deploy.compare.results import Row
from server_app.report.style import LOGO, STYLE
from server_app.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Plot,
    Scale,
    empty,
    esc,
    figure,
    ticks,
)

PALETTE = (
    "#4169c4", "#c8553d", "#c08a1e", "#4f8a5f", "#8a63ac", "#2b8a97", "#b0508a", "#7a8b2a",
    "#8c6b4f", "#6c7a89", "#d0763a", "#3f9fb5",
)  # fmt: skip
"""One colour a method, each readable on light and on dark paper; then they repeat, dashed."""

_STYLE = (
    "".join(f".q{i}{{--c:{colour}}}" for i, colour in enumerate(PALETTE))
    + ".area{fill:var(--c);opacity:.14}.again{stroke-dasharray:6 4}"
    ".k.again{border-top-style:dashed}"
    ".results th,.results td.none{white-space:normal;min-width:92px}"
    ".results th{vertical-align:bottom;line-height:1.3}" + CHART_STYLE
)


def page(
    plan: Plan,
    states: Mapping[str, str],
    notes: Mapping[str, str],
    rows: Sequence[Row],
    heads: Sequence[str],
    body: Sequence[Sequence[str]],
    notes_below: Sequence[str],
    found: Sequence[Difference] = (),
) -> str:
    """Return the whole page as HTML; it makes no request of any kind."""
    done = sum(states.get(run.name) == COMPLETE for run in plan.runs)
    css = "completed" if done == len(plan.runs) else "running"
    names = 2 if any(row.variant for row in rows) else 1
    about = "".join(f'<p class="note">{esc(text)}</p>' for text in notes_below)
    score = "Scores" if plan.tasks else "Accuracy"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{esc(plan.name)} · Wildflower</title><style>{STYLE}{_STYLE}</style></head>"
        f'<body><main>\n<header><div class="eyebrow">{LOGO}Wildflower comparison '
        f'<span class="pill {css}">{done} of {len(plan.runs)} runs complete</span></div>'
        f"<h1>{esc(plan.name)}</h1></header>\n"
        f'<h2>{score} over rounds</h2><div class="charts">{charts(rows)}</div>\n'
        f"{_differences(found, rows)}"
        f"<h2>Table</h2>{about}{_table(heads, body, names)}\n"
        f"<h2>Runs</h2>{_runs(plan, states, notes)}\n"
        "<footer>Written by wildflower compare from the files of the run directories.</footer>\n"
        "</main></body></html>\n"
    )


def charts(rows: Sequence[Row]) -> str:
    """Return one chart a variant and task; a method has the same colour in all of them."""
    colours = _colours(rows)
    drawn = ""
    for variant in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == variant]
        names = list(dict.fromkeys(name for row in own for name in row.curves)) or ["accuracy"]
        title = variant or "All methods"
        drawn += "".join(
            _chart(title if names == ["accuracy"] else f"{title}, {name}", name, own, colours)
            for name in names
        )
    return drawn


def _differences(found: Sequence[Difference], rows: Sequence[Row]) -> str:
    """Return the section of the differences by client, if any were asked for."""
    if not found:
        return ""
    colours = _colours(rows)
    drawn = "".join(bar_chart(d, colours[d.first], colours[d.second]) for d in found)
    return f'<h2>Differences by client</h2><div class="charts">{drawn}</div>\n'


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    labels = list(dict.fromkeys(row.label for row in rows))
    return {label: _colour(index) for index, label in enumerate(labels)}


def _colour(index: int) -> str:
    again = " again" if index >= len(PALETTE) else ""
    return f"q{index % len(PALETTE)}{again}"


def _chart(title: str, name: str, rows: Sequence[Row], colours: Mapping[str, str]) -> str:
    drawn = {row.label: row for row in rows if row.curves.get(name)}
    curves = {label: row.curves[name] for label, row in drawn.items()}
    if not drawn:
        return empty(title, "no complete run so far")
    places = [x for curve in curves.values() for x, _ in curve]
    heights = [y for curve in curves.values() for _, s in curve for y in _edges(s)]
    low, high = max(0.0, min(heights) - 0.02), min(1.0, max(heights) + 0.02)
    plot = Plot(
        Scale(min(places), max(places), LEFT, RIGHT), Scale(low, high, BOTTOM, TOP),
        f"Mean {name} over rounds, {title}",
    )  # fmt: skip
    plot.grid(
        [(x, f"{x:g}") for x in ticks(min(places), max(places), whole=True)],
        [(y, f"{100 * y:g} %") for y in ticks(low, high)],
        "round",
    )
    for label, curve in curves.items():
        _draw(plot, label, curve, colours[label])
    legend = [(f"k {colours[label]}", _key(row)) for label, row in drawn.items()]
    whose = "all clients" if name == "accuracy" else "the clients of this task"
    note = (
        f"mean {name} over {whose}, weighted by test examples; line: mean over seeds, "
        "area: ± one standard deviation over seeds"
    )
    return figure(title, note, legend, plot.render())


def _draw(plot: Plot, label: str, curve: Sequence[tuple[float, Spread]], css: str) -> None:
    if any(s.std for _, s in curve):
        upper = [(x, _edges(s)[1]) for x, s in curve]
        lower = [(x, _edges(s)[0]) for x, s in curve]
        data = plot.path([*upper, *reversed(lower)])
        plot.parts.append(f'<path class="area {css}" d="{data}Z"/>')
    title = f"{label}: {100 * curve[-1][1].mean:.1f} % at the end"
    plot.line([(x, s.mean) for x, s in curve], css, title)


def _edges(value: Spread) -> tuple[float, float]:
    std = value.std or 0.0
    return max(0.0, value.mean - std), min(1.0, value.mean + std)


def _key(row: Row) -> str:
    seeds = "" if row.complete == row.planned else f" ({row.complete} of {row.planned} seeds)"
    return row.label + seeds


def _table(heads: Sequence[str], body: Sequence[Sequence[str]], names: int) -> str:
    """Return the table; its first `names` columns are names, the others numbers."""
    head = "".join(_cell("th", text, index < names) for index, text in enumerate(heads))
    lines = "".join(
        "<tr>" + "".join(_cell("td", text, i < names) for i, text in enumerate(cells)) + "</tr>"
        for cells in body
    )
    return (
        f'<div class="scroll"><table class="results"><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(tag: str, text: str, is_name: bool) -> str:
    css = "left" if is_name else "none" if text.startswith("not ") else ""
    return f'<{tag} class="{css}">{esc(text)}</{tag}>'


def _runs(plan: Plan, states: Mapping[str, str], notes: Mapping[str, str]) -> str:
    lines = []
    for run in plan.runs:
        name = esc(run.name)
        if (run.directory / "report.html").is_file():
            name = f'<a href="{name}/report.html">{name}</a>'
        note = notes.get(run.name, "")
        lines.append(
            f'<tr><td class="left">{name}</td><td class="left">{esc(states.get(run.name, ""))}</td>'
            f'<td class="left reason">{esc(note)}</td></tr>'
        )
    return (
        '<div class="scroll"><table><thead><tr><th class="left">run</th><th class="left">state</th>'
        f'<th class="left">note</th></tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )
