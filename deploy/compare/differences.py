"""Final accuracies (main scores) of two methods, subtracted client by client."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from deploy.compare.cells import Spread, spread
from deploy.compare.plan import Plan
from deploy.compare.results import Row
from server_app.formats import NOT_EVALUATED
from server_app.records.client_tasks import ClientTask, is_plain, tasks_in_order

NOT_COMPLETE = "not complete"

NOISE = 1e-12
"""Smaller differences are what averaging equal accuracies over seeds may leave."""


@dataclasses.dataclass(frozen=True)
class ClientDifference:
    """One client, averaged over the seeds in which both methods evaluated it.

    Attributes
    ----------
    client : int
        Its id.
    first, second : float
        Its mean final main score with either method.
    difference : Spread
        First minus second.
    seeds : int
        How many seeds these are.
    """

    client: int
    first: float
    second: float
    difference: Spread
    seeds: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """One pair of methods in one variant.

    Attributes
    ----------
    first, second : str
        The methods' labels.
    variant : str
        Its label, "" in a comparison without variants.
    complete : (int, int)
        Complete seeds of either method.
    shared, planned : int
        Seeds complete for both, and seeds there shall be.
    clients : list of ClientDifference
        In the order of the ids.
    missing : list of int
        Clients that no shared seed evaluated with both methods.
    tasks : dict of int to ClientTask
        By client.
    """

    first: str
    second: str
    variant: str
    complete: tuple[int, int]
    shared: int
    planned: int
    clients: Sequence[ClientDifference]
    missing: Sequence[int]
    tasks: Mapping[int, ClientTask]

    @property
    def metrics(self) -> dict[str, str]:
        """The metric of every task; differences of several have no common mean."""
        return tasks_in_order(self.tasks)

    @property
    def score(self) -> str:
        """What is subtracted: "accuracy" or, with other tasks, "score"."""
        return "accuracy" if is_plain(self.metrics) else "score"

    @property
    def title(self) -> str:
        """What is subtracted from what, and where."""
        where = f", {self.variant}" if self.variant else ""
        return f"{self.first} minus {self.second}{where}"


def differences(plan: Plan, rows: Sequence[Row]) -> list[Difference]:
    """Subtract what the comparison asks for: every pair in every variant."""
    by_place = {(row.variant, row.label): row for row in rows}
    variants = list(dict.fromkeys(row.variant for row in rows))
    return [
        _difference(by_place[variant, first], by_place[variant, second], plan.clients)
        for first, second in plan.differences
        for variant in variants
    ]


def _difference(first: Row, second: Row, clients: int) -> Difference:
    shared = [seed for seed in first.finals if seed in second.finals]
    known = {client for row in (first, second) for seed in shared for client in row.finals[seed]}
    found, missing = [], []
    # Clients are numbered from 0; the numbers a run recorded count all the same.
    for client in sorted(known | (set(range(clients)) if shared else set())):
        pairs = [
            (first.finals[seed][client], second.finals[seed][client])
            for seed in shared
            if client in first.finals[seed] and client in second.finals[seed]
        ]
        if pairs:
            found.append(_client(client, pairs))
        else:
            missing.append(client)
    return Difference(
        first=first.label,
        second=second.label,
        variant=first.variant,
        complete=(first.complete, second.complete),
        shared=len(shared),
        planned=first.planned,
        clients=found,
        missing=missing,
        tasks={**second.tasks, **first.tasks},
    )


def _client(client: int, pairs: Sequence[tuple[float, float]]) -> ClientDifference:
    return ClientDifference(
        client=client,
        first=spread(a for a, _ in pairs).mean,
        second=spread(b for _, b in pairs).mean,
        difference=spread(a - b for a, b in pairs),
        seeds=len(pairs),
    )


def sign(value: float) -> int:
    """Return 1, -1, or 0 for what is nothing but rounding."""
    return 0 if abs(value) < NOISE else 1 if value > 0 else -1


def points(value: float) -> str:
    """Write a difference of accuracies in percentage points, with its sign."""
    return f"{100 * value:+.2f}" if sign(value) else "0.00"


def statement(found: Difference) -> str:
    """Say in one line which of the two is better on how many clients."""
    first, second, planned = found.first, found.second, found.planned
    if not found.shared:
        return (
            f"{NOT_COMPLETE}: no seed is complete for both "
            f"({first} {found.complete[0]} of {planned}, {second} {found.complete[1]} of {planned})"
        )
    if not found.clients:
        return NOT_EVALUATED
    signs = [sign(client.difference.mean) for client in found.clients]
    equal = f", equal on {signs.count(0)}" if 0 in signs else ""
    text = f"{first} is better on {signs.count(1)} of {len(signs)} clients{equal}"
    if len(found.metrics) < 2:
        mean = spread(client.difference.mean for client in found.clients).mean
        text += f", mean difference {points(mean)} points"
    if found.shared < planned:
        text += f" ({found.shared} of {planned} seeds)"
    if found.missing:
        names = ", ".join(map(str, found.missing[:10])) + ("…" if len(found.missing) > 10 else "")
        text += f"; {NOT_EVALUATED}: client {names}"
    return text


def tables(found: Sequence[Difference]) -> str:
    """Return the differences for GitHub, one table a pair and variant; "" if none are asked for."""
    if not found:
        return ""
    score = "accuracy" if all(difference.score == "accuracy" for difference in found) else "score"
    intro = (
        f"Final {score} of each client on its test split, averaged over the seeds that are "
        "complete for both methods; ± is the sample standard deviation of the difference over "
        "these seeds."
    )
    parts = ["", "## Differences by client", "", intro, ""]
    for difference in found:
        parts += [f"### {difference.title}", "", f"{statement(difference)}.", ""]
        if difference.clients:
            parts += [*_table(difference), ""]
    return "\n".join(parts)


def _table(found: Difference) -> list[str]:
    heads = ("client", f"{found.first} %", f"{found.second} %", "difference, points", "seeds")
    body = [
        (
            _client_name(found, row.client),
            f"{100 * row.first:.2f}",
            f"{100 * row.second:.2f}",
            points(row.difference.mean)
            + ("" if row.difference.std is None else f" ± {100 * row.difference.std:.2f}"),
            f"{row.seeds} of {found.planned}",
        )
        for row in found.clients
    ]
    return markdown_table(heads, ("---:",) * len(heads), body)


def markdown_table(
    heads: Sequence[str], rule: Sequence[str], body: Sequence[Sequence[str]]
) -> list[str]:
    """Return the lines of a table for GitHub; `rule` says how each column is aligned."""
    return ["| " + " | ".join(cells) + " |" for cells in (heads, rule, *body)]


def _client_name(found: Difference, client: int) -> str:
    """Return a client's id, with its metric where not all have one and the same."""
    if found.score == "accuracy" or client not in found.tasks:
        return str(client)
    return f"{client} ({found.tasks[client].metric})"
