"""Scores of clients: who measured what in which evaluation, and the means over clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from server_app.records.client_tasks import ClientTask, tasks_in_order
from server_app.records.csv_files import EVALUATION_PHASES
from strategies.base.messages import TRAINED, VALIDATION

if TYPE_CHECKING:
    import pandas as pd

    from server_app.records.run_reader import RunRecords

Evaluation = tuple[int, str]
"""Round and phase of an evaluation, in the order they were made."""

Measured = dict[int, tuple[float, float]]
"""Client -> (value, examples)."""

Evaluations = dict[Evaluation, Measured]


def weighted_mean(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean of values weighted by examples, or None if there are no examples."""
    pairs = list(pairs)
    total = sum(examples for _, examples in pairs)
    return sum(value * examples for value, examples in pairs) / total if total else None


def evaluations(rows: pd.DataFrame) -> Evaluations:
    """Group one client metric's rows by evaluation, in the order of the run.

    Values on no example and values of training are left out.
    """
    kept = rows[rows["phase"].isin(EVALUATION_PHASES) & (rows["examples"] > 0)]
    found: Evaluations = {}
    columns = ("round", "phase", "client", "value", "examples")
    for number, phase, client, value, examples in zip(*(kept[c] for c in columns), strict=True):
        found.setdefault((number, phase), {})[client] = value, examples
    return dict(sorted(found.items(), key=lambda i: (i[0][0], EVALUATION_PHASES.index(i[0][1]))))


@dataclasses.dataclass(frozen=True)
class Scores:
    """Every client's main scores, evaluation by evaluation, in the order of the run.

    Attributes
    ----------
    clients : dict of int to ClientTask
        All that have a client information or a score, by id.
    tests, validations : Evaluations
        Main scores on the test and on the validation split.
    trained : Evaluations
        Participants' main scores on the test split right after their training, where `tests` were
        measured before it (`evaluate-when = "both"`).
    """

    clients: Mapping[int, ClientTask]
    tests: Evaluations
    validations: Evaluations
    trained: Evaluations = dataclasses.field(default_factory=dict)

    @property
    def tasks(self) -> dict[str, str]:
        """The metric of every task, in the order of the tasks' first clients."""
        return tasks_in_order(self.clients)

    def of(self, chosen: Callable[[ClientTask], bool]) -> Scores:
        """Return the scores of some clients alone; an evaluation without them is left out."""
        clients = {i: task for i, task in self.clients.items() if chosen(task)}
        found = (_only(kind, clients) for kind in (self.tests, self.validations, self.trained))
        return Scores(clients, *found)

    def of_task(self, task: str) -> Scores:
        """Return the scores of one task's clients alone."""
        return self.of(lambda client: client.task == task)

    def final(self) -> Measured:
        """Return what the last evaluation measured; nothing without one."""
        return _last_of(self.tests)

    def last(self) -> dict[int, float]:
        """Return the scores of each task's last evaluation by client.

        A client that this one lacks has none, whatever it had before.
        """
        found: dict[int, float] = {}
        for task in self.tasks:
            found |= {client: value for client, (value, _) in self.of_task(task).final().items()}
        return dict(sorted(found.items()))


def main_scores(run: RunRecords) -> Scores:
    """Return the main scores of a run, each client's by the metric of its task."""
    metrics, tasks = run.metrics, run.tasks
    names = metrics["client"].map({i: task.metric for i, task in tasks.items()}).astype(object)
    found = (
        evaluations(metrics[metrics["metric"] == p + names]) for p in ("", VALIDATION, TRAINED)
    )
    return Scores(tasks, *found)


def _last_of(found: Evaluations) -> Measured:
    return found[list(found)[-1]] if found else {}


def _only(found: Evaluations, clients: Mapping[int, ClientTask]) -> Evaluations:
    kept = {
        at: {client: pair for client, pair in values.items() if client in clients}
        for at, values in found.items()
    }
    return {at: values for at, values in kept.items() if values}


def task_scores(scores: Scores, metric: str) -> dict[str, Any]:
    """Return what came out of one task: means over its clients, weighted by examples.

    "trained" is there only where it was measured: the mean over the last participants.
    """
    best, by = best_evaluation(scores)
    trained = weighted_mean(_last_of(scores.trained).values())
    return {
        "metric": metric,
        "final": weighted_mean(scores.final().values()),
        **({} if trained is None else {"trained": trained}),
        "best": weighted_mean(scores.tests[best].values()) if best else None,
        "best_round": best[0] if best else None,
        "best_phase": best[1] if best else None,
        "best_by": by,
        "clients": len(scores.final()),
    }


def comparable(scores: Scores) -> list[Evaluation]:
    """Return the evaluations of the very clients that the last one has, in the order of the run.

    A mean over other clients, before one joined late or while one was away, is another quantity:
    the best of all would be the best set of clients.
    """
    return [at for at, values in scores.tests.items() if values.keys() == scores.final().keys()]


def best_evaluation(scores: Scores) -> tuple[Evaluation | None, str]:
    """Choose the best evaluation among the comparable ones, and say by what.

    Returns
    -------
    The evaluation, None without any, and "validation", or "test" where the last evaluation has no
    validation scores. The first of equals: the earliest round that is as good as any.
    """
    candidates = comparable(scores)
    chosen_by, rule = scores.tests, "test"
    if scores.validations and (not candidates or candidates[-1] in scores.validations):
        chosen_by, rule = scores.validations, "validation"
        own = {*chosen_by.get(candidates[-1], ())} if candidates else set()
        candidates = [at for at in candidates if chosen_by.get(at, {}).keys() == own]
    means = {at: weighted_mean(chosen_by[at].values()) or 0.0 for at in candidates}
    return max(means, key=lambda at: means[at], default=None), rule
