"""What a client learns and is measured by: the terms in which records, tables and pages speak.

A client's main score is the metric of its task: `accuracy`, `map` (mean average precision) or
`miou` (mean intersection over union), see `data.tasks.METRIC_OF`; on validation examples it is
`validation_<metric>`. Means over clients are taken within one task only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from data.tasks import METRIC_OF, task_name

MOST_NAMED = 5


@dataclass(frozen=True)
class ClientTask:
    """What a client's info says of its task; the defaults are those of a run without tasks.

    Attributes
    ----------
    task : str
        One of `data.tasks.TASKS`; data set and classes are left out.
    metric : str
        Name of its main score.
    data_hash : str
        Equal exactly for the same examples in the same splits; "" where there is no info.
    """

    task: str = "classification"
    metric: str = METRIC_OF["classification"]
    data_hash: str = ""


@dataclass(frozen=True)
class TaskScore:
    """One task's mean main score in one round, weighted by examples.

    Attributes
    ----------
    task, metric : str
        What was measured.
    mean : float, optional
        None if none of its clients was evaluated.
    clients : int
        How many were.
    """

    task: str
    metric: str
    mean: float | None
    clients: int


def client_tasks(infos: Iterable[Mapping[str, str]]) -> dict[int, ClientTask]:
    """Return every client's task from the rows of clients.csv, in the order of the ids.

    Rows without the columns, as runs had before there were tasks, mean classification.
    """
    return dict(sorted((int(row["client"]), client_task(row)) for row in infos))


def client_task(info: Mapping[str, str]) -> ClientTask:
    """Return the task in a row of clients.csv."""
    return ClientTask(
        task_name(info.get("task") or ClientTask.task),
        info.get("metric") or ClientTask.metric,
        info.get("data_hash") or "",
    )


def tasks_in_order(clients: Mapping[int, ClientTask]) -> dict[str, str]:
    """Return the metric of every task, in the order of the tasks' first clients."""
    found: dict[str, str] = {}
    for client in sorted(clients):
        found.setdefault(clients[client].task, clients[client].metric)
    return found


def is_plain(tasks: Mapping[str, str]) -> bool:
    """Say whether one mean accuracy tells of all clients: one task, measured by accuracy."""
    return list(tasks.values()) in ([], ["accuracy"])


def named_clients(clients: Sequence[int]) -> str:
    """Name the first few clients: "client 3", "clients 0, 1, 2, 3, 4 and 7 more"."""
    names = ", ".join(map(str, clients[:MOST_NAMED]))
    more = f" and {len(clients) - MOST_NAMED} more" if len(clients) > MOST_NAMED else ""
    return f"client{'s' if len(clients) > 1 else ''} {names}{more}"
