"""Real runs: `flwr run`, a SuperLink, Ray worker processes, and the files they leave."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server_app.flower.runs import FlowerRun, FlowerSimulation
from tests.support import SMALL, Outcome, run_federation

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
LIMIT = 300.0


@pytest.fixture(scope="module")
def flower(dataset_cache: Path) -> Iterator[FlowerSimulation]:
    with FlowerSimulation(environment={"WILDFLOWER_CACHE": str(dataset_cache)}) as simulation:
        yield simulation


def simulate(
    flower: FlowerSimulation, directory: Path, clients: int = 3, workers: int = 2, **config: object
) -> tuple[FlowerRun, Outcome]:
    keys = {k.replace("__", ".").replace("_", "-"): v for k, v in config.items()}
    name = str(keys.get("resume") or keys.setdefault("run-name", "run"))
    values = {**SMALL, "output-dir": str(directory), **keys}
    run = flower.run(ROOT, values, clients=clients, workers=workers, timeout=LIMIT)  # type: ignore[arg-type]
    return run, Outcome(directory / name)


def test_ray_equals_the_same_process_whatever_the_workers(
    flower: FlowerSimulation, tmp_path: Path
) -> None:
    """U44, U49: one worker, two workers and no worker at all give the same files."""
    two, in_two = simulate(flower, tmp_path / "two", workers=2)
    one, in_one = simulate(flower, tmp_path / "one", workers=1)
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


@pytest.mark.parametrize(
    ("key", "value"), [("sample-fraction", 5.0), ("method", "fedfomo"), ("lr", "fast")]
)
def test_wrong_value_fails_the_run_before_any_data(
    flower: FlowerSimulation, tmp_path: Path, key: str, value: object
) -> None:
    """U29: one line with key, value and what is accepted; nothing is left behind."""
    run, _ = simulate(flower, tmp_path, **{key: value})
    assert run.status == "finished:failed"
    line = next(line for line in run.log.splitlines() if "configuration error" in line)
    assert key in line
    assert repr(value) in line
    assert "accepted is" in line
    assert list(tmp_path.iterdir()) == []


def test_missing_data_fails_the_run_and_says_what_to_do(
    flower: FlowerSimulation, tmp_path: Path
) -> None:
    """U56: the folder looked in and what is expected there."""
    run, left = simulate(
        flower, tmp_path, dataset="imagefolder", data_dir=str(tmp_path / "nowhere"), subset=1.0
    )
    assert run.status == "finished:failed"
    assert "nowhere" in run.log
    assert left.config["status"] == "failed"
    assert "nowhere" in left.config["reason"]


def test_round_without_valid_answers_fails_the_run(
    flower: FlowerSimulation, tmp_path: Path
) -> None:
    """A learning rate that diverges on every client: named, and the run does not complete."""
    run, left = simulate(flower, tmp_path, lr=1e30)
    assert run.status == "finished:failed"
    assert "none of 3 participants answered validly" in run.log
    assert "loss_ce became" in run.log
    assert left.config["status"] == "failed"


def test_killed_server_resumes_to_the_same_numbers(
    flower: FlowerSimulation, tmp_path: Path
) -> None:
    """U21 with real processes: kill -9 of the simulation in round 4, then a resume to round 6."""
    config = {"num-rounds": 6, "subset": 0.5, "local-epochs": 2}
    values = {**SMALL, "output-dir": str(tmp_path), "run-name": "run", **config}
    before = flower.processes()
    flower.start(ROOT, values, clients=3)
    rounds = tmp_path / "run" / "rounds.csv"
    deadline = time.monotonic() + LIMIT
    while not rounds.is_file() or rounds.read_text().count("\n") < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for process in flower.processes() - before:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    killed = Outcome(tmp_path / "run")
    assert killed.config["status"] == "running"
    run, resumed = simulate(flower, tmp_path, resume="run", **config)
    assert run.completed, run.log
    whole = run_federation(tmp_path / "whole", 3, num_rounds=6, subset=0.5, local_epochs=2)
    assert resumed.text("metrics.csv") == whole.text("metrics.csv")
    assert resumed.text("traffic.csv") == whole.text("traffic.csv")
