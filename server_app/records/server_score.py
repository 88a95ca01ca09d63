"""The score of the server's own model, beside the clients': what metrics.csv has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from server_app.records.run_reader import RunRecords
    from strategies.base.method import Method

SCORE_PHASE = "server"
"""Phase of the rows: the server's model is measured after a round's aggregation."""


def server_scores(run: RunRecords) -> dict[str, dict[int, float]]:
    """Return what the server measured of its own model: by name, the value in every round."""
    rows = _rows(run)
    found: dict[str, dict[int, float]] = {}
    for name, number, value in zip(rows["metric"], rows["round"], rows["value"], strict=True):
        found.setdefault(name, {})[int(number)] = float(value)
    return {name: dict(sorted(values.items())) for name, values in sorted(found.items())}


def _rows(run: RunRecords) -> pd.DataFrame:
    return run.server_metrics[run.server_metrics["phase"] == SCORE_PHASE]


def server_score(run: RunRecords, method: Method) -> dict[str, Any] | None:
    """Return what summary.json says of the server's model; None where it was not scored.

    Its best round is the one with the highest score itself, so optimistic: the server has no
    validation examples.
    """
    scores = server_scores(run)
    values = scores.get(method.server_score)
    if not values:
        return None
    best = max(values, key=lambda number: values[number])
    return {
        "metric": method.server_score,
        "on": method.server_scored_on,
        "examples": int(_rows(run)["examples"].iloc[-1]),
        "final": values[max(values)],
        "final_round": max(values),
        "best": values[best],
        "best_round": best,
        "best_by": "test",
        "finals": {name: each[max(each)] for name, each in scores.items()},
    }
