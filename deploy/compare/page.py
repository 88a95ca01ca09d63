"""A comparison's page: accuracy over rounds, differences by client, the table, and its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from deploy.compare.cells import Spread
from deploy.compare.difference_chart import CHART_STYLE, difference_chart
from deploy.compare.differences import Difference
from deploy.compare.plan import Plan
from deploy.compare.progress import COMPLETE
from deploy.compare.results import Row
from server_app.report.html import PAGE, empty, figure, joined, render
from server_app.report.style import LOGO, STYLE
from server_app.report.svg import BOTTOM, LEFT, RIGHT, TOP, Plot, Scale, ticks

RESTS_ON = "rests on"
"""Heading of the column that says where scores rest on less than a reader would think."""

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

BODY = """\
{% macro cell(tag, text, at) -%}
{% set css = "left reason" if heads[at] == rests_on else "left" if at < names
  else "none" if text.startswith("not ") else "" %}
<{{ tag }} class="{{ css }}">{{ text }}</{{ tag }}>
{%- endmacro %}
<header><div class="eyebrow">{{ logo }}Wildflower comparison
<span class="pill {{ "completed" if done == runs | length else "running" }}">
{#- #}{{ done }} of {{ runs | length }} runs complete</span></div><h1>{{ name }}</h1></header>
<h2>{{ score }} over rounds</h2><div class="charts">{{ charts }}</div>
{% if differences %}
<h2>Differences by client</h2><div class="charts">{{ differences }}</div>
{% endif %}
<h2>Table</h2>{% for text in about %}<p class="note">{{ text }}</p>{% endfor %}
<div class="scroll"><table class="results"><thead><tr>
{% for text in heads %}{{ cell("th", text, loop.index0) }}{% endfor %}
</tr></thead><tbody>
{% for cells in body %}
<tr>{% for text in cells %}{{ cell("td", text, loop.index0) }}{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
<h2>Runs</h2>
<div class="scroll"><table><thead><tr><th class="left">run</th><th class="left">state</th>
<th class="left">note</th></tr></thead><tbody>
{% for run in runs %}
<tr><td class="left">
{%- if (run.directory / "report.html").is_file() %}
<a href="{{ run.name }}/report.html">{{ run.name }}</a>{% else %}{{ run.name }}{% endif %}</td>
<td class="left">{{ states.get(run.name, "") }}</td>
<td class="left reason">{{ notes.get(run.name, "") }}</td></tr>
{% endfor %}
</tbody></table></div>
<footer>Written by wildflower compare from the files of the run directories.</footer>"""


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
    colours = _colours(rows)
    filled = render(
        BODY,
        logo=Markup(LOGO),
        name=plan.name,
        runs=plan.runs,
        done=sum(states.get(run.name) == COMPLETE for run in plan.runs),
        score="Scores" if plan.tasks else "Accuracy",
        charts=charts(rows),
        differences=joined(difference_chart(d, colours[d.first], colours[d.second]) for d in found),
        about=notes_below,
        heads=heads,
        body=body,
        rests_on=RESTS_ON,
        names=2 if any(row.variant for row in rows) else 1,
        states=states,
        notes=notes,
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    style = Markup(STYLE + _STYLE)
    return render(PAGE, policy=policy, title=plan.name, style=style, script="", body=filled)


def charts(rows: Sequence[Row]) -> Markup:
    """Return one chart a variant and task; a method has the same colour in all of them."""
    colours = _colours(rows)
    drawn = []
    for variant in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == variant]
        names = list(dict.fromkeys(name for row in own for name in row.curves)) or ["accuracy"]
        title = variant or "All methods"
        drawn += [
            _chart(title if names == ["accuracy"] else f"{title}, {name}", name, own, colours)
            for name in names
        ]
    return joined(drawn)


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    labels = list(dict.fromkeys(row.label for row in rows))
    return {label: _colour(index) for index, label in enumerate(labels)}


def _colour(index: int) -> str:
    again = " again" if index >= len(PALETTE) else ""
    return f"q{index % len(PALETTE)}{again}"


def _chart(title: str, name: str, rows: Sequence[Row], colours: Mapping[str, str]) -> Markup:
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
        plot.area(upper, lower, f"area {css}")
    title = f"{label}: {100 * curve[-1][1].mean:.1f} % at the end"
    plot.line([(x, s.mean) for x, s in curve], css, title)


def _edges(value: Spread) -> tuple[float, float]:
    std = value.std or 0.0
    return max(0.0, value.mean - std), min(1.0, value.mean + std)


def _key(row: Row) -> str:
    seeds = "" if row.complete == row.planned else f" ({row.complete} of {row.planned} seeds)"
    return row.label + seeds
