"""`wildflower compare --processes N`: runs of a comparison at once, without Flower's processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from deploy.cli import main
from deploy.compare import own_processes
from deploy.compare.own_processes import RunProcesses
from deploy.compare.plan import PlannedRun, read_plan
from server_app.records.csv_files import finished_rounds
from tests.support import Outcome, run_federation

SETTINGS: dict[str, Any] = {
    "num-rounds": 2, "models": "cnn5", "subset": 0.1, "image-size": 16, "feature-dim": 32,
}  # fmt: skip
SLEEPING = "import time; print('here', flush=True); time.sleep(100)"


def a_file(tmp_path: Path, **changes: Any) -> Path:
    content = {
        "name": "two", "output-dir": str(tmp_path / "out"), "clients": 2,
        "methods": ["local", "fedre"], "seeds": [0], "settings": SETTINGS, **changes,
    }  # fmt: skip
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_runs_have_the_numbers_of_any_other_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where one of them fails, which is said at its name with its log; then it goes on."""
    broken = {"name": "fedre", "label": "broken", "overrides": {"data-dir": str(tmp_path / "no")}}
    broken["overrides"] |= {"dataset": "imagefolder", "image-size": 16}
    path = a_file(tmp_path, methods=["local", broken, "fedre"])
    assert main(["compare", str(path), "--processes", "2"]) == 1
    said = capsys.readouterr().out
    assert "[1/3] two-local-seed0: starts" in said
    assert "two-fedre-seed0: complete after" in said
    log = tmp_path / "out" / "logs" / "two-broken-seed0.log"
    assert "two-broken-seed0: not complete:" in said
    assert str(tmp_path / "no") in log.read_text()
    for method in ("local", "fedre"):
        alone = run_federation(tmp_path / method, 2, method=method, **_keys(SETTINGS))
        run = Outcome(tmp_path / "out" / f"two-{method}-seed0")
        assert run.text("metrics.csv") == alone.text("metrics.csv")
    assert "2 of 3 runs complete" in (tmp_path / "out" / "two.html").read_text()
    path = a_file(tmp_path)
    assert main(["compare", str(path), "--processes", "2"]) == 0
    assert "two: 2 runs, 2 already complete" in capsys.readouterr().out


def _keys(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in settings.items()}


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"gpus-per-client": 0.5}, [], "leaves gpus-per-client without effect"),
        ({}, ["--app", "."], "no Flower app is started then; leave out --app"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any],
    options: list[str], words: str,
) -> None:  # fmt: skip
    path = a_file(tmp_path, **changes)
    assert main(["compare", str(path), "--processes", "2", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.fixture
def planned(tmp_path: Path) -> tuple[PlannedRun, ...]:
    return read_plan(a_file(tmp_path)).runs


def start_all(
    processes: RunProcesses, planned: tuple[PlannedRun, ...], log: Path, timeout: float
) -> list[psutil.Process]:
    for run in planned:
        processes.start(run, run.config, clients=2, log=log / run.name, timeout=timeout)
    found = [run.process for run in processes._running]
    deadline = time.monotonic() + 30
    while any("here" not in (log / run.name).read_text() for run in planned):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [psutil.Process(process.pid) for process in found]


INTERRUPTS = {
    "obeys": SLEEPING,
    "swallows the first": f"try:\n    {SLEEPING}\nexcept BaseException:\n    time.sleep(100)",
    "ignores": f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {SLEEPING}",
}


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_what_runs_at_the_end_is_interrupted_then_killed(
    tmp_path: Path, planned: tuple[PlannedRun, ...], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    command = [sys.executable, "-c", INTERRUPTS[kind]]
    monkeypatch.setattr(own_processes, "command_of", lambda clients, keys: command)
    monkeypatch.setattr(own_processes, "LEAVE_SECONDS", 0.5 if kind == "ignores" else 2.0)
    with RunProcesses(2) as processes:
        children = start_all(processes, planned, tmp_path, 100)
        assert processes.full
    assert psutil.wait_procs(children, timeout=5)[1] == []
    told = "KeyboardInterrupt" in (tmp_path / planned[0].name).read_text()
    assert told == (kind != "ignores")


def test_a_run_that_takes_too_long_is_ended(
    tmp_path: Path, planned: tuple[PlannedRun, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        own_processes, "command_of", lambda clients, keys: [sys.executable, "-c", SLEEPING]
    )
    with RunProcesses(1) as processes:
        children = start_all(processes, planned[:1], tmp_path, 1.5)
        ended, reason = processes.wait()
        assert (ended.planned, reason) == (planned[0], "it took more than 1.5 s (run-timeout)")
        assert len(processes) == 0
    assert psutil.wait_procs(children, timeout=5)[1] == []


def test_ctrl_c_interrupts_the_runs_and_says_how_to_go_on(tmp_path: Path) -> None:
    """As the user does it: both runs are told, record it, and a second start resumes them."""
    path = a_file(tmp_path, settings={**SETTINGS, "num-rounds": 2000, "subset": 0.5})
    command = [sys.executable, "-m", "deploy.cli", "compare", str(path), "--processes", "2"]
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    children: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 120
        runs = [Outcome(tmp_path / "out" / f"two-{method}-seed0") for method in ("local", "fedre")]
        while not all(finished_rounds(run.path) for run in runs):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        log.close()
    assert len(children) == 2
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert [run.config["status"] for run in runs] == ["interrupted"] * 2
    said = (tmp_path / "log").read_text()
    assert f"interrupted; `wildflower compare {path} --processes 2` goes on from here" in said
