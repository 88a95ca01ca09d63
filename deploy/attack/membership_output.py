"""What membership inference came to: a table, and a CSV file with a row a client."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from deploy.attack.comparison import Ahead, ahead_of, ahead_text, verdict_on
from deploy.attack.membership import ATTACK, Membership, controls_of
from server_app.console import table
from server_app.records.csv_files import write_rows

CHANCE = "chance"


def text_of(found: Sequence[Membership]) -> str:
    """Return the mean areas beside their controls, and the verdict."""
    areas = {name: [item.areas[name] for item in found] for name in (ATTACK, *controls_of(found))}
    areas[CHANCE] = [0.5] * len(found)
    ahead: dict[str, Ahead] = {
        name: ahead_of(areas[ATTACK], values) for name, values in areas.items() if name != ATTACK
    }
    rows = [
        (name, f"{statistics.fmean(values):.3f}", ahead_text(ahead.get(name), 3))
        for name, values in areas.items()
    ]
    return "\n".join(
        [
            f"{len(found)} clients, {sum(item.members for item in found)} members and as many "
            "others of the same classes",
            table(("loss on what was sent", "area under the curve", "attack ahead"), rows),
            verdict_on(ahead, "tell members from others as well"),
        ]
    )


def write_csv(path: Path, found: Sequence[Membership]) -> None:
    """Write a row for every client."""
    names = [ATTACK, *controls_of(found)]
    header = ["client", "members", *(f"area_{name.split()[0]}" for name in names)]
    rows = (
        [item.client, item.members, *(f"{item.areas[name]:.6f}" for name in names)]
        for item in found
    )
    write_rows(path, header, rows)
