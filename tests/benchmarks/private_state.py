"""B4: what a client's private state costs, timed inside the workers of a real run.

The app that runs is a copy of Wildflower with one more module, whose ClientApp times everything
that is there for private states alone: finding and reading the newest one (a skeleton of the
model included), writing the new one, and removing old ones. The run it is compared with keeps one
model of each architecture in the worker's memory and neither reads nor writes a file: client
seconds that are above that run's hold indirect costs as well, such as cold memory.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.measured import Measured, measure_run
from tests.benchmarks.workloads import ROOT, WARM_UP, BenchmarkError, Workload

PACKAGES = ("server_app", "client_app", "strategies", "models", "data")
MODULE = "benchmark_app"
KINDS = ("files", "memory")
CODE = """
import json
import os
import time
from pathlib import Path

from flwr.clientapp import ClientApp

from client_app import app as wildflower
from client_app import handlers

PLACE, KIND = Path({place!r}), {kind!r}
seconds = {{}}
kept = {{}}


def timed(name, function):
    def wrapper(*arguments, **named):
        started = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started

    return wrapper


restore = handlers.Session.restore
if KIND == "memory":

    def from_memory(session, **which):
        name = session.context.model_name
        if name not in kept:
            kept[name] = restore(session, **which)
        return kept[name]

    handlers.Session.restore = from_memory
    handlers.StateStore.save = lambda *arguments: None
else:
    handlers.Session.restore = timed("read", restore)
    handlers.StateStore.save = timed("write", handlers.StateStore.save)
    handlers.StateStore.discard_lost = timed("tidy", handlers.StateStore.discard_lost)
    handlers.prune_rounds = timed("tidy", handlers.prune_rounds)


app = ClientApp()


# Functions of this module: a worker gets them by name, so it imports and changes what is above.
@app.query()
def query(message, context):
    return wildflower.app(message, context)


@app.evaluate()
def evaluate(message, context):
    return wildflower.app(message, context)


@app.train()
def train(message, context):
    seconds.clear()
    reply = wildflower.app(message, context)
    row = {{"round": int(message.content[handlers.CONTROL]["round"]), **seconds}}
    with (PLACE / f"{{os.getpid()}}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\\n")
    return reply
"""


@dataclasses.dataclass(frozen=True)
class StateCost:
    """What private state adds.

    Attributes
    ----------
    parts_s : dict of str to float
        Mean seconds of a client and message by part, timed in the workers.
    messages : int
        How many were timed.
    compared_s : float
        Mean seconds of a client and message above the run that keeps models in memory.
    with_files, in_memory : Measured
        The two runs.
    """

    parts_s: dict[str, float]
    messages: int
    compared_s: float
    with_files: Measured
    in_memory: Measured


def measure_state(workload: Workload, workers: int) -> StateCost:
    """Run the workload with states in files and with models in memory."""
    runs: dict[str, Measured] = {}
    rows: list[dict[str, float]] = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as directory:
            app, place = Path(directory) / "app", Path(directory) / "times"
            place.mkdir()
            write_app(app, place, kind)
            runs[kind] = measure_run(workload, workers, app=app)
            if kind == "files":
                rows = [
                    json.loads(line)
                    for path in sorted(place.iterdir())
                    for line in path.read_text().splitlines()
                ]
    files, memory = (runs[kind] for kind in KINDS)
    messages = len(files.compute_s) * files.participants
    return StateCost(
        parts_s=mean_parts(rows, WARM_UP),
        messages=messages,
        compared_s=(sum(files.compute_s) - sum(memory.compute_s)) / messages,
        with_files=files,
        in_memory=memory,
    )


def write_app(app: Path, place: Path, kind: str) -> None:
    """Copy Wildflower's packages and add the ClientApp that times states, or has none."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, app / package, ignore=ignored)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, app)
    project = (ROOT / "pyproject.toml").read_text()
    before, after = '"client_app.app:app"', f'"client_app.{MODULE}:app"'
    assert before in project
    (app / "pyproject.toml").write_text(project.replace(before, after))
    (app / "client_app" / f"{MODULE}.py").write_text(CODE.format(place=str(place), kind=kind))


def mean_parts(rows: Iterable[dict[str, Any]], skip: int) -> dict[str, float]:
    """Return the mean of every part over the messages of rounds after the first `skip`.

    Raises
    ------
    BenchmarkError
        If there are none.
    """
    steady = [row for row in rows if row["round"] > skip]
    if not steady:
        raise BenchmarkError(f"no message was timed after round {skip}: is the app another one?")
    names = dict.fromkeys(name for row in steady for name in row if name != "round")
    return {name: sum(row.get(name, 0.0) for row in steady) / len(steady) for name in names}
