"""The relative change of clients' last scores against those of another run."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from server_app.records.client_tasks import ClientTask
from server_app.records.scores import Scores
from strategies.base.options import ConfigError

MOST_NAMED = 10
MOST_LEFT_OUT = 5


@dataclasses.dataclass(frozen=True)
class RelativeChange:
    """Relative change of the last main scores against a reference run, in percent.

    100 (a_n - a_n^ref) / a_n^ref for each client n, as FedMuscle's tables have it;
    every client counts alike, and clients of unlike metrics may be averaged, because the changes
    have no unit.

    Attributes
    ----------
    by_client : dict of int to float
        Of every client that could be compared.
    by_task : dict of str to float
        Means over the clients of each task.
    left_out : dict of int to str
        Clients that could not be compared, and why.
    """

    by_client: Mapping[int, float]
    by_task: Mapping[str, float]
    left_out: Mapping[int, str]

    @property
    def percent(self) -> float | None:
        """Mean over the clients; None without any."""
        return statistics.fmean(self.by_client.values()) if self.by_client else None


def relative_changes(own: Scores, reference: Scores, name: str) -> RelativeChange:
    """Compare two runs client by client, each by its main score in the last evaluation.

    Parameters
    ----------
    own, reference : Scores
        Of both runs.
    name : str
        Of the reference, for messages.

    Raises
    ------
    ConfigError
        If clients of both runs differ in task or data.
    """
    refuse_unlike(own.clients, reference.clients, name)
    after, before = own.last(), reference.last()
    changes: dict[int, float] = {}
    left_out: dict[int, str] = {}
    for client in sorted({*own.clients, *reference.clients}):
        if client not in after:
            left_out[client] = "no score in the last evaluation"
        elif client not in before:
            left_out[client] = f"no score in the last evaluation of {name}"
        elif before[client] <= 0:  # of an R2 below 0 a share has no meaning
            left_out[client] = f"its score in {name} is {before[client]:.4g}"
        else:
            changes[client] = 100 * (after[client] - before[client]) / before[client]
    by_task = {}
    for task in own.tasks:
        values = [change for i, change in changes.items() if own.clients[i].task == task]
        if values:
            by_task[task] = statistics.fmean(values)
    return RelativeChange(changes, by_task, left_out)


def refuse_unlike(
    own: Mapping[int, ClientTask], reference: Mapping[int, ClientTask], name: str
) -> None:
    """Raise `ConfigError` naming every client that has another task or other data there."""
    problems = []
    for client in sorted(own.keys() & reference.keys()):
        here, there = own[client], reference[client]
        if (here.task, here.metric) != (there.task, there.metric):
            problems.append(f"client {client}: task {here.task} here, {there.task} there")
        elif here.data_hash != there.data_hash:
            problems.append(f"client {client}: other data")
    if problems:
        raise ConfigError(
            f"the clients are not those of run {name!r}: {named(problems)}; compare runs of the "
            "same data, partition, seeds of the split and tasks"
        )


def named(items: Iterable[str]) -> str:
    """Join the first few of many texts."""
    items = list(items)
    more = f"; and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return "; ".join(items[:MOST_NAMED]) + more


def some_left_out(left_out: Mapping[Any, str]) -> str:
    """Name the first few clients that could not be compared, and why."""
    names = [f"client {client} ({why})" for client, why in list(left_out.items())[:MOST_LEFT_OUT]]
    return ", ".join(names) + (" …" if len(left_out) > len(names) else "")
