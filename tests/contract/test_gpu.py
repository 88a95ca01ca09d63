"""Every method on a GPU: `pytest -m gpu` where there is one.

Without one they are skipped, unless `WILDFLOWER_TEST_DEVICE=cpu` says to try them there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.contract.runs import TINY, Candidate
from deploy.flower.simulation import FlowerSimulation
from strategies.base.method import method_names
from tests.e2e.conftest import LIMIT, ROOT
from tests.support import Outcome

DEVICE = os.environ.get("WILDFLOWER_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else None)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE is None, reason="this machine has no GPU that torch can use"),
]

LOSS_TOLERANCE = 0.05
"""Relative, of the first round's mean loss of a client: kernels add up in another order."""
BY_ROUNDS = {"fedkd": {"fedkd__energy_rounds": 3}, "cofed": {"cofed__exchange_round": 2}}
"""Keys that would follow from `num-rounds`, which grows when a run is resumed."""
GREEDY = """
import torch
from torch import nn


class Greedy(nn.Module):
    raw_dim = 64

    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape.channels * shape.image_size**2, 64)

    def forward(self, images):
        if self.training:  # more bytes than any device has
            torch.empty(2**50, device=images.device)
        return self.layer(images.flatten(1))


def greedy(shape):
    return Greedy(shape)
"""


def on(device: str | None, method: str, directory: Path, **config: Any) -> Outcome:
    """Run two rounds of three unlike clients."""
    values = {**TINY, "device": device, "num_rounds": 2, **config}
    return Candidate(method).run(directory, 3, **values)


def losses(run: Outcome, number: int = 1) -> dict[str, float]:
    """Return every client's training loss in a round."""
    rows = run.metrics(round=number, phase="train", metric="loss")
    return {row["client"]: float(row["value"]) for row in rows}


@pytest.mark.parametrize("method", method_names())
def test_it_trains_as_on_the_cpu(method: str, tmp_path: Path) -> None:
    there, here = on(DEVICE, method, tmp_path / "there"), on("cpu", method, tmp_path / "here")
    assert there.config["status"] == "completed"
    assert there.rows("failures") == []
    assert {row["device"].partition(":")[0] for row in there.rows("clients")} == {DEVICE}
    assert losses(there)
    assert losses(there) == pytest.approx(losses(here), rel=LOSS_TOLERANCE)


@pytest.mark.parametrize("method", method_names())
def test_it_resumes(method: str, tmp_path: Path) -> None:
    """Two rounds and one more are what three are, but for the order of sums."""
    known = BY_ROUNDS.get(method, {})
    whole = on(DEVICE, method, tmp_path / "whole", num_rounds=3, **known)
    on(DEVICE, method, tmp_path / "cut", **known)
    resumed = on(DEVICE, method, tmp_path / "cut", num_rounds=3, resume="run", **known)
    assert resumed.config["status"] == "completed"
    assert losses(resumed, 3) == pytest.approx(losses(whole, 3), rel=2 * LOSS_TOLERANCE)


@pytest.mark.parametrize("method", method_names())
def test_it_trains_in_bfloat16(method: str, tmp_path: Path) -> None:
    run = on(DEVICE, method, tmp_path, amp="bf16")
    assert run.config["status"] == "completed"
    assert run.rows("failures") == []


def test_a_client_without_memory_is_named_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greedy_model.py").write_text(GREEDY)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Not tried at the registration, as a model that needs too much only for this client's data
    monkeypatch.setattr("client_app.handlers.try_own_model", lambda *given: None)
    run = on(DEVICE, "fedproto", tmp_path / "runs", models="cnn5, greedy_model:greedy, cnn4")
    assert run.config["status"] == "completed"
    failures = run.rows("failures")
    assert {(row["round"], row["client"]) for row in failures} == {("1", "1"), ("2", "1")}
    assert all("memory" in row["reason"] for row in failures)
    assert set(losses(run, 2)) == {"0", "2"}


@pytest.mark.e2e
def test_clients_share_it(tmp_path: Path, dataset_cache: Path) -> None:
    """Two workers at once, each with half of it."""
    federation = {} if DEVICE == "cpu" else {
        "client-resources-num-gpus": 0.5, "init-args-num-gpus": 1
    }  # fmt: skip
    values: dict[str, Any] = {
        "method": "fedproto", "device": str(DEVICE), "num-rounds": 2, "subset": 0.2,
        "output-dir": str(tmp_path), "run-name": "run", "min-clients": 4, "report": False,
    }  # fmt: skip
    environment = {"WILDFLOWER_CACHE": str(dataset_cache)}
    with FlowerSimulation(environment=environment) as flower:
        run = flower.run(ROOT, values, clients=4, workers=2, federation=federation, timeout=LIMIT)
    assert run.completed, run.log[-5000:]
    done = Outcome(tmp_path / "run")
    assert done.rows("failures") == []
    assert {row["workers"] for row in done.rows("rounds")} == {"2"}
    assert {row["device"].partition(":")[0] for row in done.rows("clients")} == {DEVICE}
