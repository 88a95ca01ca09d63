"""The chart of the relative changes against a Local run, client by client."""

from server_app.report.data import RunData, section
from server_app.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Plot,
    Scale,
    change,
    esc,
    figure,
    ticks,
)
from server_app.report.tasks import client_tasks
from server_app.scores import ClientTask, tasks_in_order

MOST_NAMED = 25
"""Up to so many clients have their id below their bar."""

WIDEST = 34.0
COLOURS = 6


def change_by_client(run: RunData) -> str:
    """Draw one bar a client, coloured by its task; "" without a comparison."""
    delta = section(run.summary, "delta")
    changes = {int(client): value for client, value in section(delta, "by_client").items()}
    if not changes:
        return ""
    cards = client_tasks(run)
    tasks = {client: cards.get(client, ClientTask()).task for client in changes}
    order = list(tasks_in_order({i: ClientTask(task) for i, task in tasks.items()}))
    colours = {task: f"m{index % COLOURS}" for index, task in enumerate(order)}
    low, high = min(0.0, *changes.values()), max(0.0, *changes.values())
    room = 0.06 * (high - low) or 1.0
    title = f"Change against {delta.get('against')}"
    plot = Plot(
        # Places 0 to n - 1 with half a place of room on both sides.
        Scale(-0.5, len(changes) - 0.5, LEFT + 4, RIGHT - 4),
        Scale(low - room * (low < 0), high + room, BOTTOM, TOP),
        f"{title}, by client",
    )
    named = len(changes) <= MOST_NAMED
    plot.grid(
        [(place, str(client)) for place, client in enumerate(changes)] if named else [],
        [(t, f"{t:+.4g}\u202f%" if t else "0") for t in ticks(plot.y.low, plot.y.high)],
        "client" if named else f"{len(changes)} clients, by id",
    )
    for place, (client, value) in enumerate(changes.items()):
        _bar(plot, place, value, colours[tasks[client]], f"client {client}: {change(value)}")
    plot.parts.append(f'<path class="axis" d="M{LEFT} {plot.y(0):.1f}H{RIGHT}"/>')
    note = "Each client's last score, relative to its score in the Local run."
    return figure(title, note, [(f"k bar {colours[t]}", t) for t in order], plot.render())


def _bar(plot: Plot, place: int, value: float, css: str, title: str) -> None:
    width = min(WIDEST, 0.78 * (plot.x.stop - plot.x.start) / (plot.x.high - plot.x.low))
    top, end = sorted((plot.y(value), plot.y(0)))
    plot.parts.append(
        f'<rect class="bar {css}" x="{plot.x(place) - width / 2:.1f}" y="{top:.1f}" '
        f'width="{width:.2f}" height="{max(end - top, 0.8):.1f}"><title>{esc(title)}</title></rect>'
    )
