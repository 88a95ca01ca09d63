"""Real devices that fail: a run goes on without them, or says why it cannot."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from deploy.supervisor import REFUSED
from strategies.base.round_files import round_file, rounds_in
from strategies.base.state import read_about
from tests.faults_support import CLIENTS, Faults, checked_status, wait_until
from tests.support import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("healthy")]

RUN = "whole"
MARKER = 10**6
"""Batches that a private model was trained with, if one believes its counter."""


def test_a_run_goes_on_without_a_killed_and_a_slow_device(
    fleet: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    """Faults 3 and 7: both miss round 2; one is back in the next, the other when it is let in."""
    fleet.without_fault(RUN, 2)
    slowest = max(float(row["seconds"]) for row in fleet.outcome(RUN).rows("rounds")[:2])
    timeout = round(min(max(20.0, 3 * slowest), 120.0))
    run_id = fleet.submit(
        "troubled", num_rounds=50, evaluate_every=50, round_timeout=float(timeout), min_clients=1
    )
    outcome = fleet.outcome("troubled")
    fleet.wait_for_record("troubled", 1, run_id)
    with fleet.held():
        pid = fleet.running.processes["client-2"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)  # not on request: the fleet starts it again
        wait_until(lambda: fleet.running.processes["client-2"].restarts > 0, "the new start")
        mark_state(fleet.states(2, "troubled"))
        fleet.wait_for_record("troubled", 2, run_id)
    fleet.wait_in_run(run_id, lambda: trained(outcome, 2)[-1] > 2, "the return of client 2")
    fleet.stop(run_id)
    run = fleet.wait(run_id)
    assert run.status == "finished:stopped"
    wait_until(lambda: checked_status(outcome, capsys) == "interrupted", "the end of the run")
    assert REFUSED in Path(fleet.running.processes["client-2"].log).read_text()
    back = assert_went_on(outcome, run.log, timeout)
    assert_goes_on_from_the_mark(fleet.states(2, "troubled"), len(back))


def assert_went_on(outcome: Outcome, log: str, timeout: int) -> list[int]:
    """Check that client 1 missed round 2 only, and return the rounds in which client 2 trained."""
    rounds = trained(outcome, 0)
    assert rounds == list(range(1, len(rounds) + 1))
    assert trained(outcome, 1) == [number for number in rounds if number != 2]
    back = trained(outcome, 2)
    assert (back[0], back[-1]) == (1, rounds[-1])
    assert 2 not in back
    failures = outcome.rows("failures")
    late = f"no answer within {timeout} s (round-timeout)"
    assert [(r["round"], r["reason"]) for r in failures if r["client"] == "1"] == [("2", late)]
    assert f"round 2: client 1 (train): {late}" in log
    killed = [row for row in failures if row["client"] == "2"]
    assert killed[0]["round"] == "2"
    assert "state" not in {row["kind"] for row in killed}  # none was lost
    assert len(failures) == 1 + len(killed)
    up = [row for row in outcome.rows("traffic") if row["direction"] == "uplink"]
    # The late answer is not counted either.
    assert [int(row["round"]) for row in up if row["client"] == "1"] == trained(outcome, 1)
    assert timeout <= float(outcome.rows("rounds")[1]["seconds"]) < 2 * timeout
    return back


def trained(outcome: Outcome, client: int) -> list[int]:
    """Return the rounds in which the server had an update of a client, ascending."""
    return [int(row["round"]) for row in outcome.metrics(metric="loss", client=client)]


def counters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return BatchNorm's counters of the batches that a model was trained with."""
    found = {k: v for k, v in state.items() if k.endswith("num_batches_tracked")}
    assert found
    return found


def mark_state(directory: Path) -> None:
    """Let a private model on its device's disk look as if it had been trained for long."""
    assert rounds_in(directory)
    for number in rounds_in(directory):
        path = round_file(directory, number)
        with safe_open(path, "pt") as file:
            header = file.metadata()
        state = load_file(path)
        marked = {key: torch.full_like(value, MARKER) for key, value in counters(state).items()}
        save_file({**state, **marked}, path, metadata=header)


def assert_goes_on_from_the_mark(directory: Path, rounds: int) -> None:
    newest = round_file(directory, rounds_in(directory)[-1])
    assert read_about(newest)["rounds_trained"] >= rounds
    for counter in counters(load_file(newest)).values():
        assert MARKER < counter.item() < 2 * MARKER


def test_too_few_devices_fail_the_run(fleet: Faults) -> None:
    """Fault 6; the last test, because two devices are not started again."""
    for name in CLIENTS[1:]:
        fleet.running.stop(name)
    run = fleet.wait(fleet.submit("lonely", min_clients=2, wait_timeout=20.0))
    assert run.status == "finished:failed"
    assert "1 of 2 clients after 20 s" in run.log
    left = fleet.outcome("lonely").config
    assert left["status"] == "failed"
    assert "1 of 2 clients after 20 s" in left["reason"]
