"""Named processes that are started, watched, and started again when they end unasked."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.fleet.description import HEARTBEAT_LIMIT, Restarts
from deploy.fleet.log_files import earlier, is_long, rotate_in_use
from deploy.flower.commands import FlowerError
from deploy.flower.processes import end_child, end_family, executable

RUNNING, PAUSING, HELD, FAILED = "running", "pausing", "held", "failed"
REVOKED = "revoked"
"""States: it runs; it ended unasked and starts again soon; it was ended on request; it ended
unasked too often; it is not wanted any more."""

REFUSED = "[code: 2004]"
"""How Flower refuses a device."""

ACCEPTED = "SuperNode ID:"
"""What a SuperNode writes to its log as soon as the SuperLink has accepted it."""

WATCH_SECONDS = 0.1
ROTATE_SECONDS = 5.0
"""How often it is looked whether a log is too long."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """How a process is started.

    Attributes
    ----------
    name : str
        Its name in the fleet.
    command : tuple of str
        A program of Flower's and its arguments.
    directory : Path
        Its working directory.
    environment : Mapping of str to str
        All of its environment.
    log : Path
        Where its output goes.
    mark : str
        `NAME=value` in its environment and that of everything it starts, and of nothing else.
    port : int, optional
        Where it listens.
    unwanted : callable
        Whether it is not to be started again, because its device was revoked.
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    log: Path
    mark: str
    port: int | None = None
    unwanted: Callable[[], bool] = lambda: False


@dataclasses.dataclass(frozen=True)
class View:
    """What others see of a process under supervision.

    Attributes
    ----------
    name : str
        Its name in the fleet.
    state : str
        See the module's constants.
    pid : int or None
        Its process id while it runs.
    port : int or None
        Where it listens.
    restarts : int
        How often it was started again after it had ended unasked.
    log : str
        Its log, a file.
    log_start : int
        Where in it, in bytes, the output of the last start begins.
    """

    name: str
    state: str
    pid: int | None
    port: int | None
    restarts: int
    log: str
    log_start: int

    def output(self) -> str:
        """Return what it has written since its last start."""
        with open(self.log, "rb") as file:
            file.seek(self.log_start)
            return file.read().decode(errors="replace")


@dataclasses.dataclass
class _Supervised:
    """A process under supervision; fields as in `View`, and when it ended.

    `rotates` is false once its log could not be put aside.
    """

    spec: Spec
    state: str = HELD
    restarts: int = 0
    log_start: int = 0
    rotates: bool = True
    child: subprocess.Popen[bytes] | None = None
    ends: collections.deque[float] = dataclasses.field(default_factory=collections.deque)
    due: float = 0.0

    def view(self) -> View:
        child = self.child if self.state == RUNNING else None
        return View(
            name=self.spec.name,
            state=self.state,
            pid=child.pid if child else None,
            port=self.spec.port,
            restarts=self.restarts,
            log=str(self.spec.log),
            log_start=self.log_start,
        )


class Supervisor:
    """Starts processes and keeps them running.

    Parameters
    ----------
    restarts : Restarts
        How often, and after which pauses, one that ended unasked is started again.
    on_event : callable
        Takes a line for the user whenever a process ended unasked or was started again.
    """

    def __init__(self, restarts: Restarts, on_event: Callable[[str], None]) -> None:
        self.restarts = restarts
        self.on_event = on_event
        self._processes: dict[str, _Supervised] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether processes are being watched."""
        return self._thread.is_alive()

    def views(self) -> dict[str, View]:
        """Return the processes as they are now, by name."""
        with self._lock:
            return {name: process.view() for name, process in self._processes.items()}

    def add(self, spec: Spec) -> None:
        """Start a new process; the first one starts the watch."""
        with self._lock:
            self._processes[spec.name] = _Supervised(spec)
            self.start(spec.name)
            if not self._thread.is_alive():
                self._thread.start()

    def start(self, name: str) -> None:
        """Start a process that was ended, now and with a clean record; one that runs is left."""
        with self._lock:
            process = self._processes[name]
            if process.state != RUNNING:
                process.ends.clear()
                self._spawn(process)

    def end(self, name: str, number: int, seconds: float = 10.0) -> None:
        """Send a process a signal, wait for its end, and do not start it again.

        Only the process itself gets the signal, not what it has started.

        Raises
        ------
        FlowerError
            If it lives on.
        """
        with self._lock:
            process = self._processes[name]
            was, process.state = process.state, HELD
            if was != RUNNING or process.child is None:
                return
            process.child.send_signal(number)
            try:
                process.child.wait(seconds)
            except subprocess.TimeoutExpired:
                process.state = RUNNING
                raise FlowerError(
                    f"{name} (process {process.child.pid}) lives {seconds:g} s after signal "
                    f"{number}"
                ) from None

    def close(self) -> None:
        """Stop watching; processes are left as they are, to be ended by their mark."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(30.0)

    def reap(self) -> None:
        """Take leave of the children that have been ended, so that none stays a zombie."""
        for process in self._processes.values():
            process.state = HELD
            if process.child is not None:
                end_child(process.child)

    def _watch(self) -> None:
        due = time.monotonic() + ROTATE_SECONDS
        while not self._closing.wait(WATCH_SECONDS):
            with self._lock:
                for process in self._processes.values():
                    self._look_after(process)
                if time.monotonic() >= due:
                    due = time.monotonic() + ROTATE_SECONDS
                    self.rotate_logs()

    def rotate_logs(self) -> None:
        """Put aside the logs that have become long; what keeps one from it is said once."""
        with self._lock:
            for name, process in self._processes.items():
                log = process.spec.log
                try:
                    if process.rotates and is_long(log):
                        rotate_in_use(log, _accepted(process.view()))
                        process.log_start = 0
                        self.on_event(f"{name}: its log was long and is now {earlier(log).name}")
                except OSError as error:
                    process.rotates = False
                    self.on_event(f"{name}: its log {log} grows and cannot be put aside: {error}")

    def _look_after(self, process: _Supervised) -> None:
        now = time.monotonic()
        if process.state == RUNNING and process.child is not None:
            status = process.child.poll()
            if status is not None:
                self._plan_restart(process, status, now)
        elif process.state == PAUSING and now >= process.due:
            process.restarts += 1
            try:
                self._spawn(process)
                self.on_event(f"{process.spec.name} is started again")
            except OSError as error:  # no memory or no process ids, for example
                process.state = FAILED
                self.on_event(f"{process.spec.name} cannot be started again: {error}")

    def _plan_restart(self, process: _Supervised, status: int, now: float) -> None:
        rules, ends, name = self.restarts, process.ends, process.spec.name
        if process.spec.unwanted():
            process.state = REVOKED
            self.on_event(
                f"{name} is revoked and has ended; `wildflower fleet add` lets it in again"
            )
            return
        ends.append(now)
        while ends[0] < now - rules.within:
            ends.popleft()
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        reason = _last_words(process.view().output())
        if len(ends) > rules.at_most:
            process.state = FAILED
            self.on_event(
                f"{name} {how}, more than {rules.at_most} times in {rules.within:g} s; it is not "
                f"started again{reason}; its log: {process.spec.log}"
            )
            return
        pause = min(rules.first_pause * 2 ** (len(ends) - 1), rules.longest_pause)
        process.state, process.due = PAUSING, now + pause
        self.on_event(
            f"{name} {how}; starts again in {pause:g} s ({len(ends)} of at most {rules.at_most} "
            f"in {rules.within:g} s){reason}"
        )

    def _spawn(self, process: _Supervised) -> None:
        spec = process.spec
        # What an earlier start left running would work on the same files as the new one.
        end_family(spec.mark, set())
        spec.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with spec.log.open("ab") as log:
            now = datetime.datetime.now().astimezone()
            log.write(f"=== {now:%Y-%m-%d %H:%M:%S} {spec.name} starts\n".encode())
            log.flush()
            process.log_start = log.tell()
            # In a session of its own: Ctrl-C in the terminal reaches the fleet's parent alone.
            process.child = subprocess.Popen(
                [executable(spec.command[0]), *spec.command[1:]],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                cwd=spec.directory, env=dict(spec.environment), start_new_session=True,
            )  # fmt: skip
        process.state = RUNNING


def _accepted(process: View) -> bytes:
    """Return the line by which others see that a SuperNode is online, if it is there."""
    lines = [line for line in process.output().splitlines() if ACCEPTED in line]
    return f"{lines[-1]}\n".encode() if lines else b""


def _last_words(output: str) -> str:
    """Return Flower's reason for ending, if it gave one."""
    codes = [line.strip() for line in output.splitlines() if line.strip().startswith("[code:")]
    if not codes:
        return ""
    hint = (
        f" (its key is not registered, or Flower believes it online, as it does for up to "
        f"{HEARTBEAT_LIMIT:g} s after a crash)"
    )
    return f": {codes[-1]}{hint if REFUSED in codes[-1] else ''}"
