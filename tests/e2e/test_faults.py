"""Real servers that fail, and a device that nobody knows: a run says so, or is resumed.

One fleet serves all tests: three SuperNodes with three unlike architectures, with TLS and keys, and
a stranger. Killing the ServerApp and the SuperLink continues the run of the first test, so that
rounds without a fault are not repeated; each test can also be run alone.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deploy.fleet import HEARTBEAT_LIMIT
from deploy.specs import flower_client
from deploy.state import ACCEPTED
from deploy.supervisor import REFUSED
from server_app.flower.client import CONNECTION
from tests.faults_support import (
    CLIENTS,
    HOLD,
    SETTINGS,
    STRANGER,
    Faults,
    checked_status,
    modules,
    wait_until,
)
from tests.support import Outcome, run_federation

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("healthy")]

RUN = "whole"
SHORT = 8.0
"""Seconds; after 25 s, and a pause as long between two attempts, a minute might be over."""


@pytest.fixture(scope="module")
def reference(fleet: Faults, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same run in one process, with the same seed, without any fault."""
    directory = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(modules(directory))
        patch.setenv(HOLD, str(directory / "nothing"))
        keys = {key.replace("-", "_"): value for key, value in SETTINGS.items()}
        return run_federation(directory, len(CLIENTS), **{**keys, "num_rounds": 5})


def assert_same(run: Outcome, reference: Outcome, rounds: int) -> None:
    """Check that a run has left what it leaves without any fault, figure by figure."""
    assert run.config["status"] == "completed"
    assert run.rows("failures") == []
    for name in ("metrics", "traffic"):
        wanted = [row for row in reference.rows(name) if int(row["round"]) <= rounds]
        assert run.rows(name) == wanted
        assert {int(row["round"]) for row in wanted} == set(range(1, rounds + 1))


def test_a_fleet_equals_one_process_and_a_stranger_is_refused(
    fleet: Faults, reference: Outcome
) -> None:
    """Faults 1 and 2; the device whose key nobody registered asks all the time."""
    fleet.running.start(STRANGER)
    run = fleet.wait(fleet.submit(RUN, num_rounds=2))
    stranger = fleet.running.processes[STRANGER]
    wait_until(lambda: REFUSED in Path(stranger.log).read_text(), "the refusal")
    answer = flower_client(fleet.running.fleet).flwr_json(
        "supernode", "ls", CONNECTION, "--format", "json"
    )
    fleet.running.kill(STRANGER)  # it would try for ever
    assert run.completed, run.log
    outcome = fleet.outcome(RUN)
    assert_same(outcome, reference, 2)
    models = [row["model"] for row in outcome.rows("clients")]
    assert models == ["cnn5", "held_models:held", "resnet10-w4"]
    assert ACCEPTED not in Path(stranger.log).read_text()
    assert [node["status"] for node in answer["nodes"]] == ["online"] * len(CLIENTS)
    assert "client 3" not in run.log
    assert "3 of 3 clients" in run.log


def test_a_killed_server_app_resumes_to_the_same_numbers(fleet: Faults, reference: Outcome) -> None:
    """Fault 4."""
    fleet.without_fault(RUN, 2)
    with fleet.held():
        run_id = fleet.submit(RUN, num_rounds=3)
        fleet.wait_in_round(RUN, 3, run_id)
        fleet.kill_server_app()
    assert fleet.rounds(RUN) == 2
    assert fleet.outcome(RUN).config["status"] == "running"
    fleet.stop(run_id)  # Flower notices by itself after a minute
    run = fleet.wait(fleet.submit(RUN, num_rounds=3))
    assert run.completed, run.log
    assert "resuming after round 2" in run.log
    assert_same(fleet.outcome(RUN), reference, 3)


def test_a_run_outlives_a_short_end_of_the_superlink_and_resumes_after_a_long_one(
    fleet: Faults, reference: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault 5: one run is hit twice, and resumed."""
    fleet.without_fault(RUN, 3)
    with fleet.held():
        run_id = fleet.submit(RUN, num_rounds=5)
        fleet.wait_in_round(RUN, 4, run_id)
        fleet.running.kill("superlink")
    time.sleep(SHORT)
    fleet.running.start("superlink")
    wait_until(lambda: fleet.rounds(RUN) == 4, "the end of round 4")  # by itself
    with fleet.held():
        fleet.wait_in_round(RUN, 5, run_id)
        fleet.running.kill("superlink")
    time.sleep(HEARTBEAT_LIMIT + 2.0)
    fleet.running.start("superlink")
    run = fleet.wait(run_id)
    assert run.status == "finished:failed", run.log
    fleet.wait_for_no_server_app()
    assert fleet.rounds(RUN) == 4
    # A process that ends gives up its lock a little after it is seen to be gone.
    wait_until(
        lambda: checked_status(fleet.outcome(RUN), capsys) == "interrupted", "the end of the run"
    )
    run = fleet.wait(fleet.submit(RUN, num_rounds=5))
    assert run.completed, run.log
    assert "resuming after round 4" in run.log
    assert_same(fleet.outcome(RUN), reference, 5)
