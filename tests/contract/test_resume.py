"""Exact resume for every method: a run killed with -9 and resumed equals one left alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from server_app.rounds.in_process import InProcessGrid
from strategies.base.method import method_names
from tests.support import Outcome, run_federation

CLIENTS = 3
SETTINGS: dict[str, Any] = {
    "num_rounds": 6,
    "sample_fraction": 0.7,
    # Small images and models: what is tested is what is saved, and most of the time is spent on
    # convolutions otherwise. The ResNet brings BatchNorm's buffers.
    "subset": 0.08,
    "image_size": 16,
    "feature_dim": 32,
    "models": "cnn5, cnn4, resnet10-w4",
}
LIMIT = 120.0
"""Seconds a child may take to reach round 4, many times what it needs."""


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Start processes by forking one that has imported everything, instead of waiting for imports.

    That one has a single thread, never runs a client, and ends when this process does.
    """
    context = multiprocessing.get_context("forkserver")
    # `_dynamo` is what torch's optimizers import when they are used first.
    context.set_forkserver_preload(["tests.conftest", __name__, "torch._dynamo"])
    return context


def run_until_killed(directory: Path, method: str, announce: Connection) -> None:
    """Run a federation that, in round 4, asks to be killed while its second client is at work.

    The first client has saved its state by then, and the server knows nothing of it.
    """
    at_work = 0

    class Announcing(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            nonlocal at_work
            metadata = message.metadata
            at_work += (metadata.message_type, metadata.group_id) == ("train", "4")
            if at_work != 2:
                return super()._answer(message)
            announce.send_bytes(b"at work")
            super()._answer(message)
            time.sleep(LIMIT)  # however late the signal comes, round 4 does not end before it
            raise SystemExit("this process was to be killed")

    run_federation(directory, CLIENTS, method=method, grid_class=Announcing, **SETTINGS)


def kill_in_round_four(processes: ForkServerContext, directory: Path, method: str) -> Outcome:
    """Start the run in a process of its own and end it with SIGKILL in the middle of round 4."""
    reader, writer = processes.Pipe(duplex=False)
    process = processes.Process(
        target=run_until_killed, args=(directory, method, writer), daemon=True
    )
    told = b""
    try:
        process.start()
        writer.close()  # so that the child has the only one, and its end is noticed at once
        with contextlib.suppress(EOFError):
            told = reader.recv_bytes() if reader.poll(LIMIT) else b""
    finally:
        process.kill()
        process.join(30)
        reader.close()
    assert told == b"at work", f"{method}: the process came to no second client in round 4"
    assert process.exitcode == -signal.SIGKILL
    return Outcome(directory / "run")


@pytest.mark.parametrize("method", method_names())
def test_killed_and_resumed_equals_uninterrupted(
    processes: ForkServerContext, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U21: per-client metrics, traffic and sampled clients are equal bit for bit."""
    killed = kill_in_round_four(processes, tmp_path / "parts", method)
    assert killed.config["status"] == "running"
    assert not (killed.path / "summary.json").exists()
    assert [row["round"] for row in killed.rows("rounds")] == ["1", "2", "3"]
    resumed = run_federation(tmp_path / "parts", CLIENTS, method=method, resume="run", **SETTINGS)
    assert "resuming after round 3" in capsys.readouterr().out
    assert resumed.config["status"] == "completed"
    whole = run_federation(tmp_path / "whole", CLIENTS, method=method, **SETTINGS)
    assert resumed.text("metrics.csv") == whole.text("metrics.csv")
    assert resumed.text("traffic.csv") == whole.text("traffic.csv")
    assert resumed.summary["accuracy"] == whole.summary["accuracy"]
