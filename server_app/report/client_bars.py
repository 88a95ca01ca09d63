"""Charts of one signed number a client, as bars from a line at zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from server_app.report.svg import BOTTOM, LEFT, RIGHT, TOP, Plot, Scale, ticks

MOST_NAMED = 25
"""Up to so many clients have their id below their bar."""

WIDEST = 34.0


class Bar(NamedTuple):
    """One client's bar: its number, its colour class, and what pointing at it says."""

    client: int
    value: float
    css: str
    title: str


def client_bars(
    bars: Sequence[Bar],
    title: str,
    *,
    tick: Callable[[float], str],
    axis: str,
    order: str,
    least: float,
) -> Markup:
    """Draw the plot; the figure around it, with title and legend, is the caller's.

    Parameters
    ----------
    bars : sequence of Bar
        At least one, from left to right.
    title : str
        What the plot shows, for readers who cannot see it.
    tick : callable
        Writes a value of the vertical axis other than 0.
    axis : str
        Class of the line at zero.
    order : str
        How clients are ordered where they are too many to be named: "by id".
    least : float
        Room above and below where all values are 0.
    """
    values = [bar.value for bar in bars]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.06 * (high - low) or least
    plot = Plot(
        # Places 0 to n - 1 with half a place of room on both sides.
        Scale(-0.5, len(bars) - 0.5, LEFT + 4, RIGHT - 4),
        Scale(low - room * (low < 0), high + room, BOTTOM, TOP),
        title,
    )
    named = len(bars) <= MOST_NAMED
    plot.grid(
        [(place, str(bar.client)) for place, bar in enumerate(bars)] if named else [],
        [(t, tick(t) if t else "0") for t in ticks(plot.y.low, plot.y.high)],
        "client" if named else f"{len(bars)} clients, {order}",
    )
    width = min(WIDEST, 0.78 * (plot.x.stop - plot.x.start) / (plot.x.high - plot.x.low))
    for place, bar in enumerate(bars):
        plot.bar(plot.x(place) - width / 2, width, bar.value, f"bar {bar.css}", bar.title)
    plot.draw('<path class="{}" d="M{} {:.1f}H{}"/>', axis, LEFT, plot.y(0), RIGHT)
    return plot.render()
