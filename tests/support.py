"""What tests share: running a whole federation in this process, and reading its records."""

from __future__ import annotations

import csv
import dataclasses
import functools
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from client_app.app import app as client_app
from server_app.app import app as server_app
from server_app.rounds.in_process import InProcessGrid
from server_app.rounds.method_server import MethodServer
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.run_config import RunConfig


class ServerAtWork(MethodServer):
    """A server half with its state, whose methods a test calls without context and state.

    `server.downlink_for(2, 5)` is what client 2 gets in round 5; any further method of the half is
    called by its name, `server.draw(client_id)` for `half.draw(context, state, client_id)`.
    """

    def __init__(self, run: RunConfig, clients: Iterable[ClientInfo] = ()) -> None:
        super().__init__(run)
        if clients := list(clients):
            self.admit(clients)

    def admit(self, infos: Iterable[ClientInfo]) -> None:
        """Admit clients; the first ones let the server begin."""
        super().admit(infos)
        if self.state is None:
            self.begin()

    def exchanges_in(self, server_round: int) -> int:
        """Return how many exchanges a round has."""
        self.server_round = server_round
        return self.half.exchanges(self.context)

    def downlink_for(self, client: int | None, server_round: int) -> Any:
        """Return one client's payload; that of all clients is asked for first, as in a run."""
        self.server_round = server_round
        common = self.half.downlink(self.context, self.state, None)
        if common is not None or client is None:
            return common
        info = self.clients.get(client) or dataclasses.replace(
            next(iter(self.clients.values())), client_id=client
        )
        return self.half.downlink(self.context, self.state, info)

    def aggregate_in(self, server_round: int, updates: Iterable[ClientUpdate]) -> dict[str, float]:
        """Aggregate in a round."""
        self.server_round = server_round
        return self.aggregate(updates)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.half, name)
        given = {"context": self.context, "state": self.state, "run": self.run}
        taken = [p for p in list(inspect.signature(function).parameters)[:2] if p in given]
        return functools.partial(function, *(given[parameter] for parameter in taken))


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
