"""summary.json: what came out of a run, computed from its records alone."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from server_app.records.main_scores import (
    Delta,
    Evaluation,
    Evaluations,
    Scores,
    named,
    read_scores,
    refuse_unlike,
    relative_changes,
)
from server_app.records.recorder import iterate_rows, read_rows, weighted_mean
from server_app.records.scores import ClientTask, task_name
from strategies.base.messages import ClientInfo
from strategies.base.options import ConfigError
from strategies.base.run_config import RunConfig


def summarise(directory: Path, run: RunConfig, clients: int) -> dict[str, Any]:
    """Compute the summary from the CSV files of a run directory.

    A run to compare with (`local-run`) that cannot be used leaves `delta` empty and
    `delta_reason` saying why: a finished run is not lost because of another one.
    """
    rounds = read_rows(directory / "rounds.csv")
    failures = read_rows(directory / "failures.csv")
    scores = read_scores(directory)
    with_accuracy = scores.of(lambda client: client.metric == "accuracy")
    by_model = _accuracy_by_model(directory, with_accuracy)
    known = [value for value in by_model.values() if value is not None]
    over_models = {"mean_over_models": statistics.fmean(known) if known else None}
    delta, reason = _delta(run, scores)
    return {
        "method": run.method,
        "dataset": run.dataset,
        "clients": clients,
        "rounds": max((int(r["round"]) for r in rounds), default=0),
        "seed": run.seed,
        "accuracy": _accuracy(with_accuracy, run) | over_models,
        "accuracy_by_model": by_model,
        "scores": {
            task: task_scores(scores.of_task(task), metric) for task, metric in scores.tasks.items()
        },
        "delta": delta,
        "delta_reason": reason,
        "traffic": _traffic(iterate_rows(directory / "traffic.csv")),
        "time": _time(rounds),
        "clients_failed": sum(row["kind"] != "skipped" for row in failures),
    }


def check_local_run(run_root: Path, name: str) -> None:
    """Refuse, before anything starts, a run that cannot be compared with at the end.

    Parameters
    ----------
    run_root : Path
        Directory of all runs, `RunConfig.run_root`.
    name : str
        The value of `local-run`; an empty one asks for nothing.

    Raises
    ------
    ConfigError
        If it is not a completed run of method `local` with main scores.
    """
    if name:
        _read_local_run(run_root, name)


def check_local_clients(run_root: Path, name: str, infos: Mapping[int, ClientInfo]) -> None:
    """Refuse, after the registration, a run whose clients have other tasks or other data.

    Clients that join later are compared at the end alone.

    Raises
    ------
    ConfigError
        Naming these clients; also if the run is not one for `check_local_run`.
    """
    if name:
        own = {i: ClientTask(task_name(c.task), c.metric, c.data_hash) for i, c in infos.items()}
        refuse_unlike(own, _read_local_run(run_root, name).clients, name)


def _read_local_run(run_root: Path, name: str) -> Scores:
    path = run_root / name
    remedy = "run method local below the same output-dir first, and name that run here"
    try:
        info = json.loads((path / "config.json").read_text(encoding="utf-8"))
        method, status = info["config"]["method"], info["status"]
        if method != "local":
            problem = f"{path} is a run of method {method!r}"
        elif status != "completed":
            problem = f"{path} is not completed (its status is {status!r})"
        else:
            scores = read_scores(path)
            if scores.tests:
                return scores
            problem = f"no client was evaluated in {path}"
    except FileNotFoundError as error:
        problem = f"there is no completed run in {path} ({error.filename} is missing)"
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        problem = f"the records in {path} are damaged ({type(error).__name__}: {error})"
    raise ConfigError(f"local-run = {name!r}: {problem}; {remedy}")


def _delta(run: RunConfig, scores: Scores) -> tuple[dict[str, Any] | None, str | None]:
    """Return the section `delta`, or None and the reason if there was one to be made."""
    if not run.local_run:
        return None, None
    try:
        reference = _read_local_run(run.run_root, run.local_run)
        found = relative_changes(scores, reference, run.local_run)
    except ConfigError as error:
        return None, str(error)
    if found.percent is None:
        return None, f"no client could be compared with {run.local_run!r}: {_left_out(found)}"
    return {
        "against": run.local_run,
        "percent": found.percent,
        "by_client": {str(client): change for client, change in found.by_client.items()},
        "by_task": dict(found.by_task),
        "clients_compared": len(found.by_client),
        "left_out": {str(client): reason for client, reason in found.left_out.items()},
    }, None


def _left_out(found: Delta) -> str:
    return named(f"client {i}: {why}" for i, why in found.left_out.items())


def task_scores(scores: Scores, metric: str) -> dict[str, Any]:
    """Return what came out of one task: means over its clients, weighted by examples."""
    means, by_validation = _means(scores.tests), _means(scores.validations)
    best, last = _best(means, by_validation), list(means)[-1] if means else None
    return {
        "metric": metric,
        "final": means[last] if last else None,
        "best": means.get(best) if best else None,
        "best_round": best[0] if best else None,
        "best_phase": best[1] if best else None,
        "best_by": "validation" if by_validation else "test",
        "clients": len(scores.tests[last]) if last else 0,
    }


def _means(found: Evaluations) -> dict[Evaluation, float | None]:
    return {at: weighted_mean(values.values()) for at, values in found.items()}


def _best(
    means: Mapping[Evaluation, float | None], by_validation: Mapping[Evaluation, float | None]
) -> Evaluation | None:
    """Return the evaluation with the best validation score, or test score where there is none."""
    chosen = by_validation or means
    # The first of equals: the earliest round that is as good as any.
    return max(chosen, key=lambda key: chosen[key] or 0.0, default=None)


def _accuracy(scores: Scores, run: RunConfig) -> dict[str, Any]:
    """Return what came out for all clients whose main score is accuracy."""
    found = task_scores(scores, "accuracy")
    last = list(scores.tests.values())[-1] if scores.tests else {}
    final = [value for value, _ in last.values()]
    return {
        **{key: found[key] for key in ("final", "best", "best_round", "best_phase", "best_by")},
        "mean_over_clients": statistics.fmean(final) if final else None,
        "std_over_clients": statistics.pstdev(final) if final else None,
        "worst_client": min(final) if final else None,
        "clients_evaluated": len(final),
        "model": run.chosen_method.evaluated_model,
        "test_split": run.test_split,
    }


def _accuracy_by_model(directory: Path, scores: Scores) -> dict[str, float | None]:
    """Return the last evaluation's mean over the clients of each model, weighted by examples.

    Models come in the order of their first clients; one of which no client was evaluated is left
    out.
    """
    infos = directory / "clients.csv"
    models = (
        {int(row["client"]): row["model"] for row in iterate_rows(infos)} if infos.is_file() else {}
    )
    last = list(scores.tests.values())[-1] if scores.tests else {}
    found: dict[str, list[tuple[float, int]]] = {models[i]: [] for i in sorted(models)}
    for client, pair in last.items():
        if client in models:
            found[models[client]].append(pair)
    return {model: weighted_mean(pairs) for model, pairs in found.items() if pairs}


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
