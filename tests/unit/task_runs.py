"""Run directories of clients with unlike tasks, written by hand through the recorder."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.tasks import METRIC_OF, parse_task
from server_app.records.recorder import Recorder
from server_app.records.round_result import RoundResult, Traffic
from server_app.records.run_directory import CLIENT_COLUMNS
from server_app.records.summary import summarise
from strategies.base.messages import MetricRow
from strategies.base.parsing import parse_run_config

MIXED = (
    "multilabel@scenes", "multilabel@scenes", "classification@fashion-mnist[0-4]",
    "classification@fashion-mnist", "segmentation@scenes", "text@tsv",
)  # fmt: skip

#: FedMuscle's published scores of users 1, 4 and 6 with local training and with the method.
LOCAL = {0: 0.4217, 1: 0.2477, 2: 0.4377}
FEDMUSCLE = {0: 0.4633, 1: 0.3667, 2: 0.6657}
PUBLISHED = ("multilabel@voc", "classification@cifar100", "classification@cifar10")

MODELS = ("vit-tiny", "vit-small", "cnn5", "cnn5", "seg-small", "text-small")

Evaluation = Mapping[int, float]


def metrics_of(tasks: Sequence[str]) -> list[str]:
    return [METRIC_OF[parse_task(task).task] for task in tasks]


def write_clients(
    directory: Path,
    tasks: Sequence[str],
    *,
    models: Sequence[str] = MODELS,
    hashes: Mapping[int, str] | None = None,
    test_examples: Mapping[int, int] | None = None,
) -> None:
    """Write clients.csv; a client's data has the hash `d<id>`, 10 of it for tests, unless given."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "clients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, CLIENT_COLUMNS, restval="")
        writer.writeheader()
        for client, (task, metric) in enumerate(zip(tasks, metrics_of(tasks), strict=True)):
            writer.writerow({
                "client": client, "model": models[client % len(models)], "parameters": 1000,
                "raw_dim": 64, "feature_dim": 32, "num_classes": 2, "channels": 1,
                "image_size": 28, "class_hash": "c", "classes": "0 1", "class_counts": "20 20",
                "train_examples": 40, "validation_examples": 4,
                "test_examples": (test_examples or {}).get(client, 10),
                "device": "cpu", "data_hash": (hashes or {}).get(client, f"d{client}"),
                "task": task, "metric": metric,
            })  # fmt: skip


def a_round(
    number: int,
    metrics: Sequence[str],
    tests: Evaluation,
    *,
    validations: Evaluation | None = None,
    phase: str = "post",
    examples: Mapping[int, int] | None = None,
    loss: bool = True,
) -> RoundResult:
    """Return a round in which clients have these main scores, on 10 examples unless said."""
    trained = sorted(tests) if phase != "final" else []
    result = RoundResult(number, trained)
    for client, value in tests.items():
        row = MetricRow(phase, metrics[client], value, (examples or {}).get(client, 10))
        result.rows.append((client, row))
    for client, value in (validations or {}).items():
        row = MetricRow(phase, f"validation_{metrics[client]}", value, 4)
        result.rows.append((client, row))
    for client in trained if loss else ():
        result.rows.append((client, MetricRow("train", "loss", 1.0 + client, 40)))
    for client in trained:
        result.traffic.append(Traffic(client, "downlink", 30, 120, "train"))
        result.traffic.append(Traffic(client, "uplink", 10, 40, "train"))
    result.seconds, result.compute_s, result.workers = 2.0, 3.0, {"a", "b"}
    return result


def record(
    directory: Path, rounds: Sequence[RoundResult], closing: RoundResult | None = None
) -> Recorder:
    """Write the rounds' records and return the recorder."""
    recorder = Recorder(directory)
    recorder.begin(0)
    for result in rounds:
        recorder.add(result)
    if closing is not None:
        recorder.add(closing, closing=True)
    return recorder


def finish(
    directory: Path, tasks: Sequence[str], *, status: str = "completed", **settings: Any
) -> dict[str, Any]:
    """Write config.json and summary.json of a run and return the summary."""
    keys = {key.replace("_", "-"): value for key, value in settings.items()}
    paths = {"output-dir": str(directory.parent), "run-name": directory.name}
    run = parse_run_config({"method": "fedre", **keys, **paths})
    info = {"config": run.flat(), "status": status, "clients": len(tasks), "run_name": run.run_name}
    (directory / "config.json").write_text(json.dumps(info), encoding="utf-8")
    summary = summarise(directory, run, len(tasks))
    (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return summary


def published(directory: Path, scores: Evaluation, **settings: Any) -> dict[str, Any]:
    """Write a run of one round of the three published users, and return its summary."""
    write_clients(directory, PUBLISHED)
    record(directory, [a_round(1, metrics_of(PUBLISHED), scores)])
    return finish(directory, PUBLISHED, **settings)
