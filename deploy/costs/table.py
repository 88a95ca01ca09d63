"""The cost of a method's round, and the table that sets it beside the published one."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence

from deploy.costs.published import DIMENSION, PUBLISHED, ROUNDING, WORDS

CLIENTS, CLASSES = 10, 100

LARGE_BYTES = 10_000
"""Payloads above this size must be within 2 % of their declared scalars."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one round of a method moves, over all clients.

    Attributes
    ----------
    method : str
        Its name.
    uplink_scalars, downlink_scalars, uplink_bytes, downlink_bytes : int, optional
        Of the fullest round; None if the method did not run.
    overhead : float, optional
        The largest (bytes / (4 x scalars) - 1) of a message above `LARGE_BYTES`; None without one.
    note : str
        Why the method did not run, or nothing.
    """

    method: str
    uplink_scalars: int | None = None
    downlink_scalars: int | None = None
    uplink_bytes: int | None = None
    downlink_bytes: int | None = None
    overhead: float | None = None
    note: str = ""


def render(costs: Sequence[Cost], pairs: int) -> str:
    """Return the table and the words about it as text."""
    header = (
        "method", "up scalars", "paper x1000", "broadcast scalars", "paper x1000", "up bytes",
        "broadcast bytes", "wire / 4 x scalars", "compared with the paper",
    )  # fmt: skip
    rows = [_row(cost, pairs) for cost in costs]
    lines = [
        f"One round over {CLIENTS} clients: {CLASSES} classes, d = {DIMENSION}, Dirichlet(0.1), "
        f"{pairs} (client, class) pairs (the paper's split: 502).",
        "The fullest of two rounds, in the paper's scalars and in bytes of the real records. The "
        f"last but one column is the farthest off of all messages above {LARGE_BYTES:,} bytes.",
        "",
        *aligned([header, *rows]),
        "",
    ]
    shown = [f"{c.method}: {WORDS[c.method]}." for c in costs if c.method in WORDS]
    return "\n".join(lines + [textwrap.fill(text, 100, subsequent_indent="  ") for text in shown])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows of cells: the first and last to the left, those between to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(w) for cell, w in zip(row[1:-1], widths[1:-1], strict=True)),
                row[-1],
            ]
        )
        for row in rows
    ]


def _row(cost: Cost, pairs: int) -> tuple[str, ...]:
    published = PUBLISHED.get(cost.method)
    shown = ("-", "-") if published is None else tuple(f"{n / 1000:.2f}" for n in published)
    if cost.note or cost.uplink_scalars is None or cost.downlink_scalars is None:
        return cost.method, "-", shown[0], "-", shown[1], "-", "-", "-", cost.note
    return (
        cost.method,
        f"{cost.uplink_scalars:,}", shown[0],
        f"{cost.downlink_scalars:,}", shown[1],
        f"{cost.uplink_bytes:,}", f"{cost.downlink_bytes:,}",
        "-" if cost.overhead is None else f"{100 * cost.overhead:+.2f} %",
        compare_with_paper(cost, pairs),
    )  # fmt: skip


def compare_with_paper(cost: Cost, pairs: int) -> str:
    """Say in a word how a cost and the published one stand to each other."""
    published = PUBLISHED.get(cost.method)
    if published is None:
        return "not in the paper's table"
    words = []
    for way, ours, theirs in (
        ("up", cost.uplink_scalars, published.uplink),
        ("down", cost.downlink_scalars, published.downlink),
    ):
        if ours is not None and abs(ours - theirs) <= ROUNDING:
            words.append(f"{way} equal")
        elif way == "up" and cost.method in ("fedgh", "fedproto") and ours == pairs * DIMENSION:
            words.append(f"up = {DIMENSION} x {pairs} pairs")
        else:
            words.append(f"{way} differs")
    return ", ".join(words) + ("; see below" if "differs" in " ".join(words) else "")
