"""A comparison through real `flwr run`s: interrupted, continued, and then nothing left to do.

The run that is interrupted after its second round goes on to the numbers of one left alone.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.flower.processes import end_family, family
from tests.held_models import held_models
from tests.support import Outcome, run_federation

REPOSITORY = Path(__file__).parents[2]
SECONDS = 400

RECORDS = "out/two-fedre-seed0/rounds.csv"
IN_ROUND_3 = f'any(len(p.read_text().splitlines()) > 2 for p in HERE.glob("{RECORDS}"))'
"""Whether FedRE's run has recorded two rounds, below a header."""


def start(path: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "deploy.compare", str(path)],
            cwd=REPOSITORY, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "WILDFLOWER_TEST": str(path)},
        )  # fmt: skip


def mark(path: Path) -> str:
    return f"WILDFLOWER_TEST={path}"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Name the comparison's file; nothing that it started outlives the test, however it ends."""
    yield tmp_path / "two.yaml"
    end_family(mark(tmp_path / "two.yaml"), set())


def left_behind(path: Path) -> set[str]:
    members = family(mark(path), set())
    return {f"{p}: {Path(f'/proc/{p.pid}/cmdline').read_bytes()!r}" for p in members}


def finished(run: Outcome) -> int:
    """Return how many rounds of a run are recorded."""
    return len(run.rows("rounds")) if (run.path / "rounds.csv").is_file() else 0


def in_one_process(directory: Path, config: dict[str, Any]) -> Outcome:
    """Repeat a run of two clients with its recorded settings, without Flower and Ray."""
    elsewhere = {"output-dir", "run-name", "resume", "local-run"}
    values = {key: value for key, value in config.items() if key not in elsewhere}
    keys = {key.replace(".", "__").replace("-", "_"): value for key, value in values.items()}
    return run_federation(directory, 2, **keys)


@pytest.mark.e2e
def test_an_interrupted_comparison_goes_on_and_then_skips_everything(
    path: Path, tmp_path: Path
) -> None:
    log, hold = tmp_path / "log.txt", tmp_path / "hold"
    (tmp_path / "held_models.py").write_text(
        held_models(f'(HERE / "hold").exists() and {IN_ROUND_3}')
    )
    hold.touch()
    path.write_text(
        yaml.safe_dump(
            {
                "name": "two",
                "output-dir": str(tmp_path / "out"),
                "clients": 2,
                "methods": ["local", "fedre"],
                "seeds": [0],
                "target-accuracy": 0.01,
                "parallel-workers": 1,
                "settings": {
                    "num-rounds": 3,
                    "subset": 0.15,
                    "models": "cnn2, held_models:held",
                    "code-dir": str(tmp_path),
                },
            }
        )
    )
    run = Outcome(tmp_path / "out" / "two-fedre-seed0")
    process = start(path, log)
    deadline = time.monotonic() + SECONDS
    try:
        while finished(run) < 2:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130, log.read_text()
    finally:
        process.kill()
    assert left_behind(path) == set()
    assert finished(run) == 2
    hold.unlink()
    assert "1 of 2 runs complete" in (tmp_path / "out/two.html").read_text()

    process = start(path, log)
    assert process.wait(SECONDS) == 0, log.read_text()
    assert "2 runs, 1 already complete" in log.read_text()
    assert left_behind(path) == set()
    with (tmp_path / "out/two.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seeds_complete"] for row in rows] == ["1", "1"]
    assert float(rows[1]["uplink_per_round"]) == 2 * 512
    assert float(rows[1]["final"]) >= 0

    assert {row["workers"] for row in run.rows("rounds")} == {"1"}
    here = in_one_process(tmp_path / "here", run.config["config"])
    for name in ("metrics.csv", "traffic.csv"):
        assert run.text(name) == here.text(name)

    started = time.monotonic()
    assert start(path, log).wait(60) == 0
    assert "2 runs, 2 already complete" in log.read_text()
    assert "starts" not in log.read_text()
    assert time.monotonic() - started < 60
