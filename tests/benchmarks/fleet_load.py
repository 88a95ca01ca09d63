"""How many devices a server holds: a real SuperLink and ServerApp, and synthetic devices with keys.

    python -m tests.benchmarks.fleet_load 10 50 100
    python -m tests.benchmarks.fleet_load 10 --silent 1   # one device never answers
    python -m tests.benchmarks.fleet_load 100 --memory    # a SuperLink without a database file
    python -m tests.benchmarks.fleet_load 100 --superlinks 2

A synthetic device does over HTTPS what a SuperNode does, in a thread of this process: it polls
every 3 s, sends heartbeats, pulls every object of a message and pushes every object of an answer,
and signs each call with a key of its own that was registered. It trains nothing: its answer is a
made-up payload of FedRE. Everything is on 127.0.0.1 and bounded in count (`MOST_DEVICES`) and time.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import psutil
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from deploy.fleet import specs
from deploy.fleet.description import Device, Fleet, Restarts, Server, Tls
from deploy.fleet.device import superlink_command
from deploy.fleet.local import LocalFleet
from deploy.fleet.supervisor import Spec
from deploy.flower.processes import free_port
from tests.benchmarks.machine import load
from tests.benchmarks.synthetic_device import SyntheticDevice

MOST_DEVICES = 1000
LONGEST_S, LONGEST_ROUND_S = 900.0, 60.0
"""A run may take as long as both together, the latter for each round."""
ROUND = re.compile(r"round (\d+)/\d+ .* scalars +([\d.]+) s ")
LOCKED = "OperationalError) database is locked"
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


@dataclasses.dataclass
class Use:
    """What a process has used: CPU seconds, resident and peak bytes."""

    cpu_s: float
    resident: int


def used(pids: list[int]) -> Use:
    """Return what these processes have used so far, together."""
    cpu, resident = 0.0, 0
    for pid in pids:
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
            cpu, resident = cpu + times.user + times.system, resident + process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return Use(cpu, resident)


@dataclasses.dataclass
class Load:
    """One server with so many devices: what is asked for, and where it is."""

    running: LocalFleet
    superlinks: list[int]
    devices: list[SyntheticDevice]
    database: Path

    def idle(self, seconds: float) -> str:
        """Let the devices poll, and return what that costs."""
        polls, before = self._polls(), used(self.superlinks)
        time.sleep(seconds)
        polls, after = self._polls() - polls, used(self.superlinks)
        cpu = after.cpu_s - before.cpu_s
        return (
            f"idle: {polls / seconds:.1f} polls/s, SuperLink {100 * cpu / seconds:.0f} % of a "
            f"core, {1000 * cpu / max(polls, 1):.1f} ms a poll, {after.resident / 1e6:.0f} MB"
        )

    def rounds(self, number: int, timeout: float) -> list[str]:
        """Make a run of so many rounds and return what each cost."""
        lines: list[str] = []
        before, size = used(self.superlinks), self._size()
        begin = time.monotonic()
        run_id = self.running.submit(
            {
                "method": "fedre", "num-rounds": number, "min-clients": len(self.devices),
                "evaluate-when": "post", "round-timeout": timeout, "wait-timeout": 300.0,
                "output-dir": str(self.database.parent / "runs"),
            }
        )  # fmt: skip
        peak, server_app = [0], [Use(0, 0)]

        def on_line(line: str) -> None:
            peak.append(used(self.superlinks).resident)
            server_app.append(used(self.running.find("flwr-serverapp")))
            if found := ROUND.search(line):
                growth = (self._size() - size) / 1e6
                lines.append(
                    f"  round {found[1]}: {found[2]} s, database + {growth:.2f} MB, SuperLink "
                    f"{peak[-1] / 1e6:.0f} MB, ServerApp {server_app[-1].resident / 1e6:.0f} MB"
                )

        run = self.running.wait(run_id, LONGEST_S + number * LONGEST_ROUND_S, on_line=on_line)
        wall, cpu = time.monotonic() - begin, used(self.superlinks).cpu_s - before.cpu_s
        per = 1000 * cpu / (number + 1) / len(self.devices)
        lines.append(
            f"  run {run.status}, {wall:.0f} s; SuperLink {cpu:.1f} CPU s ({per:.0f} ms a device "
            f"and exchange, registration included), at most {max(peak) / 1e6:.0f} MB; ServerApp "
            f"{max(u.cpu_s for u in server_app):.1f} CPU s, "
            f"{max(u.resident for u in server_app) / 1e6:.0f} MB"
        )
        return lines

    def _polls(self) -> int:
        return sum(device.polls for device in self.devices)

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self.database.parent.glob("superlink.db*"))


def a_fleet(directory: Path) -> Fleet:
    """Return a fleet whose only device in the file is never started."""
    return Fleet(
        name="load", directory=directory, server=Server(port=free_port()), tls=Tls(),
        restarts=Restarts(), devices=(Device(client_id=10**6, partition_id=0),), presets={},
        source=directory / "fleet.yaml",
    )  # fmt: skip


def registered_keys(fleet: Fleet, count: int) -> list[Keys]:
    """Register so many new keys under the names client-0, client-1, ..."""
    pairs = [generate_key_pairs() for _ in range(count)]
    address = fleet.server.local_endpoint
    with ControlHttpClient.from_server_address(address, False, str(fleet.files.ca), []) as client:
        for number, (_, public) in enumerate(pairs):
            key = public_key_to_bytes(public)
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=f"client-{number}"))
    return pairs


def measured(options: argparse.Namespace, count: int, say: Callable[[str], None]) -> None:
    """Measure one number of devices."""
    directory = Path(tempfile.mkdtemp(prefix="wildflower-load-"))
    stop = threading.Event()
    devices: list[SyntheticDevice] = []
    say(f"{count} devices; load {load()[0]:.1f}")
    try:
        with ExitStack() as stack:
            if options.memory:
                stack.enter_context(mock.patch.object(specs, "superlink_command", in_memory))
            fleet = a_fleet(directory)
            running = stack.enter_context(LocalFleet(fleet, clients=(), on_event=say))
            pids = [running.processes["superlink"].pid or 0]
            addresses = [running.fleet.server.local_endpoint]
            for _ in range(options.superlinks - 1):
                spec, address = another_superlink(running)
                running._supervisor.add(spec)
                pids.append(running.processes[spec.name].pid or 0)
                addresses.append(address)
            time.sleep(10.0 if len(addresses) > 1 else 0.0)
            begin = time.monotonic()
            keys = registered_keys(running.fleet, count)
            say(f"  {(time.monotonic() - begin) / count:.3f} s a registered key")
            ca = str(running.fleet.files.ca)
            devices += [
                SyntheticDevice(i, addresses[i % len(addresses)], ca, pair, stop)
                for i, pair in enumerate(keys)
            ]
            for device in devices[: options.silent]:
                device.silent = True
            for device in devices:
                device.start()
                time.sleep(0.05)
            state = Load(running, pids, devices, running._specs.database)  # type: ignore[union-attr]
            time.sleep(5.0)
            say("  " + state.idle(options.idle))
            for line in state.rounds(options.rounds, options.round_timeout):
                say(line)
            log = Path(running.processes["superlink"].log).read_text(errors="replace")
            say(f"  'database is locked' {log.count(LOCKED)} times in the SuperLink's log")
            failed = [device.problem for device in devices if device.problem]
            if failed:
                lost = sum(device.lost for device in devices)
                say(f"  {lost} answers lost, {len(failed)} devices; the first: {failed[0]:.200}")
            stop.set()
            for device in devices:
                device.join(15.0)
    finally:
        stop.set()
        shutil.rmtree(directory, ignore_errors=True)


def in_memory(fleet: Fleet) -> list[str]:
    """Return the SuperLink's command with a database in memory."""
    command = superlink_command(fleet)
    command[command.index("--database") + 1] = ":memory:"
    return command


def another_superlink(running: LocalFleet) -> tuple[Spec, str]:
    """Return a further SuperLink on the same database, and its address."""
    port = free_port()
    fleet = dataclasses.replace(
        running.fleet, server=dataclasses.replace(running.fleet.server, port=port)
    )
    made = running._specs._spec(f"superlink-{port}", superlink_command(fleet), {}, port)  # type: ignore[union-attr]
    return made, fleet.server.local_endpoint


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.fleet_load", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("devices", type=int, nargs="+", help=f"at most {MOST_DEVICES}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=20.0, metavar="S", help="seconds of polling")
    parser.add_argument("--round-timeout", type=float, default=300.0, metavar="S")
    parser.add_argument("--silent", type=int, default=0, help="devices that never answer")
    parser.add_argument("--memory", action="store_true", help="database in memory")
    parser.add_argument("--superlinks", type=int, default=1, help="on one database")
    options = parser.parse_args()
    if max(options.devices) > MOST_DEVICES:
        parser.error(f"devices = {max(options.devices)}: expected at most {MOST_DEVICES}")
    for count in options.devices:
        measured(options, count, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
