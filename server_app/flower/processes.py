"""Finding and ending all processes that descend from one, and what starting them needs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, told from a later one of the same id by the time of its start."""

    pid: int
    started: int

    def signal(self, number: int) -> None:
        """Send a signal, unless the process is gone."""
        with contextlib.suppress(OSError):
            if self in all_processes():
                os.kill(self.pid, number)


def all_processes() -> dict[Process, tuple[int, int]]:
    """Return parent and session of every process that is no zombie; empty without /proc."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in brackets, may hold anything; the fields count from behind it.
            fields = path.read_text(errors="replace").rsplit(")", 1)[1].split()
            if fields[0] not in "ZX":
                process = Process(int(path.parent.name), int(fields[19]))
                found[process] = int(fields[1]), int(fields[3])
    return found


def family(variable: str, known: set[Process]) -> set[Process]:
    """Return the living processes that carry a mark, were known, or descend from such.

    Parameters
    ----------
    variable : str
        The mark: `NAME=value`, as it stands in the environment of the processes. Some processes,
        Ray's workers for one, overwrite their environment; they are found by parent or session.
    known : set of Process
        What was found before.
    """
    everyone = all_processes()
    members = {p for p in everyone if p in known or _carries(p.pid, variable)}
    while True:
        ids = {p.pid for p in members}
        more = {p for p, (parent, session) in everyone.items() if {parent, session} & ids}
        if more <= members:
            return members
        members |= more


def _carries(pid: int, variable: str) -> bool:
    try:
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def end_family(variable: str, known: set[Process]) -> None:
    """End all processes of a family: politely, then after three seconds for good."""
    for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
        deadline = time.monotonic() + seconds
        known = family(variable, known)
        for process in known:
            process.signal(number)
        while known and time.monotonic() < deadline:
            time.sleep(0.1)
            known = family(variable, known)


def end_child(process: subprocess.Popen[bytes], seconds: float = 2.0) -> None:
    """End a child process that may still run, at first politely."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10.0)


def executable(name: str) -> str:
    """Find Flower's command next to the running Python."""
    path = Path(sys.executable).with_name(name)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; install flwr[simulation] for {sys.executable}")
    return str(path)


def free_port() -> int:
    """Return a local port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(url: str) -> bool:
    """Return whether a local URL answers with success, past any proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C inside the block: a second one must not stop the clean-up of the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
