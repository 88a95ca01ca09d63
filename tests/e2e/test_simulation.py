"""Real runs: `flwr run`, a SuperLink, Ray worker processes, and the files they leave."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from deploy.flower.simulation import FlowerSimulation
from tests.e2e.conftest import LIMIT, ROOT, Simulate
from tests.support import OWN_MODEL, SMALL, Outcome, make_hostile, run_federation

pytestmark = pytest.mark.e2e


def test_one_worker_equals_the_same_process(simulate: Simulate, tmp_path: Path) -> None:
    """U44, U49: the files of one worker; `test_every_method` has those of two."""
    run, through_ray = simulate(tmp_path / "one", workers=1)
    here = run_federation(tmp_path / "here", 3)
    assert run.completed, run.log
    for name in ("metrics.csv", "traffic.csv", "clients.csv"):
        assert through_ray.text(name) == here.text(name)
    summary = through_ray.summary
    assert summary["accuracy"] == here.summary["accuracy"]
    assert summary["method"] == "fedre"
    assert summary["clients"] == 3
    assert summary["traffic"]["uplink_scalars_per_round"] == 3 * 512
    assert {r["workers"] for r in through_ray.rows("rounds")} == {"1"}
    assert (through_ray.path / "report.html").stat().st_size > 10_000
    assert "round 2/2" in run.log
    assert "report.html" in run.log


def test_missing_data_fails_the_run_and_says_what_to_do(simulate: Simulate, tmp_path: Path) -> None:
    """U56: the folder looked in and what is expected there; Flower's status says that it failed.

    Other reasons to fail are in `tests/unit/test_failed_runs.py`.
    """
    nowhere = str(tmp_path / "nowhere")
    run, left = simulate(tmp_path, dataset="imagefolder", data_dir=nowhere, subset=1.0)
    assert run.status == "finished:failed"
    assert "nowhere" in run.log
    assert left.config["status"] == "failed"
    assert "nowhere" in left.config["reason"]


def test_killed_server_resumes_to_the_same_numbers(
    flower: FlowerSimulation, simulate: Simulate, tmp_path: Path
) -> None:
    """U21 with real processes: kill -9 of the simulation in round 3, then a resume to round 4."""
    config = {"num-rounds": 4, "subset": 0.5, "local-epochs": 2}
    values = {**SMALL, "output-dir": str(tmp_path), "run-name": "run", **config}
    before = flower.processes()
    flower.start(ROOT, values, clients=3)
    rounds = tmp_path / "run" / "rounds.csv"
    deadline = time.monotonic() + LIMIT
    while not rounds.is_file() or rounds.read_text().count("\n") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for process in flower.processes() - before:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    killed = Outcome(tmp_path / "run")
    assert killed.config["status"] == "running"
    run, resumed = simulate(tmp_path, resume="run", **config)
    assert run.completed, run.log
    whole = run_federation(tmp_path / "whole", 3, num_rounds=4, subset=0.5, local_epochs=2)
    assert resumed.text("metrics.csv") == whole.text("metrics.csv")
    assert resumed.text("traffic.csv") == whole.text("traffic.csv")


def test_own_folder_and_own_model(simulate: Simulate, tmp_path: Path) -> None:
    """README: an image folder split over the clients, factories by file and by module, by map.

    The user's folder has a `data` as well, and a file `data.py` that the own model imports.
    """
    from PIL import Image

    for part, count in (("train", 24), ("test", 8)):
        for number, name in enumerate(("ant", "bee", "cow")):
            (tmp_path / "pictures" / part / name).mkdir(parents=True)
            for k in range(count):
                image = Image.new("RGB", (32, 32), color=(80 * number, 10 * k, 90))
                image.save(tmp_path / "pictures" / part / name / f"{k}.png")
    code = tmp_path / "code"
    code.mkdir()
    make_hostile(code)
    (code / "data.py").write_text(OWN_MODEL)
    (code / "nets.py").write_text("from .data import tiny\nimport data\ndata.DATASETS\n")
    done, run = simulate(
        tmp_path,
        dataset="imagefolder",
        data_dir=str(tmp_path / "pictures"),
        partition="iid",
        subset=1.0,
        models="1=own_models:tiny, 2=nets:tiny, *=cnn5",
        code_dir=str(code),
    )
    assert done.completed, done.log
    assert [r["model"] for r in run.rows("clients")] == ["cnn5", "own_models:tiny", "nets:tiny"]
    assert {r["raw_dim"] for r in run.rows("clients")} == {"500", "64"}
    assert sum(int(r["train_examples"]) for r in run.rows("clients")) > 50
