"""A run that is stopped from outside says so, and goes on where it was."""

from __future__ import annotations

import signal
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message
from flwr.supercore.exit import exit_handler
from flwr.supercore.run import RunNotRunningException

import server_app.rounds.in_process
from deploy.cli import main
from deploy.contract.runs import TINY
from server_app.records.run_directory import early_end
from server_app.rounds import process_end, transport
from server_app.rounds.exchange import RunError
from server_app.rounds.in_process import InProcessGrid
from strategies.base.messages import CONTROL
from strategies.base.options import ConfigError
from tests.support import SMALL, Outcome, run_federation, typed

GO_ON = "go on with resume='run'"
ROUND = 3


class Stopped(InProcessGrid):
    """Something ends the run while round 3 is sent."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        batch = list(messages)
        if any(m.content[CONTROL]["round"] == ROUND for m in batch if CONTROL in m.content):
            self.stop()
        return super().push_messages(batch)

    def stop(self) -> None:
        raise SystemExit(0)  # as Flower ends a ServerApp whose run was stopped


class CtrlC(Stopped):
    """The user presses Ctrl-C."""

    def stop(self) -> None:
        signal.raise_signal(signal.SIGINT)


class ToldToEnd(Stopped):
    """Flower's main thread ends the process and takes the workers down under the ServerApp."""

    def stop(self) -> None:
        exit_handler.trigger_exit_handlers(run_before_force_exit=False)

    def _answer(self, message: Message) -> Message:
        if process_end._TOLD.is_set():
            return Message(Error(3, "the worker died"), reply_to=message)
        return super()._answer(message)


class LeavesRay(Stopped):
    """Ray's own handler of the signal takes the workers down; Flower's are not asked."""

    leaving = False

    def stop(self) -> None:
        self.leaving = True

    def _answer(self, message: Message) -> Message:
        if self.leaving:
            reason = f"The actor is dead because {process_end.OWNER_DIED}. Owner Id: 01000000ff"
            return Message(Error(3, reason), reply_to=message)
        return super()._answer(message)


class Broken(Stopped):
    """Code of the run itself leaves, with an exit code."""

    def stop(self) -> None:
        raise SystemExit(7)


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Whoever started the tests may have told them not to listen."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("grid", "error"), [(Stopped, SystemExit), (CtrlC, KeyboardInterrupt)], ids=["stop", "ctrl-c"]
)
def test_a_stopped_run_is_interrupted_and_goes_on(
    tmp_path: Path, capsys: Any, grid: type[InProcessGrid], error: type[BaseException]
) -> None:
    with pytest.raises(error):
        run_federation(tmp_path / "cut", 3, num_rounds=3, grid_class=grid, report=True)
    left = Outcome(tmp_path / "cut" / "run")
    assert left.config["status"] == "interrupted"
    assert left.config["reason"].endswith(GO_ON)
    assert "wildflower: the run was interrupted: stopped from outside" in capsys.readouterr().out
    assert [row["round"] for row in left.rows("rounds")] == ["1", "2"]
    assert "This run was interrupted" in left.text("report.html")
    resumed = run_federation(tmp_path / "cut", 3, num_rounds=3, resume="run")
    assert (resumed.config["status"], resumed.config.get("reason")) == ("completed", None)
    whole = run_federation(tmp_path / "whole", 3, num_rounds=3)
    assert not (whole.path / "report.html").exists()  # as that run's `report` says
    assert resumed.text("metrics.csv") == whole.text("metrics.csv")


def test_clients_that_end_with_the_process_are_no_failures_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(process_end, "_TOLD", threading.Event())
        patch.setattr(process_end, "_LISTENS", threading.Lock())
        patch.setattr(exit_handler, "registered_exit_handlers", [])
        with pytest.raises(SystemExit):
            run_federation(tmp_path / "cut", 3, num_rounds=3, grid_class=ToldToEnd)
    left = Outcome(tmp_path / "cut" / "run")
    assert left.config["status"] == "interrupted"
    assert [row["round"] for row in left.rows("rounds")] == ["1", "2"]
    assert left.rows("failures") == []
    resumed = run_federation(tmp_path / "cut", 3, num_rounds=3, resume="run")
    whole = run_federation(tmp_path / "whole", 3, num_rounds=3)
    assert resumed.text("metrics.csv") == whole.text("metrics.csv")


def test_workers_that_end_with_ray_are_no_failures_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a simulation; a device that says so has failed like any other."""
    with pytest.raises(RunError, match=r"round 3: none of 3 participants .*its owner has died"):
        run_federation(tmp_path / "devices", 3, num_rounds=3, grid_class=LeavesRay, **TINY)
    devices = Outcome(tmp_path / "devices" / "run")
    assert [row["round"] for row in devices.rows("failures")] == ["3"] * 3
    monkeypatch.setattr(transport, "is_simulation", lambda grid: True)
    with pytest.raises(SystemExit):
        run_federation(tmp_path / "cut", 3, num_rounds=3, grid_class=LeavesRay, **TINY)
    left = Outcome(tmp_path / "cut" / "run")
    assert left.config["status"] == "interrupted"
    assert [row["round"] for row in left.rows("rounds")] == ["1", "2"]
    assert left.rows("failures") == []


@pytest.mark.parametrize(("connected", "ends"), [(True, False), (False, True)])
def test_a_failure_after_ray_is_gone_is_none(
    connected: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = types.SimpleNamespace(is_initialized=lambda: connected)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(SystemExit) if ends else nullcontext():
        process_end.stop_if_without_ray("ValueError: boom")


def test_a_completed_run_that_goes_on_has_no_summary_until_it_ends(tmp_path: Path) -> None:
    """What an earlier end left must not pass for the outcome of more rounds."""
    assert run_federation(tmp_path / "cut", 3, num_rounds=2).summary["rounds"] == 2
    with pytest.raises(SystemExit):
        run_federation(
            tmp_path / "cut", 3, num_rounds=3, resume="run", grid_class=Stopped, report=True
        )
    left = Outcome(tmp_path / "cut" / "run")
    assert left.config["status"] == "interrupted"
    assert not (left.path / "summary.json").exists()
    assert "This run was interrupted" in left.text("report.html")
    resumed = run_federation(tmp_path / "cut", 3, num_rounds=3, resume="run")
    whole = run_federation(tmp_path / "whole", 3, num_rounds=3)
    assert resumed.text("metrics.csv") == whole.text("metrics.csv")
    assert resumed.summary["rounds"] == 3


def test_an_exit_with_a_code_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run_federation(tmp_path, 3, num_rounds=3, grid_class=Broken)
    left = Outcome(tmp_path / "run").config
    assert (left["status"], left["reason"]) == ("failed", "SystemExit: 7")


def test_the_command_names_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**SMALL, "output-dir": str(tmp_path), "num-rounds": 3}
    text = typed(values)
    with monkeypatch.context() as patch:
        patch.setattr(server_app.rounds.in_process, "InProcessGrid", CtrlC)
        assert main(["run", "--clients", "3", "-c", f"{text} run-name='run'"]) == 130
    capsys.readouterr()
    assert main(["check", str(tmp_path / "run")]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("run: interrupted: stopped from outside")
    assert printed.endswith(GO_ON + "\n")
    assert main(["run", "--clients", "3", "-c", f"{text} resume='run'"]) == 0
    assert main(["check", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.endswith("run: completed\n")


def test_what_ends_a_run_early_has_a_status() -> None:
    assert (
        early_end(KeyboardInterrupt(), "a")[0] == early_end(SystemExit(), "a")[0] == "interrupted"
    )
    assert early_end(RunNotRunningException(), "a")[0] == "interrupted"
    assert early_end(ConfigError("x"), "a") == ("failed", "ConfigError: x")
    assert early_end(SystemExit("x"), "a") == ("failed", "SystemExit: x")
