"""The supervisor: what ends unasked starts again, with growing pauses and a limit."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from deploy.fleet import log_files
from deploy.fleet.description import Restarts
from deploy.fleet.supervisor import FAILED, HELD, PAUSING, REVOKED, RUNNING, Spec, Supervisor
from deploy.fleet.watchdog import Watchdog
from deploy.flower import processes
from deploy.flower.processes import end_family, family

SLEEP = "import time; print('here', flush=True); time.sleep(60)"
END = "print('[code: 2004] Failed to activate SuperNode.'); raise SystemExit(3)"
PYTHON = Path(sys.executable).name
QUICK = Restarts(at_most=3, within=60.0, first_pause=0.1, longest_pause=0.2)


@dataclasses.dataclass
class Watched:
    supervisor: Supervisor
    events: list[str]
    spec: Callable[..., Spec]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    events: list[str] = []
    mark = f"WILDFLOWER_TEST={tmp_path.name}-{time.time_ns()}"

    def spec(code: str, name: str = "sleeper") -> Spec:
        variable, _, value = mark.partition("=")
        return Spec(
            name=name,
            command=(PYTHON, "-c", code),
            directory=tmp_path / name,
            environment={**os.environ, variable: f"{value}-{name}."},
            log=tmp_path / f"{name}.log",
            mark=f"{mark}-{name}.",
        )

    supervisor = Supervisor(QUICK, events.append)
    yield Watched(supervisor, events, spec)
    supervisor.close()
    end_family(mark, set())
    supervisor.reap()
    assert family(mark, set()) == set()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_accident_is_followed_by_a_new_start(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(watched.spec(SLEEP))
    first = supervisor.views()["sleeper"]
    assert (first.state, first.restarts) == (RUNNING, 0)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: supervisor.views()["sleeper"].restarts == 1)
    second = supervisor.views()["sleeper"]
    assert second.state == RUNNING
    assert second.pid not in (None, first.pid)
    assert watched.events == [
        "sleeper was ended by signal 9; starts again in 0.1 s (1 of at most 3 in 60 s)",
        "sleeper is started again",
    ]
    wait_for(lambda: "here" in second.output())
    assert second.log_start > first.log_start
    assert Path(second.log).read_text().count("sleeper starts") == 2


def test_what_ends_all_the_time_is_given_up_and_says_why(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(watched.spec(END))
    wait_for(lambda: supervisor.views()["sleeper"].state == FAILED)
    view = supervisor.views()["sleeper"]
    assert (view.restarts, view.pid) == (3, None)
    pauses = [event.split(" in ")[1] for event in watched.events if "starts again" in event]
    assert [pause.split(" s")[0] for pause in pauses] == ["0.1", "0.2", "0.2"]
    last = watched.events[-1]
    assert "more than 3 times in 60 s; it is not started again: [code: 2004]" in last
    assert "its key is not registered, or Flower believes it online" in last
    supervisor.start("sleeper")  # by hand: with a clean record
    wait_for(lambda: supervisor.views()["sleeper"].state == PAUSING)
    wait_for(lambda: supervisor.views()["sleeper"].state == FAILED)


def test_what_is_ended_on_request_stays_down(watched: Watched) -> None:
    supervisor = watched.supervisor
    supervisor.add(watched.spec(SLEEP))
    supervisor.add(watched.spec(SLEEP, "other"))
    other = supervisor.views()["other"].pid
    supervisor.end("sleeper", signal.SIGKILL)
    supervisor.end("sleeper", signal.SIGKILL)  # again: nothing to do
    time.sleep(0.5)
    view = supervisor.views()["sleeper"]
    assert (view.state, view.pid, watched.events) == (HELD, None, [])
    assert supervisor.views()["other"].pid == other
    supervisor.start("sleeper")
    assert supervisor.views()["sleeper"].state == RUNNING


def test_leftovers_of_a_process_end_before_it_starts_again(watched: Watched) -> None:
    """A ClientApp of a killed SuperNode would write the same state as that of the new one."""
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); {SLEEP}"
    supervisor = watched.supervisor
    spec = watched.spec(child)
    supervisor.add(spec)
    wait_for(lambda: len(family(spec.mark, set())) == 2)
    before = {process.pid for process in family(spec.mark, set())}
    supervisor.end("sleeper", signal.SIGKILL)
    assert len(family(spec.mark, set())) == 1
    supervisor.start("sleeper")
    wait_for(lambda: len(family(spec.mark, set())) == 2)
    assert not before & {process.pid for process in family(spec.mark, set())}


@pytest.mark.parametrize("dismissed", [True, False])
def test_the_watchdog_ends_what_a_dead_parent_leaves(watched: Watched, dismissed: bool) -> None:
    spec = watched.spec(SLEEP)
    watched.supervisor.add(spec)
    watchdog = Watchdog(spec.mark, ())
    if dismissed:
        watchdog.dismiss()
        time.sleep(0.5)
        assert len(family(spec.mark, set())) == 1
    else:
        watched.supervisor.close()  # it dies with the parent
        assert watchdog._child.stdin is not None
        watchdog._child.stdin.close()
        wait_for(lambda: not family(spec.mark, set()))
        watchdog._child.wait(60)


def test_programs_end_in_the_order_asked_for_and_a_run_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RUNS", ("run",))
    monkeypatch.setattr(processes, "RUN_SECONDS", 0.5)
    mark = f"WILDFLOWER_TEST={tmp_path.name}-{time.time_ns()}"
    variable, _, value = mark.partition("=")
    code = (
        "import os, signal, sys, time\n"
        "def leave(*_):\n"
        "    time.sleep(0.3)\n"
        "    try:\n"
        "        os.kill(int(sys.argv[1]), 0)\n"
        "        runs = 'run '\n"
        "    except ProcessLookupError:\n"
        "        runs = ''\n"
        f"    open({str(tmp_path / 'order')!r}, 'a').write(runs + sys.argv[0] + ' ')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave if sys.argv[0] != 'run' else signal.SIG_IGN)\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    children: list[subprocess.Popen[bytes]] = []
    for name in ("run", "link", "node", "app"):
        (tmp_path / name).write_text(code)
        child = subprocess.Popen(
            [sys.executable, name, str(children[0].pid if children else 0)],
            cwd=tmp_path, env={**os.environ, variable: value}, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        children.append(child)
    threading.Thread(target=children[0].wait, daemon=True).start()  # so that it is no zombie
    end_family(mark, set(), first=("run", "app", "node"))
    assert (tmp_path / "order").read_text().split() == ["app", "node", "link"]
    assert [child.wait(10) for child in children] == [-signal.SIGKILL, 0, 0, 0]


SIGNALLED = """
import os, signal, sys
from deploy.flower.processes import terminate_as_interrupt, uninterrupted
number = int(sys.argv[1])
try:
    with terminate_as_interrupt():
        os.kill(os.getpid(), number)
        print("not heard")
except KeyboardInterrupt:
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
    print("heard")
"""


@pytest.mark.parametrize(
    ("number", "before", "said"),
    [
        (signal.SIGINT, signal.SIG_DFL, "heard"),
        (signal.SIGINT, signal.SIG_IGN, "heard"),  # in the background of a shell
        (signal.SIGTERM, signal.SIG_DFL, "heard"),
        (signal.SIGHUP, signal.SIG_DFL, "heard"),
        (signal.SIGHUP, signal.SIG_IGN, "not heard"),  # under nohup
    ],
)
def test_which_requests_to_end_are_heard(number: int, before: signal.Handlers, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number))],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: signal.signal(number, before),
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (said + "\n", 0), done.stderr


def test_what_is_not_wanted_any_more_is_not_started_again(watched: Watched) -> None:
    """A device whose key was revoked; it would be refused twenty times."""
    revoked: list[str] = []
    supervisor = watched.supervisor
    supervisor.add(dataclasses.replace(watched.spec(SLEEP), unwanted=lambda: bool(revoked)))
    revoked.append("yes")
    pid = supervisor.views()["sleeper"].pid
    assert pid
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: supervisor.views()["sleeper"].state == REVOKED)
    time.sleep(0.5)
    assert supervisor.views()["sleeper"].state == REVOKED
    assert watched.events == [
        "sleeper is revoked and has ended; `wildflower fleet add` lets it in again"
    ]


WRITE = """
import threading
import time
print('SuperNode ID: 7', flush=True)
for i in range(10**9):
    print(i, flush=True)
    time.sleep(0.002)
"""


def test_a_long_log_is_put_aside_while_it_is_written(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "LOG_BYTES", 200)
    supervisor, spec = watched.supervisor, watched.spec(WRITE)
    supervisor.add(spec)
    wait_for(lambda: len(supervisor.views()["sleeper"].output()) > 300)
    supervisor.rotate_logs()
    wait_for(lambda: supervisor.views()["sleeper"].output().count("\n") > 5)
    supervisor.end("sleeper", signal.SIGKILL)
    before = spec.log.with_suffix(".log.previous").read_text().splitlines()
    after = supervisor.views()["sleeper"].output().splitlines()
    assert after[0] == "SuperNode ID: 7"  # by which `fleet status` knows that it is online
    assert not [line for line in after if "\0" in line]
    numbers = [int(line) for line in [*before, *after] if line.isdigit()]
    # What was written while the supervisor had no core is lost: 0.1 s of it on a busy machine.
    assert numbers[-1] - len(numbers) <= 50
    assert spec.log.with_suffix(".log.previous").stat().st_mode & 0o777 == 0o600
    assert watched.events == ["sleeper: its log was long and is now sleeper.log.previous"]


def test_what_is_written_during_the_copy_is_copied_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "device.log"
    log.write_text("online\nfirst\n")
    late = iter(["second\n", "third\n"])
    copy = shutil.copyfileobj

    def copy_slowly(source: BinaryIO, target: BinaryIO) -> None:
        copy(source, target)
        with log.open("a") as file:
            file.write(next(late, ""))

    monkeypatch.setattr(shutil, "copyfileobj", copy_slowly)
    log_files.rotate_in_use(log, keep=b"online\n")
    assert log_files.earlier(log).read_text() == "online\nfirst\nsecond\nthird\n"
    assert log.read_text() == "online\n"


def test_a_log_that_cannot_be_put_aside_is_said_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "LOG_BYTES", 1)
    supervisor, spec = watched.supervisor, watched.spec(SLEEP)
    spec.log.with_suffix(".log.part").mkdir(parents=True)
    supervisor.add(spec)
    wait_for(lambda: "here" in supervisor.views()["sleeper"].output())
    supervisor.rotate_logs()
    supervisor.rotate_logs()
    assert len(watched.events) == 1
    assert "cannot be put aside" in watched.events[0]
    assert supervisor.views()["sleeper"].state == RUNNING
