"""Finding and ending all processes that descend from one, and what starting them needs."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import psutil

RUNS = ("flwr-serverapp", "flwr-simulation")
"""Programs that record rounds."""
RUN_SECONDS = 5.0
"""What one of them has to leave a report."""
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 20000  # Ray's workers take those from 10002 to 19999
_PORT_START = secrets.randbelow(2**16)  # processes that look at one time look elsewhere
_PORT_COUNT = itertools.count()


def all_processes() -> dict[psutil.Process, tuple[int, int]]:
    """Return parent and session of every process that is no zombie.

    A `psutil.Process` is told from a later one of the same id by the time of its start.
    """
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found[process] = process.ppid(), os.getsid(process.pid)
    return found


def find_process(pid: int, started: float) -> psutil.Process | None:
    """Return a process by its id and `create_time`; None if it has ended meanwhile."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        # The time of the start follows the system's clock, which may be set right meanwhile.
        if abs(process.create_time() - started) < 1.0:
            return process
    return None


def send_signal(process: psutil.Process, number: int) -> None:
    """Send a signal, unless the process is gone."""
    with contextlib.suppress(psutil.Error, OSError):
        process.send_signal(number)


def family(variable: str, known: set[psutil.Process]) -> set[psutil.Process]:
    """Return the living processes that carry a mark, were known, or descend from such.

    Parameters
    ----------
    variable : str
        The mark: `NAME=value`, as it begins in the environment of the processes. Some processes,
        Ray's workers for one, overwrite their environment; they are found by parent or session.
    known : set of psutil.Process
        What was found before.
    """
    everyone = all_processes()
    members = {p for p in everyone if p in known or _carries(p, variable)}
    while True:
        ids = {p.pid for p in members}
        more = {p for p, (parent, session) in everyone.items() if {parent, session} & ids}
        if more <= members:
            return members
        members |= more


def _carries(process: psutil.Process, variable: str) -> bool:
    name, _, value = variable.partition("=")
    try:
        return process.environ().get(name, "").startswith(value)
    except (psutil.Error, OSError):
        return False


def end_family(variable: str, known: set[psutil.Process], first: Sequence[str] = ()) -> None:
    """End all processes of a family: politely, then after some seconds for good.

    Parameters
    ----------
    variable, known
        As for `family`.
    first : sequence of str, optional
        Programs that are ended one after the other before all else, because they take leave of
        what ends later; each has three seconds. One of `RUNS` has five, and is gone then: it
        would take what ends next for failed clients.
    """
    stages = []
    for program in first:
        run = program in RUNS
        stages += [(signal.SIGTERM, RUN_SECONDS if run else 3.0, program)]
        stages += [(signal.SIGKILL, 10.0, program)] if run else []
    stages += [(signal.SIGTERM, 3.0, ""), (signal.SIGKILL, 10.0, "")]
    for number, seconds, program in stages:
        deadline = time.monotonic() + seconds
        known = family(variable, known)
        chosen = {process for process in known if not program or runs_program(process, program)}
        for process in chosen:
            send_signal(process, number)
        while chosen & known and time.monotonic() < deadline:
            time.sleep(0.1)
            known = family(variable, known)


def runs_program(process: psutil.Process, program: str) -> bool:
    """Return whether a process runs a program, by itself or through an interpreter."""
    try:
        return program in [os.path.basename(part) for part in process.cmdline()[:2]]
    except (psutil.Error, OSError):
        return False


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
        raise FileNotFoundError(f"{path} is missing; install Wildflower anew for {sys.executable}")
    return str(path)


def free_port() -> int:
    """Return a local port that nothing listens on, another one at every call in this process.

    It lies below the ports from which the system takes those of outgoing connections: any of a
    fleet's many connections could take the port before the process that was given it listens.
    Where that leaves none, it is one of the system's choice.
    """
    lowest, end = _LOWEST_PORT, _first_outgoing_port()
    for _ in range(end - lowest):
        port = lowest + (_PORT_START + next(_PORT_COUNT)) % (end - lowest)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _first_outgoing_port() -> int:
    try:
        return int(_PORT_RANGE.read_text(encoding="ascii").split()[0])
    except FileNotFoundError:
        return 49152  # IANA's, which systems without this file have


def answers(url: str, root_certificates: Path | None = None) -> bool:
    """Return whether a local URL answers with success, past any proxy.

    Parameters
    ----------
    url : str
        Address of a page.
    root_certificates : Path, optional
        For https: the certificates of the authorities to trust, in PEM.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if root_certificates is not None:
        context = ssl.create_default_context(cafile=str(root_certificates))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, the usual request to end, and the loss of the terminal."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and its like inside: a second one must not stop the clean-up of the first."""
    with _handled(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let a request to end, or the loss of the terminal, end the block as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextlib.contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    # What was set outside Python stays, and so does nohup. Ctrl-C, which a shell's background job
    # ignores, is heard if it is sent on purpose.
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    before = {number: earlier for number, earlier in before.items() if earlier is not None}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
