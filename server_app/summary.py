"""summary.json: what came out of a run, computed from its records alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from server_app.recorder import EVALUATION_PHASES, iterate_rows, read_rows, weighted_mean
from strategies.base.run_config import RunConfig

Evaluation = tuple[int, str]
"""Round and phase of an evaluation, in the order they were made."""


def summarise(directory: Path, run: RunConfig, clients: int) -> dict[str, Any]:
    """Compute the summary from the CSV files of a run directory."""
    rounds = read_rows(directory / "rounds.csv")
    failures = read_rows(directory / "failures.csv")
    by_model = _accuracy_by_model(directory)
    known = [value for value in by_model.values() if value is not None]
    over_models = {"mean_over_models": statistics.fmean(known) if known else None}
    return {
        "method": run.method,
        "dataset": run.dataset,
        "clients": clients,
        "rounds": max((int(r["round"]) for r in rounds), default=0),
        "seed": run.seed,
        "accuracy": _accuracy(directory / "metrics.csv", run) | over_models,
        "accuracy_by_model": by_model,
        "traffic": _traffic(iterate_rows(directory / "traffic.csv")),
        "time": _time(rounds),
        "clients_failed": sum(row["kind"] != "skipped" for row in failures),
    }


def _accuracy(metrics: Path, run: RunConfig) -> dict[str, Any]:
    tests = _evaluations(iterate_rows(metrics), "accuracy")
    validations = _evaluations(iterate_rows(metrics), "validation_accuracy")
    means = {key: weighted_mean(values) for key, values in tests.items()}
    by_validation = {key: weighted_mean(values) for key, values in validations.items()}
    chosen = by_validation or means
    # The first of equals: the earliest round that is as good as any.
    best = max(chosen, key=lambda key: chosen[key] or 0.0, default=None)
    last = list(tests)[-1] if tests else None
    final = [value for value, _ in tests[last]] if last else []
    return {
        "final": means[last] if last else None,
        "best": means.get(best) if best else None,
        "best_round": best[0] if best else None,
        "best_phase": best[1] if best else None,
        "best_by": "validation" if by_validation else "test",
        "mean_over_clients": statistics.fmean(final) if final else None,
        "std_over_clients": statistics.pstdev(final) if final else None,
        "worst_client": min(final) if final else None,
        "clients_evaluated": len(final),
        "model": run.chosen_method.evaluated_model,
        "test_split": run.test_split,
    }


def _accuracy_by_model(directory: Path) -> dict[str, float | None]:
    """Return the last evaluation's mean over the clients of each model, weighted by examples.

    Models come in the order of their first clients; one of which no client was evaluated is left
    out.
    """
    cards = directory / "clients.csv"
    rows = read_rows(cards) if cards.is_file() else []
    models = {row["client"]: row["model"] for row in sorted(rows, key=lambda r: int(r["client"]))}
    tests = _evaluations(iterate_rows(directory / "metrics.csv"), "accuracy")
    last = list(tests)[-1] if tests else None
    found: dict[str, list[tuple[float, int]]] = {model: [] for model in models.values()}
    for row in iterate_rows(directory / "metrics.csv"):
        at = (int(row["round"]), row["phase"])
        if row["metric"] == "accuracy" and at == last and row["client"] in models:
            found[models[row["client"]]].append((float(row["value"]), int(row["examples"])))
    return {model: weighted_mean(pairs) for model, pairs in found.items() if pairs}


def _evaluations(
    rows: Iterable[dict[str, str]], metric: str
) -> dict[Evaluation, list[tuple[float, int]]]:
    """Return (value, examples) of every client by evaluation, in the order of the run."""
    found: dict[Evaluation, list[tuple[float, int]]] = {}
    for row in rows:
        if row["metric"] == metric and row["phase"] in EVALUATION_PHASES:
            key = (int(row["round"]), row["phase"])
            found.setdefault(key, []).append((float(row["value"]), int(row["examples"])))
    return dict(sorted(found.items(), key=lambda i: (i[0][0], EVALUATION_PHASES.index(i[0][1]))))


def _traffic(rows: Iterable[dict[str, str]]) -> dict[str, int]:
    """Return scalars of the fullest round and bytes of the run, training apart from evaluation."""
    scalars: dict[tuple[str, int], int] = {}
    total = {
        ("uplink", True): 0,
        ("uplink", False): 0,
        ("downlink", True): 0,
        ("downlink", False): 0,
    }
    for row in rows:
        training = row["purpose"] == "train"
        total[row["direction"], training] += int(row["bytes"])
        if training:
            key = row["direction"], int(row["round"])
            scalars[key] = scalars.get(key, 0) + int(row["scalars"])

    def fullest(direction: str) -> int:
        return max((n for (way, _), n in scalars.items() if way == direction), default=0)

    return {
        "uplink_scalars_per_round": fullest("uplink"),
        "downlink_scalars_per_round": fullest("downlink"),
        "uplink_bytes": total["uplink", True],
        "downlink_bytes": total["downlink", True],
        "evaluation_uplink_bytes": total["uplink", False],
        "evaluation_downlink_bytes": total["downlink", False],
    }


def _time(rows: list[dict[str, str]]) -> dict[str, float | None]:
    """Return seconds of all rounds, their median, and client work over wall time x workers."""
    rounds = [row for row in rows if row["closing"] != "True"]
    seconds = [float(row["seconds"]) for row in rows]
    capacity = sum(float(row["seconds"]) * int(row["workers"]) for row in rows)
    compute = sum(float(row["client_compute_s"]) for row in rows)
    return {
        "total_s": round(sum(seconds), 3),
        "round_s_median": (
            round(statistics.median(float(row["seconds"]) for row in rounds), 3) if rounds else None
        ),
        "client_compute_s": round(compute, 3),
        "efficiency": round(compute / capacity, 3) if capacity else None,
    }
