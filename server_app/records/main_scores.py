"""Main scores of a whole run, and the relative change against another run, client by client."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from server_app.records.recorder import EVALUATION_PHASES, iterate_rows, read_tasks
from server_app.records.scores import ClientTask, tasks_in_order
from strategies.base.options import ConfigError

Evaluation = tuple[int, str]
"""Round and phase of an evaluation, in the order they were made."""

Evaluations = dict[Evaluation, dict[int, tuple[float, int]]]
"""Evaluation -> client -> (value, examples)."""

MOST_NAMED = 10


@dataclasses.dataclass(frozen=True)
class Scores:
    """Every client's main scores, evaluation by evaluation, in the order of the run.

    Attributes
    ----------
    clients : dict of int to ClientTask
        All that have a client information or a score, by id.
    tests, validations : Evaluations
        Main scores on the test and on the validation split.
    """

    clients: Mapping[int, ClientTask]
    tests: Evaluations
    validations: Evaluations

    @property
    def tasks(self) -> dict[str, str]:
        """The metric of every task, in the order of the tasks' first clients."""
        return tasks_in_order(self.clients)

    def of(self, chosen: Callable[[ClientTask], bool]) -> Scores:
        """Return the scores of some clients alone; an evaluation without them is left out."""
        clients = {i: task for i, task in self.clients.items() if chosen(task)}
        return Scores(clients, _only(self.tests, clients), _only(self.validations, clients))

    def of_task(self, task: str) -> Scores:
        """Return the scores of one task's clients alone."""
        return self.of(lambda client: client.task == task)

    def last(self) -> dict[int, float]:
        """Return the scores of each task's last evaluation by client.

        A client that this one lacks has none, whatever it had before.
        """
        found: dict[int, float] = {}
        for task in self.tasks:
            tests = self.of_task(task).tests
            if tests:
                found |= {client: value for client, (value, _) in tests[list(tests)[-1]].items()}
        return dict(sorted(found.items()))


def read_scores(directory: Path) -> Scores:
    """Read the main scores of a run directory."""
    infos = read_tasks(directory)
    seen: dict[int, ClientTask] = {}
    tests: Evaluations = {}
    validations: Evaluations = {}
    for row in iterate_rows(directory / "metrics.csv"):
        if row["client"] == "server" or row["phase"] not in EVALUATION_PHASES:
            continue
        client = int(row["client"])
        task = infos.get(client, ClientTask())
        for table, name in ((tests, task.metric), (validations, f"validation_{task.metric}")):
            if row["metric"] == name:
                at = int(row["round"]), row["phase"]
                table.setdefault(at, {})[client] = float(row["value"]), int(row["examples"])
                seen[client] = task
    clients = dict(sorted((seen | infos).items()))
    return Scores(clients, _in_order(tests), _in_order(validations))


def _in_order(found: Evaluations) -> Evaluations:
    return dict(sorted(found.items(), key=lambda i: (i[0][0], EVALUATION_PHASES.index(i[0][1]))))


def _only(found: Evaluations, clients: Mapping[int, ClientTask]) -> Evaluations:
    kept = {
        at: {client: pair for client, pair in values.items() if client in clients}
        for at, values in found.items()
    }
    return {at: values for at, values in kept.items() if values}


@dataclasses.dataclass(frozen=True)
class Delta:
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


def relative_changes(own: Scores, reference: Scores, name: str) -> Delta:
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
        elif before[client] == 0:
            left_out[client] = f"its score in {name} is 0"
        else:
            changes[client] = 100 * (after[client] - before[client]) / before[client]
    by_task = {}
    for task in own.tasks:
        values = [change for i, change in changes.items() if own.clients[i].task == task]
        if values:
            by_task[task] = statistics.fmean(values)
    return Delta(changes, by_task, left_out)


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
