"""How many real devices one machine holds: SuperLink, ServerApp and SuperNodes, all of them real.

    python -m tests.benchmarks.fleet_devices 5 10

Every device is a SuperNode with its SuperExec, and a process that answers each message: FedRE on a
share of the digits. All of them are on this machine, so what limits is their memory and cores; what
the server needs for many more is measured by `tests.benchmarks.fleet_load`.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from deploy.fleet.description import Device
from deploy.fleet.local import LocalFleet
from deploy.flower.processes import family
from tests.benchmarks.fleet_load import LONGEST_ROUND_S, LONGEST_S, ROUND, a_fleet, used
from tests.benchmarks.machine import load

MOST_DEVICES = 100
ONLINE_S = 600.0


class MemoryPeak:
    """The most memory that processes had together, looked at every two seconds in the block.

    Proportional set sizes: what several processes share counts once.
    """

    def __init__(self, mark: str) -> None:
        self.bytes = 0
        self._mark, self._stop = mark, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(2.0):
            self.bytes = max(self.bytes, sum(map(_own_bytes, family(self._mark, set()))))


def _own_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def measured(count: int, rounds: int, idle: float, say: Callable[[str], None]) -> None:
    """Measure one number of devices."""
    directory = Path(tempfile.mkdtemp(prefix="wildflower-devices-"))
    devices = tuple(
        Device(client_id=i, partition_id=i, num_partitions=count, model="cnn5", device="cpu")
        for i in range(count)
    )
    fleet = dataclasses.replace(a_fleet(directory), devices=devices)
    say(f"{count} devices; load {load()[0]:.1f}")
    try:
        begin = time.monotonic()
        with LocalFleet(fleet, on_event=say) as running, MemoryPeak(running.mark) as peak:
            missing = running.wait_online(timeout=ONLINE_S)
            if missing:
                say(f"  not online within {ONLINE_S:g} s: {', '.join(missing)}")
                return
            say(f"  all online after {time.monotonic() - begin:.0f} s")
            names = [f"client-{i}" for i in range(count)]
            server = [running.processes["superlink"].pid or 0]
            nodes = [running.processes[name].pid or 0 for name in names]
            before, device = used(server).cpu_s, used(nodes).cpu_s
            time.sleep(idle)
            say(
                f"  idle: SuperLink {100 * (used(server).cpu_s - before) / idle:.0f} % of a core, "
                f"a SuperNode {100 * (used(nodes).cpu_s - device) / idle / count:.1f} %; all "
                f"processes {peak.bytes / 1e9:.2f} GB"
            )
            say_rounds(running, count, rounds, say)
            say(f"  at most {peak.bytes / 1e9:.2f} GB, all processes")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def say_rounds(running: LocalFleet, count: int, rounds: int, say: Callable[[str], None]) -> None:
    """Make a run of so many rounds and tell what each took."""
    begin = time.monotonic()
    run_id = running.submit(
        {
            "method": "fedre", "num-rounds": rounds, "min-clients": count, "min-examples": 5,
            "evaluate-when": "post", "round-timeout": 600.0, "wait-timeout": 600.0,
            "output-dir": str(running.fleet.directory / "runs"),
        }
    )  # fmt: skip

    def on_line(line: str) -> None:
        if found := ROUND.search(line):
            say(f"  round {found[1]}: {found[2]} s")

    run = running.wait(run_id, LONGEST_S + rounds * LONGEST_ROUND_S, on_line=on_line)
    say(f"  run {run.status}, {time.monotonic() - begin:.0f} s")
    if not run.completed:
        say("\n".join(run.log.splitlines()[-15:]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.fleet_devices", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("devices", type=int, nargs="+", help=f"at most {MOST_DEVICES}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=20.0, metavar="S", help="seconds of polling")
    options = parser.parse_args()
    if max(options.devices) > MOST_DEVICES:
        parser.error(f"devices = {max(options.devices)}: expected at most {MOST_DEVICES}")
    for count in options.devices:
        measured(count, options.rounds, options.idle, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
