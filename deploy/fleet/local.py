"""A fleet as real processes on this machine.

    with LocalFleet(read_fleet(path)) as running:
        run_id = running.submit("fedre")            # or run-config keys and values
        print(running.wait(run_id, timeout=600).status)
        running.kill("client-0")                    # stays down until
        running.start("client-0")

One SuperLink, one SuperExec for ServerApps and one SuperNode a device, each with its own FLWR_HOME.
What ends unasked is started again. Nothing outlives the `with` block, even if this process is
killed. Every process carries a mark in its environment; nothing else is ever ended.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import Timeout

from deploy.fleet.description import HEARTBEAT_LIMIT, Device, Fleet
from deploy.fleet.identities import make_identities
from deploy.fleet.log_files import put_logs_aside
from deploy.fleet.preflight import check_device, usable_port
from deploy.fleet.private_files import prepare_directory
from deploy.fleet.revoked import is_revoked
from deploy.fleet.specs import LEAVE_FIRST, SUPEREXEC, SUPERLINK, Specs, fleet_mark, flower_client
from deploy.fleet.status import (
    ONLINE,
    fleet_lock,
    forget_state,
    health,
    superlink_answers,
    write_state,
)
from deploy.fleet.superlink_nodes import Registry
from deploy.fleet.supervisor import FAILED, REVOKED, Supervisor, View
from deploy.fleet.watchdog import Watchdog
from deploy.flower.commands import COMMAND_SECONDS, FlowerError, FlowerRun
from deploy.flower.processes import end_family, family, free_port, runs_program, uninterrupted
from deploy.flower.text import Value
from server_app.console import say
from strategies.base.options import ConfigError

CHECKOUT = Path(__file__).absolute().parents[2]
"""The Flower app that runs submit, unless they name another."""


class LocalFleet:
    """A fleet on this machine, as a context manager.

    Parameters
    ----------
    fleet : Fleet
        What to start.
    directory : Path, optional
        Where it lies; the fleet's own directory unless given.
    clients : collection of int, optional
        Client ids of the devices to start here; all unless given. Keys are registered for all.
    unregistered : collection of int
        Client ids whose keys the SuperLink is not told.
    environment : Mapping of str to str, optional
        Variables to add for all processes.
    on_event : callable
        Takes a line for the user.

    Attributes
    ----------
    fleet : Fleet
        With the directory and the port in use.
    """

    def __init__(
        self,
        fleet: Fleet,
        directory: Path | None = None,
        *,
        clients: Collection[int] | None = None,
        unregistered: Collection[int] = (),
        environment: Mapping[str, str] | None = None,
        on_event: Callable[[str], None] = say,
    ) -> None:
        self.fleet = dataclasses.replace(fleet, directory=directory or fleet.directory)
        everyone = [device.client_id for device in fleet.devices]
        self.devices = [fleet.device(i) for i in (everyone if clients is None else clients)]
        self.unregistered = frozenset(unregistered)
        self.environment = dict(environment or {})
        self.on_event = on_event
        self._supervisor = Supervisor(fleet.restarts, self._tell)
        self._lock = fleet_lock(self.fleet)
        self._writing = threading.Lock()
        self._watchdog: Watchdog | None = None
        self._specs: Specs | None = None

    def __enter__(self) -> Self:
        prepare_directory(self.fleet.directory)
        try:
            self._lock.acquire(timeout=1.0)  # another command may look at it for a moment
        except Timeout:
            raise ConfigError(
                f"{self.fleet.source}: this fleet runs already, from {self.fleet.directory}; end "
                "it first, with Ctrl-C where it was started or `wildflower fleet down "
                f"{self.fleet.source}`"
            ) from None
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def processes(self) -> dict[str, View]:
        """The processes as they are now, by name: superlink, superexec, client-0, client-1, ..."""
        return self._supervisor.views()

    @property
    def mark(self) -> str:
        """`NAME=value` in the environment of every process of this start."""
        if self._specs is None:
            raise FlowerError("the fleet does not run; use it in a with statement")
        return self._specs.mark

    @property
    def broken(self) -> str | None:
        """Why the fleet cannot go on, or None."""
        if not self._supervisor.alive:
            return "its processes are not watched any more"
        processes = self.processes
        for name in (SUPERLINK, SUPEREXEC):
            if name in processes and processes[name].state == FAILED:
                return f"{name} ended too often; its log: {processes[name].log}"
        return None

    def health(self, name: str) -> str:
        """Return how a process is: online, starting, or why it does not run."""
        return health(self.fleet, self.processes[name])

    def wait_online(self, names: Collection[str] | None = None, timeout: float = 90.0) -> list[str]:
        """Wait until devices are online; return those that are not in time.

        Parameters
        ----------
        names : collection of str, optional
            For example ["client-0"]; all devices started here unless given.
        timeout : float
            Seconds. Up to `HEARTBEAT_LIMIT` and a pause pass after a device was killed.
        """
        deadline = time.monotonic() + timeout
        wanted = [d.name for d in self.devices] if names is None else list(names)
        while True:
            states = {name: self.health(name) for name in wanted}
            missing = [name for name, state in states.items() if state != ONLINE]
            waiting = [name for name in missing if states[name] not in (FAILED, REVOKED)]
            if not waiting or self.broken or time.monotonic() >= deadline:
                return missing
            wanted = missing
            time.sleep(0.2)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a process at once, and only it; it stays down until `start`.

        `os.kill(running.processes[name].pid, 9)` instead is an accident: it is started again.
        """
        self._supervisor.end(name, number)
        self._write_state()

    def stop(self, name: str) -> None:
        """End a process in order; it stays down until `start`."""
        self.kill(name, signal.SIGTERM)

    def start(self, name: str) -> None:
        """Start a process that was ended. A device that was killed is refused for a while."""
        self._supervisor.start(name)
        self._write_state()

    def find(self, program: str) -> list[int]:
        """Return the process ids of a program in this fleet, for example "flwr-serverapp"."""
        everything = family(self.mark, set())
        return sorted(p.pid for p in everything if runs_program(p, program))

    def submit(self, run: str | Mapping[str, Value], app: Path = CHECKOUT) -> str:
        """Start a run and return its id.

        Parameters
        ----------
        run : str or Mapping
            The name of a preset, or run-config keys and values. `min-clients` is the number of
            devices unless given.
        app : Path
            The Flower app.
        """
        config: Mapping[str, Any] = self.fleet.presets[run] if isinstance(run, str) else run
        clients = {"min-clients": len(self.fleet.devices)}
        return flower_client(self.fleet).submit(app, {**clients, **config})

    def wait(
        self, run_id: str, timeout: float, on_line: Callable[[str], None] | None = None
    ) -> FlowerRun:
        """Wait for the end of a run, whatever happens to the SuperLink for up to a minute."""
        client = flower_client(self.fleet)
        return client.wait(run_id, timeout=timeout, on_line=on_line, patience=HEARTBEAT_LIMIT)

    def close(self) -> None:
        """End everything, the SuperLink last."""
        with uninterrupted():
            self._supervisor.close()
            if self._specs is not None:
                end_family(self.mark, set(), first=LEAVE_FIRST)
            self._supervisor.reap()
            if self._watchdog is not None:
                self._watchdog.dismiss()
            self._lock.release()

    def _start(self) -> None:
        fleet = self.fleet
        forget_state(fleet)
        if fleet.secure:
            for device in [d for d in fleet.devices if is_revoked(fleet, d)]:
                self.on_event(f"{device.name} is revoked and stays out; see `wildflower fleet add`")
            self.devices = [d for d in self.devices if not is_revoked(fleet, d)]
        for device in self.devices:
            check_device(device, fleet)
        end_family(fleet_mark(fleet.directory), set(), first=LEAVE_FIRST)  # of an earlier start
        server = dataclasses.replace(fleet.server, port=usable_port(fleet))
        self.fleet = fleet = dataclasses.replace(fleet, server=server)
        if fleet.secure:
            for warning in make_identities(fleet).warnings:
                self.on_event(warning)
        put_logs_aside(fleet.directory / "logs")
        self._specs = Specs(fleet, self.environment)
        self._watchdog = Watchdog(self._specs.mark, LEAVE_FIRST)
        client = flower_client(fleet)
        client.connect(server.local_endpoint, fleet.files.ca if fleet.secure else None)
        registry = Registry(fleet, self._specs.database, client)
        self._supervisor.add(self._specs.superlink())
        self._wait_for_superlink()
        self._supervisor.add(self._specs.superexec())
        for run_id in registry.stop_dead_runs():
            self.on_event(f"run {run_id} was cut off by the end of the fleet; it is stopped")
        pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1)
        try:
            list(pool.map(lambda device: self._connect(device, registry), fleet.devices))
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C no further device is started
        self._write_state()

    def _connect(self, device: Device, registry: Registry) -> None:
        assert self._specs is not None
        if self.fleet.secure and is_revoked(self.fleet, device):
            return
        if self.fleet.secure and device.client_id not in self.unregistered:
            registry.register(device)
        if device in self.devices:
            self._supervisor.add(self._specs.supernode(device, free_port()))

    def _wait_for_superlink(self) -> None:
        deadline = time.monotonic() + COMMAND_SECONDS
        process = self.processes[SUPERLINK]
        while not superlink_answers(self.fleet):
            if self.broken or time.monotonic() >= deadline:
                raise FlowerError(
                    f"the SuperLink does not answer; the end of {process.log}: "
                    f"{process.output()[-2000:]}"
                )
            time.sleep(0.1)

    def _tell(self, line: str) -> None:
        """Pass on what happened, and let other processes know how the fleet is now."""
        self._write_state()
        self.on_event(line)

    def _write_state(self) -> None:
        processes = self.processes  # before the lock: their owner may be waiting for this one
        with self._writing:
            write_state(self.fleet, processes)
