"""What a cell of a paper's table is, and the same taken from a comparison's row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from deploy.compare.cells import NOT_COMPARABLE, NOT_REACHED, NOT_RUN, Spread, spread
from deploy.compare.plan import Plan
from deploy.compare.results import RATIO_FIELD, SERVER_PREFIX, Row
from strategies.base.options import ConfigError
from strategies.base.suggestions import nearest

Cell = Spread | str
"""A number over the seeds, or words for why there is none."""

CLIENT = re.compile(r"client-(\d+)")
SERVER = re.compile(r"server-([a-z0-9_]+)")
BETTER = re.compile(r"clients-better-than-([a-z0-9-]+)")


@dataclasses.dataclass(frozen=True)
class Quantity:
    """Heading, decimals to show, and how it is found.

    Attributes
    ----------
    heading : str
        In words, with its unit.
    decimals : int
        Of a number on the page.
    take : callable
        From the plan, the method's row and all rows to the cell.
    """

    heading: str
    decimals: int
    take: Callable[[Plan, Row, Sequence[Row]], Cell]


def _column(name: str, factor: float = 1.0) -> Callable[[Plan, Row, Sequence[Row]], Cell]:
    return lambda plan, row, rows: _scaled(row.cells.get(name, NOT_RUN), factor)


def _scaled(cell: Cell, factor: float) -> Cell:
    if isinstance(cell, str):
        return cell
    return Spread(cell.mean * factor, None if cell.std is None else cell.std * factor)


def _speed(plan: Plan, row: Row, rows: Sequence[Row]) -> Cell:
    cell = row.cells.get(RATIO_FIELD, NOT_RUN)
    if isinstance(cell, str):  # empty where either did not reach the target
        return cell or NOT_REACHED
    return Spread(1 / cell.mean, None) if cell.mean else NOT_COMPARABLE


def _uplink_of_a_client(plan: Plan, row: Row, rows: Sequence[Row]) -> Cell:
    share = plan.runs[0].run.sample_fraction
    participants = max(1, round(plan.clients * share))
    return _scaled(row.cells.get("uplink_per_round", NOT_RUN), 1 / participants)


def _client(number: int) -> Callable[[Plan, Row, Sequence[Row]], Cell]:
    def take(plan: Plan, row: Row, rows: Sequence[Row]) -> Cell:
        scores = [100 * final[number] for final in row.finals.values() if number in final]
        return spread(scores) if scores else NOT_RUN

    return take


def _better_than(label: str) -> Callable[[Plan, Row, Sequence[Row]], Cell]:
    def take(plan: Plan, row: Row, rows: Sequence[Row]) -> Cell:
        other = next((r for r in rows if r.label == label), None)
        shares = []
        for seed, own in row.finals.items():
            base = other.finals.get(seed, {}) if other is not None else {}
            if both := own.keys() & base.keys():
                shares.append(100 * sum(own[c] > base[c] for c in both) / len(both))
        return spread(shares) if shares else f"{NOT_RUN}: {label} is missing"

    return take


QUANTITIES: dict[str, Quantity] = {
    "final": Quantity("accuracy %, last evaluation", 2, _column("final", 100)),
    "best": Quantity("accuracy %, best round", 2, _column("best", 100)),
    "delta": Quantity("change against the reference, %", 2, _column("delta")),
    "rounds-to-target": Quantity("rounds to the target", 0, _column("rounds_to_target")),
    "speed": Quantity("reference's rounds to the target over own", 1, _speed),
    "uplink-a-round": Quantity("scalars up a round", 0, _column("uplink_per_round")),
    "downlink-a-round": Quantity("scalars down a round", 0, _column("downlink_per_round")),
    "uplink-of-a-client": Quantity("scalars up a round and client", 0, _uplink_of_a_client),
}
"""By the name that `expected` uses; besides, `client-N` is client N's last score in percent,
`server-NAME` the last one of that name of the server's own model, and `clients-better-than-LABEL`
the percentage of clients whose last score is above that method's."""


def quantity(name: str) -> Quantity:
    """Return a quantity by name."""
    if found := CLIENT.fullmatch(name):
        return Quantity(f"client {found[1]}, last score %", 2, _client(int(found[1])))
    if found := SERVER.fullmatch(name):
        take = _column(SERVER_PREFIX + found[1], 100)
        return Quantity(f"server's model, {found[1]} %", 2, take)
    if found := BETTER.fullmatch(name):
        return Quantity(f"clients better than {found[1]}, %", 1, _better_than(found[1]))
    return QUANTITIES[name]


def check_quantity(name: str, where: str) -> None:
    """Raise `ConfigError` for a name that is no quantity."""
    if name in QUANTITIES or any(p.fullmatch(name) for p in (CLIENT, SERVER, BETTER)):
        return
    near = nearest(name, QUANTITIES, cutoff=0.4)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(QUANTITIES)}, client-N"
    raise ConfigError(f"{where}: {name!r} is no quantity; {hint}")
