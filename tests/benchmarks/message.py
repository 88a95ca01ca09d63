"""What a message costs in deployment: inside the client, and all around it.

    python -m tests.benchmarks.message --json message.json

The first table is of a device's process that answers the training message of round 3, alone on the
machine: imports, data, model, state, payload. The second is of rounds on a real fleet of two
devices on this machine, SuperLink and all. Medians; the machine's load is printed, because shared
cores change everything.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_to_proto

from client_app.app import app as client_app
from deploy.fleet.fleet_file import read_fleet
from deploy.fleet.local import LocalFleet
from deploy.run import parse_assignments
from server_app.app import app as server_app
from server_app.rounds.in_process import InProcessGrid
from strategies.base.parsing import default_run_config

ROOT = Path(__file__).parents[2]
ROUND = 3
DEVICES = 2
LIMIT = 900.0
SETTINGS: dict[str, Any] = {
    "method": "fedre",
    "models": "cnn5, resnet10-w4",
    "evaluate-when": "post",
    "min-clients": DEVICES,
}


def prepare(place: Path, config: Mapping[str, Any]) -> None:
    """Store what client 0 has and gets in round 3: message, private state, configuration."""

    class Recording(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            metadata = message.metadata
            context = self.contexts[metadata.dst_node_id]
            wanted = ("train", str(ROUND)) == (metadata.message_type, metadata.group_id)
            if wanted and context.node_config["partition-id"] == 0:
                (place / "message").write_bytes(message_to_proto(message).SerializeToString())
                shutil.copytree(place / "runs" / "run" / "clients", place / "state" / "run")
                node = {**context.node_config, "state-dir": str(place / "state"), "device": "cpu"}
                facts = {"node_config": node, "run_config": dict(context.run_config)}
                (place / "facts.json").write_text(json.dumps(facts))
            return super()._answer(message)

    values = {
        **default_run_config(), **config,
        "num-rounds": ROUND, "run-name": "run", "output-dir": str(place / "runs"),
    }  # fmt: skip
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=values)
    server_app(grid=Recording(client_app, DEVICES, values), context=context)


def inside(place: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of every part, over processes that answer the same message."""
    results = []
    for number in range(repeats + 1):
        copy = place / f"copy-{number}"
        shutil.copytree(place / "state", copy / "state")
        facts = json.loads((place / "facts.json").read_text())
        facts["node_config"]["state-dir"] = str(copy / "state")
        (copy / "facts.json").write_text(json.dumps(facts))
        shutil.copy(place / "message", copy / "message")
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.message_process", str(copy)],
            cwd=ROOT, text=True, capture_output=True, timeout=LIMIT, check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )  # fmt: skip
        results.append(json.loads(done.stdout.splitlines()[-1]))
    kinds = {}
    for kind in ("wall", "cpu"):
        measured = [result[kind] for result in results[1:]]  # the first one fills disk caches
        parts = dict.fromkeys(part for values in measured for part in values)
        kinds[kind] = {
            part: statistics.median(values.get(part, 0.0) for values in measured) for part in parts
        }
    return kinds


def around(place: Path, config: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Return medians of the rounds of a real fleet, all but the first two, in seconds."""
    path = place / "fleet.yaml"
    content = {
        "name": "cost", "directory": str(place / "fleet"), "server": {"port": 0},
        "num-partitions": DEVICES,
        "devices": [
            {"client-id": i, "partition-id": i, "device": "cpu"} for i in range(DEVICES)
        ],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    output = place / "fleet-runs"
    values = {**config, "num-rounds": rounds, "run-name": "run", "output-dir": str(output)}
    with LocalFleet(read_fleet(path)) as running:
        late = running.wait_online(timeout=LIMIT)
        assert not late, late
        run = running.wait(running.submit(values), timeout=LIMIT)
    assert run.completed, run.log
    with (output / "run" / "rounds.csv").open(newline="") as file:
        measured = list(csv.DictReader(file))[2:]
    seconds = [float(row["seconds"]) for row in measured]
    compute = [float(row["client_compute_s"]) / DEVICES for row in measured]
    return {
        "a round": statistics.median(seconds),
        "of it a client's work on the message, imports not counted": statistics.median(compute),
        "the rest: processes, imports, Flower's pauses and transport": statistics.median(
            whole - part for whole, part in zip(seconds, compute, strict=True)
        ),
    }


def show(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print parts and their seconds."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    print(f"\n{title:62}" + "".join(f"{column:>10}" for column in columns))
    for name in names:
        cells = (f"{c[name]:10.3f}" if name in c else f"{'':10}" for c in columns.values())
        print(f"{name:62}" + "".join(cells))


def main() -> None:
    """Measure both, print two tables and, if asked, write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-c", "--config", action="append", default=[], metavar="'key=value ...'")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6, help="of the fleet; 0: no fleet")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = {**SETTINGS, **parse_assignments(options.config)}
    result: dict[str, Any] = {"config": config, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        prepare(place, config)
        result["load before"] = os.getloadavg()
        result["inside"] = inside(place, options.repeats)
        if options.rounds:
            result["around"] = around(place, config, options.rounds)
        result["load after"] = os.getloadavg()
    whole = sum(result["inside"]["wall"].values())
    show(f"a client's process, s (all of it {whole:.2f} s)", result["inside"])
    if options.rounds:
        show(f"rounds of a fleet of {DEVICES} devices, s", {"wall": result["around"]})
    loads = " and ".join(f"{result[key][0]:.1f}" for key in ("load before", "load after"))
    print(f"\nload of the machine, of {os.cpu_count()} cores, before and after: {loads}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
