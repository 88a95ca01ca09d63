"""What every client went through in a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from server_app.records.curves import TaskView, placed, task_views
from server_app.records.run_reader import RunRecords


@dataclass
class History:
    """What one client went through; None is never measured."""

    rounds_trained: int = 0
    first: float | None = None
    best: float | None = None
    final: float | None = None
    up_bytes: float | None = None
    down_bytes: float | None = None
    failures: int = 0


def histories(run: RunRecords) -> tuple[dict[int, History], bool]:
    """Follow every client through the run, by the score of its task.

    Returns
    -------
    The history by client id, and whether "best" is the score in the client's best validation
    round (True) or merely the highest score seen, for want of validation values (False).
    """
    found: dict[int, History] = defaultdict(History)
    by_validation = [_add_scores(view, found) for view in task_views(run)]
    trained = run.metrics[run.metrics["phase"] == "train"]
    for client, rounds in trained.groupby("client")["round"].nunique().items():
        found[client].rounds_trained = int(rounds)
    training = run.traffic[run.traffic["purpose"] == "train"].dropna(subset="bytes")
    sums = training.groupby(["client", "direction"])["bytes"].sum()
    for (client, direction), amount in sums.items():
        setattr(found[client], "up_bytes" if direction == "uplink" else "down_bytes", amount)
    for client, times in run.failures["client"].value_counts().items():
        if client.lstrip("-").isdecimal():
            found[int(client)].failures = int(times)
    return dict(found), all(by_validation)


def _add_scores(view: TaskView, found: dict[int, History]) -> bool:
    """Add the scores of one task; say whether "best" could be chosen by validation values."""
    rule = placed(view.validations, view.phase)
    best: dict[int, tuple[float, float]] = {}
    for x, (_, values) in view.line.items():
        chosen_by = (rule[x][1] if x in rule else {}) if rule else values
        for client, (value, _) in values.items():
            entry = found[client]
            entry.first = value if entry.first is None else entry.first
            entry.final = value
            by = chosen_by.get(client)
            if by is not None and (client not in best or by[0] > best[client][0]):
                best[client] = (by[0], value)
                entry.best = value
    return bool(rule)
