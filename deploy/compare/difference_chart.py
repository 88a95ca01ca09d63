"""The bar chart of two methods' difference, client by client."""

from __future__ import annotations

from markupsafe import Markup

from deploy.compare.differences import ClientDifference, Difference, points, sign, statement
from server_app.formats import percent
from server_app.report.client_bars import Bar, client_bars
from server_app.report.html import empty, figure

CHART_STYLE = ".zero{stroke:var(--soft)}rect.equal{fill:var(--soft)}"


def difference_chart(found: Difference, first: str, second: str) -> Markup:
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
    colours = {1: first, -1: second, 0: "equal"}
    bars = [
        Bar(row.client, row.difference.mean, colours[sign(row.difference.mean)], _title(row, found))
        for row in rows
    ]
    drawn = client_bars(
        bars, f"{found.title}, difference of final {found.score} by client",
        tick=lambda t: f"{100 * t:+.4g}", axis="zero", order="sorted", least=0.01,
    )  # fmt: skip
    labels = ((first, found.first), (second, found.second))
    legend = [(f"k bar {css}", f"{label} is better") for css, label in labels]
    note = (
        f"{statement(found)}. Final {found.score} in percentage points, mean over the seeds that "
        "are complete for both."
    )
    return figure(found.title, note, legend, drawn)


def _title(row: ClientDifference, found: Difference) -> str:
    return (
        f"client {row.client}: {points(row.difference.mean)} points ({found.first} "
        f"{percent(row.first)}, {found.second} {percent(row.second)}, {row.seeds} of "
        f"{found.planned} seeds)"
    )
