"""Real processes that fail: a run says so, goes on without them, or is resumed.

One fleet serves all tests: three SuperNodes with three unlike architectures, with TLS and keys, and
a stranger. Killing the SuperLink continues the run of the first test, so that rounds without a
fault are not repeated; each test can also be run alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from deploy.cli import main
from deploy.fleet.description import HEARTBEAT_LIMIT
from deploy.fleet.specs import flower_client
from deploy.fleet.supervisor import ACCEPTED, REFUSED
from deploy.flower.commands import CONNECTION
from strategies.base.round_files import round_file, rounds_in
from strategies.base.state import read_about
from tests.faults_support import (
    CLIENTS,
    HOLD,
    SETTINGS,
    STRANGER,
    Faults,
    faulty_fleet,
    modules,
    wait_until,
)
from tests.support import Outcome, run_federation

pytestmark = pytest.mark.e2e

RUN = "whole"
SHORT = 8.0
"""Seconds; after 25 s, and a pause as long between two attempts, a minute might be over."""

MARKER = 10**6


@pytest.fixture(scope="module")
def fleet(dataset_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with faulty_fleet(tmp_path_factory.mktemp("faults"), dataset_cache) as faults:
        yield faults


@pytest.fixture(scope="module")
def reference(fleet: Faults, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same run in one process, with the same seed, without any fault."""
    directory = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(modules(directory))
        patch.setenv(HOLD, str(directory / "nothing"))
        keys = {key.replace("-", "_"): value for key, value in SETTINGS.items()}
        return run_federation(directory, len(CLIENTS), **{**keys, "num_rounds": 4})


@pytest.fixture(autouse=True)
def healthy(fleet: Faults) -> None:
    """Every test starts with a fleet that is whole."""
    fleet.everyone()


def assert_same(run: Outcome, reference: Outcome, rounds: int) -> None:
    """Check that a run has left what it leaves without any fault, figure by figure."""
    assert run.config["status"] == "completed"
    assert run.rows("failures") == []
    for name in ("metrics", "traffic"):
        wanted = [row for row in reference.rows(name) if int(row["round"]) <= rounds]
        assert run.rows(name) == wanted
        assert {int(row["round"]) for row in wanted} == set(range(1, rounds + 1))


def test_a_killed_server_app_resumes_to_the_numbers_of_one_process_and_a_stranger_is_refused(
    fleet: Faults, reference: Outcome
) -> None:
    """Faults 1, 2 and 4; a device whose key nobody registered asks, too."""
    fleet.running.start(STRANGER)
    run_id = fleet.submit(RUN, num_rounds=2)
    stranger = fleet.running.processes[STRANGER]
    wait_until(lambda: REFUSED in Path(stranger.log).read_text(), "the refusal")
    answer = flower_client(fleet.running.fleet).flwr_json(
        "supernode", "ls", CONNECTION, "--format", "json"
    )
    fleet.running.kill(STRANGER)  # it would try for ever
    fleet.wait_for_record(RUN, 1, run_id)
    with fleet.held():
        fleet.wait_in_round(RUN, 2, run_id)
        fleet.kill_server_app()
    assert fleet.rounds(RUN) == 1
    assert fleet.outcome(RUN).config["status"] == "running"
    fleet.stop(run_id)  # Flower notices by itself after a minute
    run = fleet.wait(fleet.submit(RUN, num_rounds=2))
    assert run.completed, run.log
    assert "resuming after round 1" in run.log
    outcome = fleet.outcome(RUN)
    assert_same(outcome, reference, 2)
    models = [row["model"] for row in outcome.rows("clients")]
    assert models == ["cnn5", "held_models:held", "resnet10-w4"]
    assert ACCEPTED not in Path(stranger.log).read_text()
    assert [node["status"] for node in answer["nodes"]] == ["online"] * len(CLIENTS)
    assert "client 3" not in run.log
    assert "3 of 3 clients" in run.log


def test_a_run_outlives_a_short_end_of_the_superlink_and_resumes_after_a_long_one(
    fleet: Faults, reference: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault 5: one run is hit twice, and resumed."""
    fleet.without_fault(RUN, 2)
    with fleet.held():
        run_id = fleet.submit(RUN, num_rounds=4)
        fleet.wait_in_round(RUN, 3, run_id)
        fleet.running.kill("superlink")
    time.sleep(SHORT)
    fleet.running.start("superlink")
    wait_until(lambda: fleet.rounds(RUN) == 3, "the end of round 3")  # by itself
    with fleet.held():
        fleet.wait_in_round(RUN, 4, run_id)
        fleet.running.kill("superlink")
    time.sleep(HEARTBEAT_LIMIT + 2.0)
    fleet.running.start("superlink")
    run = fleet.wait(run_id)
    assert run.status == "finished:failed", run.log
    fleet.wait_for_no_server_app()
    assert fleet.rounds(RUN) == 3
    # A process that ends gives up its lock a little after it is seen to be gone.
    wait_until(lambda: status(fleet.outcome(RUN), capsys) == "interrupted", "the end of the run")
    run = fleet.wait(fleet.submit(RUN, num_rounds=4))
    assert run.completed, run.log
    assert "resuming after round 3" in run.log
    assert_same(fleet.outcome(RUN), reference, 4)


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
    wait_until(lambda: status(outcome, capsys) == "interrupted", "the end of the run")
    again = fleet.running.processes["client-2"]
    # A start that takes longer than the heartbeats of the killed one are waited for is let in.
    assert again.restarts == 1 or REFUSED in Path(again.log).read_text()
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


def status(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `wildflower check` says; Flower leaves a stopped ServerApp 5 s to write why."""
    capsys.readouterr()
    assert main(["check", str(outcome.path)]) == 1
    return capsys.readouterr().out.split(": ")[1].strip()


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
