"""Real runs: `flwr run`, a SuperLink, Ray worker processes, and the files they leave."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from deploy.flower.simulation import FlowerSimulation
from tests.e2e.conftest import LIMIT, ROOT, Simulate
from tests.support import SMALL, Outcome, run_federation

pytestmark = pytest.mark.e2e


def test_ray_equals_the_same_process_whatever_the_workers(
    simulate: Simulate, tmp_path: Path
) -> None:
    """U44, U49: one worker, two workers and no worker at all give the same files."""
    two, in_two = simulate(tmp_path / "two", workers=2)
    one, in_one = simulate(tmp_path / "one", workers=1)
    here = run_federation(tmp_path / "here", 3)
    assert two.completed, two.log
    assert one.completed, one.log
    for name in ("metrics.csv", "traffic.csv", "clients.csv"):
        assert in_two.text(name) == here.text(name)
        assert in_one.text(name) == here.text(name)
    summary = in_two.summary
    assert summary["accuracy"] == here.summary["accuracy"]
    assert summary["method"] == "fedre"
    assert summary["clients"] == 3
    assert summary["traffic"]["uplink_scalars_per_round"] == 3 * 512
    assert {r["workers"] for r in in_one.rows("rounds")} == {"1"}
    assert "2" in {r["workers"] for r in in_two.rows("rounds")}
    assert (in_two.path / "report.html").stat().st_size > 10_000
    assert "round 2/2" in two.log
    assert "report.html" in two.log


def test_wrong_value_fails_the_run_before_any_data(simulate: Simulate, tmp_path: Path) -> None:
    """U29: one line with key, value and what is expected; nothing is left behind."""
    run, _ = simulate(tmp_path, models="resnet99")
    assert run.status == "finished:failed"
    line = next(line for line in run.log.splitlines() if "configuration error" in line)
    assert "models" in line
    assert "'resnet99'" in line
    assert "expected" in line
    assert list(tmp_path.iterdir()) == []


def test_missing_data_fails_the_run_and_says_what_to_do(simulate: Simulate, tmp_path: Path) -> None:
    """U56: the folder looked in and what is expected there."""
    nowhere = str(tmp_path / "nowhere")
    run, left = simulate(tmp_path, dataset="imagefolder", data_dir=nowhere, subset=1.0)
    assert run.status == "finished:failed"
    assert "nowhere" in run.log
    assert left.config["status"] == "failed"
    assert "nowhere" in left.config["reason"]


def test_round_without_valid_answers_fails_the_run(simulate: Simulate, tmp_path: Path) -> None:
    """A learning rate that diverges on every client: named, and the run does not complete."""
    run, left = simulate(tmp_path, lr=1e30)
    assert run.status == "finished:failed"
    assert "none of 3 participants answered validly" in run.log
    assert "loss_ce became" in run.log
    assert left.config["status"] == "failed"


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
    """README: an image folder split over the clients, a factory by its module, ids by map."""
    from PIL import Image

    for part, count in (("train", 24), ("test", 8)):
        for number, name in enumerate(("ant", "bee", "cow")):
            (tmp_path / "pictures" / part / name).mkdir(parents=True)
            for k in range(count):
                image = Image.new("RGB", (32, 32), color=(80 * number, 10 * k, 90))
                image.save(tmp_path / "pictures" / part / name / f"{k}.png")
    done, run = simulate(
        tmp_path,
        dataset="imagefolder",
        data_dir=str(tmp_path / "pictures"),
        partition="iid",
        subset=1.0,
        models="1=own_models:tiny, *=cnn5",
    )
    assert done.completed, done.log
    assert [r["model"] for r in run.rows("clients")] == ["cnn5", "own_models:tiny", "cnn5"]
    assert {r["raw_dim"] for r in run.rows("clients")} == {"500", "64"}
    assert sum(int(r["train_examples"]) for r in run.rows("clients")) > 50
