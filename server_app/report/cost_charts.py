"""The charts of what a run cost: training loss, traffic, time, and all until an accuracy."""

from collections.abc import Sequence

from markupsafe import Markup

from server_app.formats import THIN, duration, percent, size
from server_app.records.curves import TaskView, losses, task_views
from server_app.records.run_reader import RunRecords
from server_app.records.spending import spent_before, traffic_by_round
from server_app.report.html import empty, figure, joined, render
from server_app.report.score_charts import round_ticks
from server_app.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    XY,
    Plot,
    Scale,
    log_ticks,
    thin,
    ticks,
)

MOST_BARS = 60
MOST_LOSS_TERMS = 6
MOST_POINTS = 400
#: Above this ratio of largest to smallest value a linear axis would flatten the small terms.
LOG_ABOVE = 30


def _round_scale(rounds: Sequence[float]) -> Scale:
    return Scale(min(rounds), max(*rounds, min(rounds) + 1), LEFT + 14, RIGHT - 14)


def loss_over_rounds(run: RunRecords) -> Markup:
    """Draw every loss term, the clients' mean weighted by examples, the server's as it is.

    Where clients have several tasks, each term has its own chart with one line for each task.
    """
    title = "Training loss"
    terms = losses(run)
    if not terms:
        return empty(title, "Not recorded.")
    tasks = [view.task for view in task_views(run)]
    if len(tasks) == 1:
        return _losses(title, dict(list(terms.items())[:MOST_LOSS_TERMS]), "")
    names = list(dict.fromkeys(name.partition(" · ")[0] for name in terms))
    names.sort(key=lambda name: name != "loss")
    return joined(
        _losses(
            title if name == "loss" else f"{title}, {name}",
            # A task has one colour in all charts, with or without this term.
            {key: terms.get(key, []) for key in (*(f"{name} · {t}" for t in tasks), name)},
            ", each task by itself",
        )
        for name in names[:MOST_LOSS_TERMS]
    )


def _losses(title: str, terms: dict[str, list[XY]], scope: str) -> Markup:
    values = [y for line in terms.values() for _, y in line]
    log = min(values) > 0 and max(values) / min(values) > LOG_ABOVE
    low = min(values) * 0.9 if log else min(0.0, *values)
    y = Scale(low, max(max(values) * 1.05, low + 1e-9), BOTTOM, TOP, log)
    plot = Plot(_round_scale([x for line in terms.values() for x, _ in line]), y, title)
    marks = log_ticks(y.low, y.high) if log else ticks(y.low, y.high)
    plot.grid(round_ticks(plot.x, None), [(t, f"{t:.4g}") for t in marks], "round")
    legend = []
    for index, (name, line) in enumerate(terms.items()):
        if not line:
            continue
        css = f"term m{index}"
        plot.line(thin(line, MOST_POINTS), css, name)
        if len(line) <= MOST_BARS:
            for x, value in line:
                plot.dot((x, value), f"dot m{index}", f"round {x:.0f}: {name} {value:.4g}", 2.6)
        legend.append((f"k {css}", name))
    note = f"Mean over the clients that trained, weighted by examples{scope}."
    return figure(title, note + (" Logarithmic axis." if log else ""), legend, plot.render())


def _pairs_of_bars(
    plot: Plot,
    rows: Sequence[tuple[float, float, float]],
    css: tuple[str, str],
    titles: Sequence[tuple[str, str]],
) -> None:
    """Draw two bars side by side for each row, or two lines where bars would be too thin."""
    if len(rows) > MOST_BARS:
        for index in (0, 1):
            line = [(row[0], row[index + 1]) for row in rows]
            plot.line(thin(line, MOST_POINTS), f"term {css[index]}")
        return
    room = (RIGHT - LEFT - 28) / max(len(rows) - 1, 1)
    width = min(11.0, room * 0.38)
    for (x, left, right), (left_title, right_title) in zip(rows, titles, strict=True):
        at = plot.x(x)
        plot.bar(at - width - 0.5, width, left, f"bar {css[0]}", left_title)
        plot.bar(at + 0.5, width, right, f"bar {css[1]}", right_title)


def traffic_per_round(run: RunRecords) -> Markup:
    """Draw training bytes of each round, up and down."""
    title = "Traffic per round"
    totals = traffic_by_round(run)[["up_bytes", "down_bytes"]]
    rows = [(float(number), up, down) for number, up, down in totals.itertuples() if up or down]
    if not rows:
        return empty(title, "Not recorded.")
    top = max(max(up, down) for _, up, down in rows) * 1.05
    plot = Plot(_round_scale([row[0] for row in rows]), Scale(0, top, BOTTOM, TOP), title)
    plot.grid(round_ticks(plot.x, None), [(t, size(t)) for t in ticks(0, top)], "round")
    titles = [
        (f"round {x:.0f}: {size(up)} up", f"round {x:.0f}: {size(down)} down")
        for x, up, down in rows
    ]
    _pairs_of_bars(plot, rows, ("up", "down"), titles)
    legend = [("k bar up", "uplink, clients to server"), ("k bar down", "downlink")]
    return figure(title, "Bytes of the real training messages, all clients.", legend, plot.render())


def cumulative_traffic(run: RunRecords) -> Markup:
    """Draw the running totals of uplink, downlink, and everything that is not training."""
    title = "Cumulative traffic"
    totals = traffic_by_round(run).cumsum()
    if totals.empty:
        return empty(title, "Not recorded.")
    other = totals["other_up_bytes"] + totals["other_down_bytes"]
    lines = [
        [(float(number), amount) for number, amount in amounts.items()]
        for amounts in (totals["up_bytes"], totals["down_bytes"], other)
    ]
    top = max(line[-1][1] for line in lines) * 1.05 or 1.0
    plot = Plot(_round_scale([x for x, _ in lines[0]]), Scale(0, top, BOTTOM, TOP), title)
    plot.grid(round_ticks(plot.x, None), [(t, size(t)) for t in ticks(0, top)], "round")
    names = ("uplink", "downlink", "evaluation and registration")
    legend = []
    for line, css, name in zip(lines, ("up", "down", "rest"), names, strict=True):
        plot.line(thin(line, MOST_POINTS), f"term {css}", f"{name}: {size(line[-1][1])} in all")
        legend.append((f"k term {css}", f"{name}, {size(line[-1][1])}"))
    return figure(title, "Bytes since the start, all clients.", legend, plot.render())


def time_per_round(run: RunRecords) -> Markup:
    """Draw wall seconds of each round beside the clients' summed compute seconds."""
    title = "Time per round"
    times = run.rounds[["round", "seconds", "client_compute_s"]].dropna()
    rows = [(float(number), wall, compute) for _, number, wall, compute in times.itertuples()]
    if not rows:
        return empty(title, "Not recorded.")
    top = max(max(wall, compute) for _, wall, compute in rows) * 1.05 or 1.0
    plot = Plot(_round_scale([row[0] for row in rows]), Scale(0, top, BOTTOM, TOP), title)
    marks = [(t, f"{t:.4g}{THIN}s") for t in ticks(0, top)]
    plot.grid(round_ticks(plot.x, None), marks, "round")
    titles = [
        (f"round {x:.0f}: {duration(wall)} wall", f"round {x:.0f}: {duration(compute)} compute")
        for x, wall, compute in rows
    ]
    _pairs_of_bars(plot, rows, ("wall", "compute"), titles)
    note = "Compute is summed over clients; parallel workers can push it above the wall time."
    legend = [("k bar wall", "wall"), ("k bar compute", "client compute")]
    return figure(title, note, legend, plot.render())


COSTS = """\
<figure><figcaption><h3>Cost to reach {{ article }} {{ view.name }}</h3>
<p>All training before the first evaluation whose mean is at or above the level: rounds, scalars and
bytes of its messages, floating-point operations of its clients.</p></figcaption>
<div class="wide"><table class="plain"><thead><tr><th>{{ view.metric }}</th><th>rounds</th>
<th>scalars up</th><th>scalars down</th><th>bytes</th><th>FLOPs</th></tr></thead><tbody>
{% for level, label, cost in rows %}
<tr><th scope=row>{{ level }}</th><td title="{{ label }} evaluation">{{ cost.rounds }}</td>
{%- for amount in (cost.up_scalars, cost.down_scalars) %}<td>{{ amount | human }}</td>{% endfor %}
<td>{{ cost.bytes | size }}</td><td>{{ cost.flops | human }}</td></tr>
{% endfor %}
</tbody></table></div></figure>"""


def cost_to_reach(run: RunRecords, view: TaskView) -> Markup:
    """Table: the first evaluation at or above a level, and what training had cost until then.

    The score is that of one task; the costs are those of all clients.
    """
    points = view.points
    best = max((point.mean for point in points), default=0.0)
    hits = []
    for level in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99):
        hit = next((point for point in points if point.mean >= level), None)
        if hit is None or level <= points[0].mean or level > best:
            continue  # reached from the start, or never: nothing to tell
        hits.append((level, hit))
    costs = spent_before(run, [hit for _, hit in hits])
    rows = [
        (percent(level, 0), hit.label, cost) for (level, hit), cost in zip(hits, costs, strict=True)
    ]
    article = "an" if view.name == "accuracy" else "a"
    return render(COSTS, view=view, article=article, rows=rows) if rows else Markup("")
