"""Runs of a comparison without Flower's SuperLink and Ray: several at once, a process each.

A process computes its run's clients one after the other, as `wildflower run` does. Many small runs
end sooner so than one after the other through `flwr run`, whose start alone takes some twelve
seconds, and which computes two small clients at once with more hand-over than work. The numbers are
the same: nothing depends on where a client computes.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.compare.plan import PlannedRun
from deploy.flower.processes import end_child
from deploy.flower.text import toml_lines

LEAVE_SECONDS = 7.0
"""What a run that is told to end has to record that it was interrupted, before it is told again."""
_TIMES_TOLD = 3
"""A library that catches everything while it is imported swallows an interrupt."""
_LOOK_SECONDS = 0.1


def command_of(clients: int, keys: Path) -> list[str]:
    """Return the command that computes one run, by its file of run-config keys."""
    run = ["-m", "deploy.cli", "run", "--clients", str(clients), "-c", str(keys)]
    return [sys.executable, *run]


@dataclasses.dataclass
class RunProcess:
    """A run at work.

    Attributes
    ----------
    planned : PlannedRun
        Which.
    process : subprocess.Popen
        What computes it.
    log : Path
        What it prints.
    began : float
        When it started, by the monotonic clock.
    timeout : float
        Seconds that it may take.
    """

    planned: PlannedRun
    process: subprocess.Popen[bytes]
    log: Path
    began: float
    timeout: float

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.began


class RunProcesses:
    """At most so many runs at once; what still runs at the end of the block is interrupted.

    Parameters
    ----------
    at_once : int
        How many.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._running: list[RunProcess] = []
        self._keys = tempfile.TemporaryDirectory()

    def __enter__(self) -> RunProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        with self._keys:
            _interrupt([run.process for run in self._running])

    def __len__(self) -> int:
        return len(self._running)

    @property
    def full(self) -> bool:
        """Whether no further run can start now."""
        return len(self._running) >= self.at_once

    def start(
        self,
        planned: PlannedRun,
        config: Mapping[str, Any],
        *,
        clients: int,
        log: Path,
        timeout: float,
    ) -> None:
        """Start a run with these run-config keys; what it prints goes to `log`."""
        keys = Path(self._keys.name) / f"{planned.name}.toml"
        keys.write_text(toml_lines(config), encoding="utf-8")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                command_of(clients, keys),
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to pass on, once
            )  # fmt: skip
        self._running.append(RunProcess(planned, process, log, time.monotonic(), timeout))

    def wait(self) -> tuple[RunProcess, str]:
        """Wait until a run has ended; return it, and why it may not be complete."""
        while True:
            for run in self._running:
                if run.process.poll() is None and run.seconds < run.timeout:
                    continue
                self._running.remove(run)
                return run, self._end_of(run)
            time.sleep(_LOOK_SECONDS)

    @staticmethod
    def _end_of(run: RunProcess) -> str:
        if run.process.poll() is None:
            _interrupt([run.process])
            return f"it took more than {run.timeout:g} s (run-timeout)"
        return f"its process ended with status {run.process.returncode}; see {run.log}"


def _interrupt(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes as Ctrl-C does, and for good those that do not obey."""
    for _ in range(_TIMES_TOLD):
        for process in processes:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + LEAVE_SECONDS
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    for process in processes:
        end_child(process)
