"""How a running fleet looks from another process: a file that the first one keeps up to date."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping

import psutil
from filelock import FileLock, Timeout

from deploy.fleet.description import Fleet
from deploy.fleet.specs import SUPEREXEC, SUPERLINK
from deploy.fleet.supervisor import ACCEPTED, RUNNING, View
from deploy.flower.processes import answers, find_process
from server_app.records.run_directory import write_atomically
from strategies.base.options import ConfigError

ONLINE, STARTING = "online", "starting"


@dataclasses.dataclass(frozen=True)
class State:
    """A fleet that runs.

    Attributes
    ----------
    fleet : Fleet
        With the port in use, and whether it is secure.
    parent : psutil.Process or None
        The process that keeps it running; None if that cannot be told.
    processes : tuple of View
        The others; none if no `fleet up` has started the server, but systemd or containers.
    """

    fleet: Fleet
    parent: psutil.Process | None
    processes: tuple[View, ...]


def fleet_lock(fleet: Fleet) -> FileLock:
    """Return the lock that the process holds which runs a fleet."""
    return FileLock(fleet.directory / ".lock")


def write_state(fleet: Fleet, processes: Mapping[str, View]) -> None:
    """Say how a fleet runs, for `read_state`."""
    me = psutil.Process()
    content = {
        "parent": (me.pid, me.create_time()),
        "port": fleet.server.port,
        "secure": fleet.secure,
        "processes": [dataclasses.asdict(view) for view in processes.values()],
    }
    write_atomically(fleet.directory / "state.json", json.dumps(content, indent=1))


def forget_state(fleet: Fleet) -> None:
    """Remove what an earlier start of a fleet said."""
    (fleet.directory / "state.json").unlink(missing_ok=True)


def read_state(fleet: Fleet) -> State:
    """Return how a fleet runs.

    Raises
    ------
    ConfigError
        If it does not run.
    """
    path = fleet.directory / "state.json"
    if not is_running(fleet):
        if fleet.server.port and fleet.files.ca.is_file() and superlink_answers(fleet):
            return State(fleet, None, ())
        raise ConfigError(
            f"{fleet.source}: fleet {fleet.name} does not run; `wildflower fleet up "
            f"{fleet.source}` starts it, or the units or containers of deploy/README.md do"
        )
    if not path.exists():
        raise ConfigError(f"{fleet.source}: fleet {fleet.name} is being started; try again soon")
    content = json.loads(path.read_text(encoding="utf-8"))
    server = dataclasses.replace(fleet.server, port=content["port"])
    return State(
        fleet=dataclasses.replace(fleet, server=server, secure=content["secure"]),
        parent=find_process(*content["parent"]),
        processes=tuple(View(**view) for view in content["processes"]),
    )


def wait_for_end(fleet: Fleet, seconds: float) -> bool:
    """Wait until a fleet does not run any more; return whether that happened in time."""
    deadline = time.monotonic() + seconds
    while is_running(fleet):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def health(fleet: Fleet, process: View) -> str:
    """Return how a process is: online, starting, or why it does not run."""
    if process.state != RUNNING or process.name == SUPEREXEC:
        return process.state
    if process.name == SUPERLINK:
        return ONLINE if superlink_answers(fleet) else STARTING
    return ONLINE if ACCEPTED in process.output() else STARTING


def superlink_answers(fleet: Fleet) -> bool:
    """Return whether the SuperLink is ready, seen from its own machine."""
    endpoint = fleet.server.local_endpoint
    if not fleet.secure:
        return answers(f"http://{endpoint}/health")
    return answers(f"https://{endpoint}/health", fleet.files.ca)


def is_running(fleet: Fleet) -> bool:
    """Return whether some process runs a fleet."""
    lock = fleet_lock(fleet)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False
