"""The charts of accuracies and other scores: over rounds, over traffic, and by architecture."""

import math
from collections import defaultdict
from collections.abc import Sequence

from markupsafe import Markup

from data.tasks import UNBOUNDED
from server_app.formats import human, percent, size
from server_app.records.curves import Line, Point, TaskView, changes_of_clients, curve
from server_app.records.run_reader import Client, RunRecords
from server_app.records.scores import Measured, weighted_mean
from server_app.records.spending import Spent, spent_before
from server_app.report.html import empty, figure, render
from server_app.report.svg import BOTTOM, LEFT, RIGHT, TOP, XY, Plot, Scale, thin, ticks

MOST_CLIENT_LINES = 60
MOST_LINE_POINTS = 150
MOST_DOTS = 60
MOST_MODELS = 30
MOST_CHANGES = 40
COLOURS = 6


def colour_of_models(clients: Sequence[Client]) -> dict[str, str]:
    """Give each architecture a colour class; with more of them than colours all are grey."""
    models = list(dict.fromkeys(client.model for client in clients))
    many = len(models) > COLOURS
    return {model: "m9" if many else f"m{i}" for i, model in enumerate(models)}


def share_scale(values: Sequence[float]) -> Scale:
    """Return the vertical scale for shares: tenths that enclose the values, within 0..1.

    Values below 0, which R2 has, are enclosed down to -1; what is less is drawn there.
    """
    low = max(-1.0, math.floor(10 * min(values) + 1e-9) / 10)
    high = min(1.0, math.ceil(10 * max(values) - 1e-9) / 10)
    return Scale(low, max(high, low + 0.1), BOTTOM, TOP)


def round_ticks(scale: Scale, final_at: float | None) -> list[tuple[float, str]]:
    """Whole-numbered ticks; the closing evaluation of a "pre" run is labelled "final"."""
    marks = [(t, f"{t:.0f}") for t in ticks(scale.low, scale.high, 8, whole=True)]
    if final_at is None:
        return marks
    clear = [mark for mark in marks if scale(final_at) - scale(mark[0]) > 40]
    return [*clear, (final_at, "final")]


def _spread_out(clients: Sequence[int]) -> list[int]:
    """Choose the clients to draw, evenly over the ids, without looking at their results."""
    if len(clients) <= MOST_CLIENT_LINES:
        return list(clients)
    step = len(clients) / MOST_CLIENT_LINES
    return [clients[int(i * step)] for i in range(MOST_CLIENT_LINES)]


def _client_lines(line: Line) -> dict[int, list[XY]]:
    lines: dict[int, list[XY]] = defaultdict(list)
    for x, (_, values) in line.items():
        for client, (value, _) in values.items():
            lines[client].append((x, value))
    return dict(sorted(lines.items()))


def _extra_lines(view: TaskView) -> list[tuple[str, str, list[XY]]]:
    """(css, legend, points) of the other means: validation, the other phase, other scores."""
    other = "pre" if view.phase == "post" else "post"
    when = {"pre": "before", "post": "after"}[other]
    found = [
        ("val", "validation mean", curve(view.validations, view.phase)),
        ("other", f"mean {when} local training", curve(view.tests, other)),
        ("other", "participants' mean after local training", curve(view.trained, "post")),
    ]
    names = view.run.metrics["metric"].unique()
    parts = sorted(name for name in names if name.startswith(f"{view.metric}_"))
    for index, name in enumerate(parts[:3]):
        found.append((f"extra e{index}", f"{name} mean", curve(view.measured(name), view.phase)))
    return [
        (css, text, [(p.x, p.mean) for p in points])
        for css, text, points in found
        # The closing evaluation alone is already on the main line of its own metric.
        if any(p.label != "final" for p in points)
    ]


def _final_place(points: Sequence[Point]) -> float | None:
    return points[-1].x if points[-1].label == "final" and points[-1].phase == "pre" else None


def score_over_rounds(view: TaskView, scope: str) -> Markup:
    """Mean with its spread, every client a thin line, and the other measured scores."""
    title = f"{view.title} over rounds"
    points = view.points
    if not points:
        return empty(title, "Not evaluated.")
    lines = _client_lines(view.line)
    drawn = _spread_out(list(lines))
    extras = _extra_lines(view)
    upper = [(p.x, min(1.0, p.mean + p.std)) for p in points]
    least = -math.inf if view.metric in UNBOUNDED else 0.0
    lower = [(p.x, max(least, p.mean - p.std)) for p in points]
    values = [y for client in drawn for _, y in lines[client]]
    values += [y for _, y in upper + lower] + [y for _, _, line in extras for _, y in line]
    last = max(points[-1].x, points[0].x + 1)
    plot = Plot(Scale(points[0].x, last, LEFT + 8, RIGHT - 8), share_scale(values), title)
    plot.grid(round_ticks(plot.x, _final_place(points)), _share_ticks(plot.y), "round")
    plot.area(upper, lower, "band")
    changes = changes_of_clients(points)
    for point, text in changes[:MOST_CHANGES]:
        plot.rule(point.x, "change", text)
    _draw_clients(plot, view.run.clients, {client: lines[client] for client in drawn})
    for css, text, line in extras:
        plot.line(thin(line, 400), css, text)
    plot.line(thin([(p.x, p.mean) for p in points], 400), "mean")
    if len(points) <= MOST_DOTS:
        for p in points:
            plot.dot((p.x, p.mean), "mean", _point_title(p))
    when = "before" if view.phase == "pre" else "after"
    note = f"Measured {when} each round's local training. {scope}."
    if len(drawn) < len(lines):
        note += f" {len(drawn)} of {len(lines)} client lines are drawn, evenly over the ids."
    legend = [("k mean", "mean, weighted by examples"), ("k band", "± 1 standard deviation")]
    legend += [(f"k {css}", text) for css, text, _ in extras]
    if changes:
        first, times = changes[0][1], f"{len(changes)} times, first"
        note += f" The evaluated clients change {times if len(changes) > 1 else 'once,'} {first}."
        legend.append(("k change", "other clients from here on"))
    return figure(title, note, legend + _model_legend(view.run.clients), plot.render())


def _share_ticks(scale: Scale) -> list[tuple[float, str]]:
    return [(t, percent(t, 0)) for t in ticks(scale.low, scale.high, 5)]


def _point_title(point: Point) -> str:
    return (
        f"{point.label}: mean {percent(point.mean)} ± {percent(point.std)} "
        f"({point.clients} clients)"
    )


def _model_legend(clients: Sequence[Client]) -> list[tuple[str, str]]:
    colours = colour_of_models(clients)
    if len(colours) > COLOURS or not colours:
        return [("k m9", "one client")]
    return [(f"k {css}", model) for model, css in colours.items()]


def _draw_clients(plot: Plot, cards: Sequence[Client], lines: dict[int, list[XY]]) -> None:
    colours = colour_of_models(cards)
    models = {card.client: card.model for card in cards}
    for client, line in lines.items():
        model = models.get(client, "model not recorded")
        title = f"client {client} · {model} · last {percent(line[-1][1])}"
        plot.line(thin(line, MOST_LINE_POINTS), f"client {colours.get(model, 'm9')}", title)


def score_over_traffic(run: RunRecords, tasks: Sequence[TaskView]) -> Markup:
    """Draw each task's mean score against the bytes spent on training when it was measured."""
    several = len(tasks) > 1
    title = "Scores over traffic" if several else f"{tasks[0].title} over traffic"
    curves = [(view, view.points, spent_before(run, view.points)) for view in tasks if view.points]
    if not curves or run.traffic.empty:
        return empty(title, "Traffic was not recorded." if run.traffic.empty else "Not evaluated.")
    end = max(1.0, *(cost.bytes or 0.0 for _, _, spent in curves for cost in spent))
    values = [p.mean for _, points, _ in curves for p in points]
    plot = Plot(Scale(0, end, LEFT + 8, RIGHT - 20), share_scale(values), title)
    costs = [(t, size(t)) for t in ticks(0, end, 4)]
    plot.grid(costs, _share_ticks(plot.y), "bytes sent so far, both ways")
    legend = [] if several else [("k mean", "mean, weighted by examples")]
    for index, (view, points, spent) in enumerate(curves):
        css = ("mean", "mean")
        if several:
            css = (f"term m{index}", f"dot m{index}")
            legend.append((f"k m{index}", f"{view.name}, mean weighted by examples"))
        _draw_spending(plot, view if several else None, points, spent, css)
    note = "Training messages of all clients, up and down; evaluation is not counted."
    return figure(title, note, legend, plot.render())


def _draw_spending(
    plot: Plot, view: TaskView | None, points: Sequence[Point], spent: Sequence[Spent],
    css: tuple[str, str],
) -> None:  # fmt: skip
    line = [(cost.bytes or 0.0, p.mean) for cost, p in zip(spent, points, strict=True)]
    plot.line(thin(line, 400), css[0])
    if len(points) > MOST_DOTS:
        return
    for place, cost, p in zip(line, spent, points, strict=True):
        text = f"{view.name}, " if view else ""
        text += f"{_point_title(p)} after {size(cost.bytes)}, scalars: "
        text += f"{human(cost.up_scalars)} up, {human(cost.down_scalars)} down"
        plot.dot(place, css[1], text)


STRIPS = """\
<div class="strips">
{% for row in rows %}
<div class="name">{{ row.model }}<small>{{ row.about }}</small></div>
<div class="strip {{ row.css }}">
{% for client, value, _ in row.clients %}
<i style="left:{{ "%.1f" | format(100 * ([value, 0] | max)) }}%"
 title="client {{ client }}: {{ value | percent }}"></i>
{% endfor %}
{% if row.mean is not none %}
<b style="left:{{ "%.1f" | format(100 * ([row.mean, 0] | max)) }}%"></b>{% endif %}
</div><div class="value">{{ row.mean | percent }}</div>
{% endfor %}
<div class="scale"><span>0</span><span>{{ half }}</span><span>{{ whole }}</span></div></div>"""


def by_architecture(run: RunRecords, tasks: Sequence[TaskView]) -> Markup:
    """One row for each architecture of a task: its clients' last scores as dots, their mean."""
    several = len(tasks) > 1
    title = "Last score" if several else f"Last {tasks[0].name}"
    title += " by architecture"
    colours = colour_of_models(run.clients)
    rows, labels = [], []
    for view in tasks:
        line = list(view.line.values())
        models: dict[str, list[Client]] = defaultdict(list)
        for card in view.run.clients if line else ():
            models[card.model].append(card)
        labels += [line[-1][0]] if models else []
        rows += [
            _architecture_row(model, cards, line[-1][1], view if several else None)
            | {"css": colours[model]}
            for model, cards in models.items()
        ]
    if not rows:
        return empty(title, "Not evaluated." if run.clients else "The clients were not recorded.")
    label = " or ".join(dict.fromkeys(labels))
    note = f"One dot is one client ({label} evaluation); the bar is their weighted mean."
    if len(rows) > MOST_MODELS:
        note += f" First {MOST_MODELS} of {len(rows)} architectures."
    strips = render(STRIPS, rows=rows[:MOST_MODELS], half=percent(0.5, 0), whole=percent(1.0, 0))
    return figure(title, note, [], strips)


def _architecture_row(
    model: str, cards: Sequence[Client], last: Measured, view: TaskView | None
) -> dict[str, object]:
    """Return one row; it names the score where the chart has several."""
    own = [(card.client, *last[card.client]) for card in cards if card.client in last]
    sizes = sorted({card.parameters for card in cards if card.parameters is not None})
    parameters = f" · {human(sizes[0])} parameters" if len(sizes) == 1 and not view else ""
    plural = "client" if len(cards) == 1 else "clients"
    score = f"{view.name} · " if view else ""
    return {
        "model": model,
        "about": f"{score}{len(cards)} {plural}{parameters}",
        "clients": own,
        "mean": weighted_mean((value, examples) for _, value, examples in own),
    }
