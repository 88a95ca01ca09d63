"""What tests share: running a whole federation in this process, and reading its records."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from client_app.app import app as client_app
from server_app.app import app as server_app
from server_app.rounds.in_process import InProcessGrid

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "subset": 0.25,
    "models": "cnn5, cnn2, resnet10-w4",
    "num-rounds": 2,
    "min-examples": 5,
    "public-size": 48,
}
"""Settings that make a run take seconds: real images, three unlike architectures."""


OWN_MODEL = """
from torch import nn

def tiny(shape):
    pixels = shape.channels * shape.image_size**2
    body = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU())
    body.raw_dim = 64
    return body
"""
"""A file with a user's own model, `tiny`."""


def make_hostile(folder: Path) -> None:
    """Make files and folders that Python would import in place of our packages."""
    (folder / "data").mkdir()
    (folder / "models").mkdir()
    for file in ("models/__init__.py", "strategies.py", "client_app.py", "server_app.py"):
        (folder / file).write_text("raise RuntimeError('a file of the user was imported')")


@dataclass(frozen=True)
class Outcome:
    """A finished run's directory and records."""

    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.path / "summary.json").read_text())

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.path / "config.json").read_text())

    def rows(self, name: str) -> list[dict[str, str]]:
        with (self.path / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def metrics(self, **wanted: Any) -> list[dict[str, str]]:
        """Return the rows of metrics.csv whose columns have these values."""
        rows = self.rows("metrics")
        return [r for r in rows if all(r[k] == str(v) for k, v in wanted.items())]

    def text(self, name: str) -> str:
        return (self.path / name).read_text()


def run_federation(
    directory: Path,
    clients: int,
    *,
    app: ClientApp | None = None,
    nodes: Mapping[int, Mapping[str, Any]] | None = None,
    grid_class: type[InProcessGrid] = InProcessGrid,
    **config: Any,
) -> Outcome:
    """Run a federation in this process; keyword `num_rounds` is the key `num-rounds`.

    A key of a method is written with a double underscore: `fedre__mechanism="RAR"`.
    """
    keys = {k.replace("__", ".").replace("_", "-"): v for k, v in config.items()}
    values = {**SMALL, "output-dir": str(directory), "run-name": "run", **keys}
    if values.get("resume"):
        values["run-name"] = ""
    grid = grid_class(app or client_app, clients, values, nodes)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=values)
    server_app(grid=grid, context=context)
    return Outcome(
        directory / str(values["resume"] if values.get("resume") else values["run-name"])
    )
