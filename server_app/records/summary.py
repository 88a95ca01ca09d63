"""summary.json: what came out of a run, computed from its records alone."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.records.basis import basis_of
from server_app.records.local_run import change_against_local_run
from server_app.records.privacy_ledger import privacy_summary
from server_app.records.run_reader import RunRecords, read_run
from server_app.records.scores import Scores, main_scores, task_scores, weighted_mean
from server_app.records.server_score import server_score
from server_app.records.spending import traffic_by_round
from strategies.base.run_config import RunConfig

_MEANS = ("final", "trained", "best", "best_round", "best_phase", "best_by")


def summarise(directory: Path, run: RunConfig, clients: int) -> dict[str, Any]:
    """Compute the summary from the CSV files of a run directory.

    A run to compare with (`local-run`) that cannot be used leaves `delta` empty and
    `delta_reason` saying why: a finished run is not lost because of another one.
    """
    records = read_run(directory)
    scores = main_scores(records)
    with_accuracy = scores.of(lambda client: client.metric == "accuracy")
    by_model = _accuracy_by_model(records, with_accuracy)
    over_models = {"mean_over_models": statistics.fmean(by_model.values()) if by_model else None}
    model, split = run.chosen_method.evaluated_model, run.test_split
    delta, reason = change_against_local_run(run, scores)
    of_server = server_score(records, run.chosen_method)
    privacy = privacy_summary(directory, run.privacy)
    return {
        "method": run.method,
        "dataset": run.dataset,
        "clients": clients,
        "rounds": int(records.rounds["round"].max()) if len(records.rounds) else 0,
        "seed": run.seed,
        "accuracy": _accuracy(with_accuracy, run) | over_models,
        "accuracy_by_model": by_model,
        "scores": {
            task: task_scores(scores.of_task(task), metric) for task, metric in scores.tasks.items()
        },
        "rests_on": {
            task: basis_of(records, scores.of_task(task), run.num_rounds, model, split).as_dict()
            for task in scores.tasks
        },
        **({} if of_server is None else {"server": of_server}),
        "delta": delta,
        "delta_reason": reason,
        "traffic": _traffic(records),
        "time": _time(records),
        "clients_failed": records.clients_failed,
        "quarantined": records.quarantined,
        **({} if privacy is None else {"privacy": privacy}),
    }


def as_json(summary: Mapping[str, Any]) -> str:
    """Return the text of summary.json; JSON has no NaN and no infinity, so null stands for them."""
    return json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _accuracy(scores: Scores, run: RunConfig) -> dict[str, Any]:
    """Return what came out for all clients whose main score is accuracy."""
    found = task_scores(scores, "accuracy")
    final = [value for value, _ in scores.final().values()]
    return {
        **{key: found[key] for key in _MEANS if key in found},
        "mean_over_clients": statistics.fmean(final) if final else None,
        "std_over_clients": statistics.pstdev(final) if final else None,
        "worst_client": min(final) if final else None,
        "clients_evaluated": len(final),
        "model": run.chosen_method.evaluated_model,
        "test_split": run.test_split,
    }


def _accuracy_by_model(records: RunRecords, scores: Scores) -> dict[str, float]:
    """Return the last evaluation's mean over the clients of each model, weighted by examples.

    Models come in the order of their first clients; one of which no client was evaluated is left
    out.
    """
    final = scores.final()
    found: dict[str, float] = {}
    for model in dict.fromkeys(card.model for card in records.clients):
        own = [card.client for card in records.clients if card.model == model]
        mean = weighted_mean(final[client] for client in own if client in final)
        if mean is not None:
            found[model] = mean
    return found


def _traffic(records: RunRecords) -> dict[str, int]:
    """Return scalars of the fullest round and bytes of the run, training apart from evaluation."""
    by_round = traffic_by_round(records)
    total, fullest = by_round.sum(), by_round.max().fillna(0.0)
    return {
        "uplink_scalars_per_round": int(fullest["up_scalars"]),
        "downlink_scalars_per_round": int(fullest["down_scalars"]),
        "uplink_bytes": int(total["up_bytes"]),
        "downlink_bytes": int(total["down_bytes"]),
        "evaluation_uplink_bytes": int(total["other_up_bytes"]),
        "evaluation_downlink_bytes": int(total["other_down_bytes"]),
    }


def _time(records: RunRecords) -> dict[str, float | None]:
    """Return seconds of all rounds, their median, and client work over wall time x workers."""
    rounds = records.rounds["seconds"].dropna()
    seconds, compute, workers = (
        [*records.rounds[column].fillna(0.0), *records.closing[column].fillna(0.0)]
        for column in ("seconds", "client_compute_s", "workers")
    )
    capacity = sum(s * w for s, w in zip(seconds, workers, strict=True))
    return {
        "total_s": round(sum(seconds), 3),
        "round_s_median": (round(statistics.median(rounds), 3) if len(rounds) else None),
        "client_compute_s": round(sum(compute), 3),
        "efficiency": round(sum(compute) / capacity, 3) if capacity else None,
    }
