"""Start-up: an empty Flower app that imports what Wildflower's apps import, and does nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deploy.flower.simulation import FlowerSimulation
from deploy.flower.text import Value
from tests.benchmarks.measured import ENVIRONMENT
from tests.benchmarks.workloads import ROOT, BenchmarkError

LIMIT = 300.0
PROJECT = """
[project]
name = "empty"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "benchmarks"

[tool.flwr.app.components]
serverapp = "empty_server:app"
clientapp = "empty_client:app"

[tool.flwr.app.config]
mark = ""
clients = 0
"""
IMPORTS = """
import importlib
import time
from contextlib import suppress
from pathlib import Path

for name in {names!r}:
    with suppress(ImportError):  # some name themselves otherwise than their files
        importlib.import_module(name)
"""
CLIENT = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    try:
        with Path(context.run_config["mark"]).open("x") as file:
            file.write(repr(time.time()))
    except FileExistsError:
        pass
    return Message(RecordDict(), reply_to=message)
"""
SERVER = """
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    deadline = time.monotonic() + 120
    while len(nodes := list(grid.get_node_ids())) < context.run_config["clients"]:
        if time.monotonic() > deadline:
            raise RuntimeError("the nodes did not come")
        time.sleep(0.05)
    messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
    list(grid.send_and_receive(messages, timeout=120))
"""
LISTING = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
OWN = ("server_app", "client_app", "strategies", "models", "data", "deploy", "tests")


def third_party(modules: list[str]) -> list[str]:
    """Return the packages of these modules that are neither Python's nor Wildflower's.

    Whole packages: what else of them was loaded came with a package or costs little, and an empty
    app that loads less makes the comparison stricter.
    """
    left = {*sys.stdlib_module_names, *OWN}
    packages = dict.fromkeys(name.split(".")[0] for name in modules)
    return [name for name in packages if name not in left and name[0] != "_"]


def imported_by(module: str) -> list[str]:
    """Return the third-party packages that importing a module brings into a new process."""
    done = subprocess.run(
        [sys.executable, "-c", LISTING.format(module=module)],
        cwd=ROOT, text=True, capture_output=True, timeout=LIMIT, check=True,
    )  # fmt: skip
    return third_party(json.loads(done.stdout.splitlines()[-1]))


def empty_start_up(clients: int, workers: int, federation: dict[str, Value] | None = None) -> float:
    """Return seconds from submitting the empty app to its first client call."""
    with (
        tempfile.TemporaryDirectory() as directory,
        FlowerSimulation(environment=ENVIRONMENT) as simulation,
    ):
        app, mark = Path(directory) / "app", Path(directory) / "mark"
        app.mkdir()
        (app / "pyproject.toml").write_text(PROJECT)
        for name, code, own in (
            ("empty_client", CLIENT, "client_app.app"),
            ("empty_server", SERVER, "server_app.app"),
        ):
            (app / f"{name}.py").write_text(IMPORTS.format(names=imported_by(own)) + code)
        submitted = time.time()
        run = simulation.run(
            app, {"mark": str(mark), "clients": clients}, clients=clients, workers=workers,
            federation=federation, timeout=LIMIT,
        )  # fmt: skip
        if not mark.is_file():
            raise BenchmarkError(f"the empty app called no client: {run.log[-3000:]}")
        return float(mark.read_text()) - submitted
