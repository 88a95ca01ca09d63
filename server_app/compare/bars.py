"""The bar chart of two methods' difference, client by client."""

from __future__ import annotations

from server_app.compare.differences import ClientDifference, Difference, points, sign, statement
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
    percent,
    ticks,
)

MOST_NAMED = 25
"""Up to so many clients have their id below their bar."""

WIDEST = 34.0

CHART_STYLE = ".zero{stroke:var(--soft)}rect.equal{fill:var(--soft)}"


def bar_chart(found: Difference, first: str, second: str) -> str:
    """Draw one bar a client, the first method's gains on the left.

    Parameters
    ----------
    found : Difference
        What to draw.
    first, second : str
        Colour classes of the two methods; a bar has the colour of the better one.
    """
    if not found.clients:
        return empty(found.title, statement(found))
    rows = sorted(found.clients, key=lambda row: (-row.difference.mean, row.client))
    values = [row.difference.mean for row in rows]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.06 * (high - low) or 0.01
    plot = Plot(
        # Places 0 to n - 1 with half a place of room on both sides.
        Scale(-0.5, len(rows) - 0.5, LEFT + 4, RIGHT - 4),
        Scale(low - room * (low < 0), high + room, BOTTOM, TOP),
        f"{found.title}, difference of final {found.score} by client",
    )
    named = len(rows) <= MOST_NAMED
    plot.grid(
        [(place, str(row.client)) for place, row in enumerate(rows)] if named else [],
        [(t, f"{100 * t:+.4g}" if t else "0") for t in ticks(plot.y.low, plot.y.high)],
        "client" if named else f"{len(rows)} clients, sorted",
    )
    for place, row in enumerate(rows):
        _bar(plot, place, row, found, {1: first, -1: second, 0: "equal"})
    plot.parts.append(f'<path class="zero" d="M{LEFT} {plot.y(0):.1f}H{RIGHT}"/>')
    labels = ((first, found.first), (second, found.second))
    legend = [(f"k bar {css}", f"{label} is better") for css, label in labels]
    note = (
        f"{statement(found)}. Final {found.score} in percentage points, mean over the seeds that "
        "are complete for both."
    )
    return figure(found.title, note, legend, plot.render())


def _bar(
    plot: Plot, place: int, row: ClientDifference, found: Difference, colours: dict[int, str]
) -> None:
    value = row.difference.mean
    step = (plot.x.stop - plot.x.start) / (plot.x.high - plot.x.low)
    width = min(WIDEST, 0.78 * step)
    ends = sorted((plot.y(value), plot.y(0)))
    title = (
        f"client {row.client}: {points(value)} points ({found.first} {percent(row.first)}, "
        f"{found.second} {percent(row.second)}, {row.seeds} of {found.planned} seeds)"
    )
    plot.parts.append(
        f'<rect class="bar {colours[sign(value)]}" x="{plot.x(place) - width / 2:.1f}" '
        f'y="{ends[0]:.1f}" width="{width:.2f}" height="{max(ends[1] - ends[0], 0.8):.1f}">'
        f"<title>{esc(title)}</title></rect>"
    )
