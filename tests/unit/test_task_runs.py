"""Whole runs of clients with unlike tasks: scores by task, the change against Local, refusals."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

from strategies.base.options import ConfigError
from strategies.base.server import RegistrationError
from tests.support import Outcome, run_federation

TASKS = "multilabel@scenes, segmentation@scenes, text@scenes, classification@digits[0-4]"
SETTINGS: dict[str, Any] = {
    "tasks": TASKS, "models": "cnn5, seg-small, text-small, resnet10-w4", "image_size": 16,
    "subset": 0.05, "partition": "iid", "feature_dim": 16, "optimizer": "adamw", "lr": 1e-3,
    "evaluate_when": "post",
}  # fmt: skip
METRICS = {"0": "map", "1": "miou", "2": "accuracy", "3": "accuracy"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome]:
    """A Local run and a FedMuscle run beside it that names it."""
    directory = tmp_path_factory.mktemp("tasks")
    local = run_federation(directory, 4, method="local", run_name="alone", **SETTINGS)
    muscle = run_federation(
        directory, 4, method="fedmuscle", fedmuscle__batch_size=8, local_run="alone", **SETTINGS
    )
    return local, muscle


def test_every_client_is_measured_by_its_own_task(pair: tuple[Outcome, Outcome]) -> None:
    for run in pair:
        assert run.rows("failures") == []
        infos = {row["client"]: (row["task"], row["metric"]) for row in run.rows("clients")}
        assert {client: metric for client, (_, metric) in infos.items()} == METRICS
        assert infos["3"][0] == "classification@digits[0+1+2+3+4]"
        scores = {
            (row["client"], row["metric"])
            for row in run.metrics(phase="post", round=2)
            if not row["metric"].startswith("validation_")
        }
        assert scores == set(METRICS.items())
        assert all(0 <= float(row["value"]) <= 1 for row in run.metrics(phase="post"))


def test_means_are_taken_within_a_task(pair: tuple[Outcome, Outcome]) -> None:
    run = pair[1]
    scores = run.summary["scores"]
    assert list(scores) == ["multilabel", "segmentation", "text", "classification"]
    last = {r["client"]: (float(r["value"]), int(r["examples"]))
            for r in run.metrics(phase="post", round=2)
            if r["metric"] == METRICS[r["client"]]}  # fmt: skip
    finals = [scores[task]["final"] for task in scores]
    # Weighted by examples, also where there is one client, which may move the last bit
    assert finals == [value * examples / examples for value, examples in map(last.get, "0123")]


def test_delta_is_the_mean_relative_change_by_client(pair: tuple[Outcome, Outcome]) -> None:
    """Delta(%) = (100 / N) sum (a_n - a_n^local) / a_n^local, as in FedMuscle."""
    local, muscle = pair
    assert local.summary["delta"] is None
    delta = muscle.summary["delta"]
    values = {
        run: {
            r["client"]: float(r["value"])
            for r in run.metrics(phase="post", round=2)
            if r["metric"] == METRICS[r["client"]]
        }
        for run in pair
    }
    changes = [
        100 * (values[muscle][c] - values[local][c]) / values[local][c]
        for c in "0123"
        if values[local][c] > 0
    ]
    assert delta["against"] == "alone"
    assert delta["clients_compared"] == len(changes)
    assert delta["percent"] == pytest.approx(sum(changes) / len(changes))


def test_all_modalities_are_aligned(pair: tuple[Outcome, Outcome]) -> None:
    rows = pair[1].metrics(metric="loss_alignment")
    assert {(row["round"], row["client"]) for row in rows} == {(t, c) for t in "12" for c in "0123"}
    assert all(0 < float(row["value"]) < 10 for row in rows)


@pytest.mark.parametrize("method", ["fedhenn", "cofed", "feddf"])
def test_the_other_methods_of_public_data_take_any_task(method: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "fedhenn__items": 12} if method == "fedhenn" else SETTINGS
    run = run_federation(tmp_path, 4, method=method, **settings)
    assert run.rows("failures") == []
    assert set(run.summary["scores"]) == {
        "multilabel", "segmentation", "text", "classification",
    }  # fmt: skip


@pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="pip install 'wildflower[hf]' (peft)"
)
def test_pretrained_families_with_adapters_are_aligned(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 3, method="fedmuscle", fedmuscle__batch_size=8, fedmuscle__steps=2, num_rounds=1,
        lora_rank=2, **{**SETTINGS, "tasks": "multilabel@scenes, segmentation@scenes, text@scenes",
                        "models": "hf-vit, hf-segformer, hf-distilbert"},
    )  # fmt: skip
    assert run.rows("failures") == []
    losses = [float(row["value"]) for row in run.metrics(metric="loss_alignment")]
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))


def test_a_method_for_one_task_refuses_tasks(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"tasks = .*expected an empty text, or one task on text or numbers, with"
    ):
        run_federation(tmp_path, 4, method="fedre", **SETTINGS)


def test_text_needs_captions_of_the_public_items(tmp_path: Path) -> None:
    """Said at the start, by the client that reads text, not in round 1 by a stack trace."""
    with pytest.raises(
        RegistrationError, match=r"client 2: .*public-dataset = 'digits'.*no captions"
    ):
        run_federation(tmp_path, 4, method="fedmuscle", public_dataset="digits", **SETTINGS)


def test_a_device_has_a_task_of_its_own(tmp_path: Path) -> None:
    share = {"num-partitions": 2}
    nodes = {
        0: {"partition-id": 0, **share, "task": "text@scenes", "model": "text-small"},
        1: {"partition-id": 1, **share, "task": "multilabel@scenes", "model": "cnn2"},
    }
    settings = {k: v for k, v in SETTINGS.items() if k not in ("tasks", "models")}
    run = run_federation(tmp_path, 2, method="local", nodes=nodes, num_rounds=1, **settings)
    assert [row["task"] for row in run.rows("clients")] == ["text@scenes", "multilabel@scenes"]
    wrong = {**nodes, 1: {**nodes[1], "model": "text-small"}}
    with pytest.raises(RegistrationError, match=r"client 1: .*text-small"):
        run_federation(tmp_path / "b", 2, method="local", nodes=wrong, num_rounds=1, **settings)
