"""Exact resume for every method: a run killed with -9 and resumed equals one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strategies.base.method import method_names
from tests.support import Outcome, run_federation

ROOT = Path(__file__).parents[2]
SETTINGS = {"num_rounds": 6, "sample_fraction": 0.7, "subset": 0.15}
CHILD = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.support import run_federation
run_federation(Path(sys.argv[1]), 3, method=sys.argv[2], num_rounds=6, sample_fraction=0.7,
               subset=0.15)
"""


def kill_in_round_four(directory: Path, method: str) -> Outcome:
    """Start the run in a process of its own and end it with SIGKILL after its third round."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), method],
        cwd=ROOT, env={**os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    rounds = directory / "run" / "rounds.csv"
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline and process.poll() is None:
            if rounds.is_file() and rounds.read_text().count("\n") >= 4:
                break
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    return Outcome(directory / "run")


@pytest.mark.parametrize("method", method_names())
def test_killed_and_resumed_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    """U21: per-client metrics, traffic and sampled clients are equal bit for bit."""
    whole = run_federation(tmp_path / "whole", 3, method=method, **SETTINGS)
    killed = kill_in_round_four(tmp_path / "parts", method)
    assert killed.config["status"] == "running"
    assert not (killed.path / "summary.json").exists()
    resumed = run_federation(tmp_path / "parts", 3, method=method, resume="run", **SETTINGS)
    assert resumed.config["status"] == "completed"
    assert resumed.text("metrics.csv") == whole.text("metrics.csv")
    assert resumed.text("traffic.csv") == whole.text("traffic.csv")
    assert resumed.summary["accuracy"] == whole.summary["accuracy"]
