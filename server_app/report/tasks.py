"""The report's view of a run's tasks: what is averaged, and what is not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from server_app.records.scores import ClientTask, is_plain, task_name, tasks_in_order
from server_app.report.data import RunData


@dataclass(frozen=True)
class View:
    """The clients of one task, whose scores may be averaged.

    Attributes
    ----------
    task : str
        The task; "" where one mean accuracy tells of all clients.
    metric : str
        What its clients are measured by.
    run : RunData
        The run with these clients and what they measured alone; traffic is that of all clients.
    """

    task: str
    metric: str
    run: RunData

    @property
    def name(self) -> str:
        """What its clients' score is called: "accuracy", "multilabel map"."""
        return f"{self.task} {self.metric}" if self.task else self.metric

    @property
    def title(self) -> str:
        """The name as the beginning of a heading."""
        return self.name[0].upper() + self.name[1:]


def client_tasks(run: RunData) -> dict[int, ClientTask]:
    """Return the task of every client that has a card."""
    return {c.client: ClientTask(task_name(c.task), c.metric) for c in run.clients}


def views(run: RunData) -> list[View]:
    """Return the run's tasks in the order of their first clients; one for a run without tasks."""
    clients = client_tasks(run)
    tasks = tasks_in_order(clients)
    if is_plain(tasks):
        return [View("", ClientTask().metric, run)]
    return [View(task, metric, _only(run, clients, task)) for task, metric in tasks.items()]


def _only(run: RunData, clients: dict[int, ClientTask], task: str) -> RunData:
    # A client without a card has the task of a run without tasks, as in the records.
    return dataclasses.replace(
        run,
        clients=[card for card in run.clients if clients[card.client].task == task],
        metrics=[
            row
            for row in run.metrics
            if row.client is not None and clients.get(row.client, ClientTask()).task == task
        ],
    )


def has_tasks(run: RunData) -> bool:
    """Say whether the cards name anything else than what a run without tasks does."""
    return any(card.task != ClientTask().task for card in run.clients)
