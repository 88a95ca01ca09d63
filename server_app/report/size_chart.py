"""The histogram of the clients' sizes: how many clients have how many training examples."""

import itertools
import math
import statistics
from collections.abc import Sequence

from markupsafe import Markup

from server_app.formats import grouped, human
from server_app.records.run_reader import RunRecords
from server_app.report.html import figure
from server_app.report.svg import BOTTOM, LEFT, RIGHT, TOP, Plot, Scale, log_ticks, ticks

MOST_BINS = 24
#: Above this ratio of the largest to the smallest client, bins are equal on a logarithmic axis.
LOG_ABOVE = 30


def client_sizes(run: RunRecords) -> Markup:
    """Draw how many clients have how many training examples; nothing where that is unknown."""
    sizes = sorted(card.train_examples for card in run.clients if card.train_examples is not None)
    shown = [size for size in sizes if size]
    if not shown:
        return Markup("")
    log = shown[-1] > LOG_ABOVE * shown[0]
    edges = bin_edges(shown, log)
    # Sizes are whole, and a bin holds those from its first edge to just below its second.
    counts = [sum(low <= size < high for size in shown) for low, high in itertools.pairwise(edges)]
    top = max(counts)
    x = Scale(edges[0], edges[-1], LEFT + 8, RIGHT - 8, log)
    plot = Plot(x, Scale(0.0, top * 1.05, BOTTOM, TOP), "Clients by training examples")
    marks = log_ticks(edges[0], edges[-1]) if log else ticks(edges[0], edges[-1], 6, whole=True)
    plot.grid(
        [(t, human(t)) for t in marks],
        [(t, f"{t:.0f}") for t in ticks(0.0, top, min(5, top), whole=True)],
        "training examples",
    )
    for (low, high), count in zip(itertools.pairwise(edges), counts, strict=True):
        if count:
            start, width = x(low), x(high) - x(low)
            last = math.ceil(high) - 1
            span = f"{low:,.0f}" if last <= low else f"{math.ceil(low):,} to {last:,}"
            title = f"{span} examples: {count} client{'s' if count > 1 else ''}"
            plot.bar(start + 0.5, max(width - 1.0, 1.0), count, "bar m0", title)
    return figure("Client sizes", _note(sizes, log), [("k bar m0", "clients")], plot.render())


def bin_edges(sizes: Sequence[int], log: bool) -> list[float]:
    """Return the edges of equal bins around sorted positive sizes, about 2 n^(1/3) of them.

    Few clients get few bins, so that 3 clients are 3 bars and 1,000 a shape. The first edge is at
    or below the smallest size and the last one above the largest.
    """
    number = min(MOST_BINS, max(3, math.ceil(2 * len(sizes) ** (1 / 3))))
    low, high = float(sizes[0]), float(sizes[-1] + 1)
    if log:
        return [low * (high / low) ** (i / number) for i in range(number)] + [high]
    step = max(1.0, math.ceil((high - low) / number))
    first = math.floor(low / step) * step
    count = math.ceil((high - first) / step)
    return [first + i * step for i in range(count + 1)]


def _note(sizes: Sequence[int], log: bool) -> str:
    none = sizes.count(0)
    text = (
        f"{grouped(sizes[0])} to {grouped(sizes[-1])} training examples a client, median "
        f"{grouped(statistics.median(sizes))}, {grouped(sum(sizes))} in all."
    )
    text += f" {none} have none and are not drawn." if none else ""
    return text + (" Logarithmic axis." if log else "")
