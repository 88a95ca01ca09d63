"""Peak memory of the server and of the workers of one simulated run, by process.

    python -m tests.benchmarks.memory --clients 20 -c "method='fedavg' models='resnet18'"

Starts an own SuperLink, runs the app through `flwr run`, and reads what Linux says of every
process about five times a second. `highest` is the kernel's own record of the largest
resident memory, exact between looks. Resident memory is split as the kernel does: `anonymous` is
the process's own; `file` and `shared` are pages that processes share, such as libraries, mapped
data and states, and Ray's object store.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from deploy.flower.simulation import FlowerSimulation
from deploy.run import parse_assignments

ROOT = Path(__file__).parents[2]
ROLES = {
    "server (ServerApp and simulation)": "flwr-simulation",
    "worker (clients)": "ray::ClientAppActor",
    "SuperLink": "flower-superlink",
}
FIELDS = {
    "highest": "VmHWM",
    "resident": "VmRSS",
    "anonymous": "RssAnon",
    "file": "RssFile",
    "shared": "RssShmem",
}
PAUSE = 0.2


@dataclass
class Peaks:
    """Largest values seen, in bytes, by role, over all processes of the role."""

    values: dict[str, dict[str, int]] = field(default_factory=dict)

    def look(self, simulation: FlowerSimulation) -> None:
        """Take one sample of all processes of a simulation."""
        for process in simulation.processes():
            with suppress(OSError):
                role = _role(process.pid)
                if role is not None:
                    known = self.values.setdefault(role, dict.fromkeys(FIELDS, 0))
                    for name, size in _memory(process.pid).items():
                        known[name] = max(known[name], size)

    def table(self) -> str:
        """Return the peaks as text, in MB."""
        lines = [f"{'peak MB':36}" + "".join(f"{name:>12}" for name in FIELDS)]
        for role, values in self.values.items():
            lines.append(f"{role:36}" + "".join(f"{values[n] / 1e6:12.0f}" for n in FIELDS))
        return "\n".join(lines)


def _role(pid: int) -> str | None:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return next((role for role, text in ROLES.items() if text in command), None)


def _memory(pid: int) -> dict[str, int]:
    """Return what Linux says of a process's resident memory, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(pairs[key].split()[0]) * 1024 for name, key in FIELDS.items() if key in pairs}


def measure(config: dict[str, bool | int | float | str], clients: int, timeout: float) -> Peaks:
    """Run a federation through Flower and return its peaks.

    Raises
    ------
    RuntimeError
        If the run did not complete, with the end of its log.
    """
    peaks, over = Peaks(), threading.Event()

    def watch() -> None:
        while not over.wait(PAUSE):
            peaks.look(simulation)

    with tempfile.TemporaryDirectory() as output, FlowerSimulation() as simulation:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            values = {"min-clients": clients, "output-dir": output, **config}
            run = simulation.run(ROOT, values, clients=clients, timeout=timeout)
        finally:
            over.set()
            watcher.join(timeout=10)
    if not run.completed:
        raise RuntimeError(f"{run.status}: {run.log[-2000:]}")
    print("\n".join(line for line in run.log.splitlines() if "round " in line and "/" in line))
    return peaks


def main() -> None:
    """Measure one configuration, print the table and, if asked, write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("-c", "--config", action="append", default=[], metavar="'key=value ...'")
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peaks = measure(parse_assignments(options.config), options.clients, options.timeout)
    print(peaks.table())
    if options.json:
        options.json.write_text(json.dumps(peaks.values, indent=2) + "\n")


if __name__ == "__main__":
    main()
