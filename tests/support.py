"""What tests share: running a whole federation in this process, and reading its records."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deploy.contract.runs import SMALL, Outcome, run_federation
from deploy.flower.text import toml_lines
from server_app.rounds.method_server import MethodServer
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.run_config import RunConfig

__all__ = ["OWN_MODEL", "SMALL", "Outcome", "ServerAtWork", "make_hostile", "run_federation"]


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


OWN_MODEL = """
from torch import nn

def tiny(shape):
    pixels = shape.channels * shape.image_size**2
    body = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU())
    body.raw_dim = 64
    return body
"""
"""A file with a user's own model, `tiny`."""


def typed(keys: Mapping[str, Any]) -> str:
    """Return run-config keys and values as `wildflower run -c` takes them."""
    return toml_lines(keys).replace("\n", " ")


def make_hostile(folder: Path) -> None:
    """Make files and folders that Python would import in place of our packages."""
    (folder / "data").mkdir()
    (folder / "models").mkdir()
    for file in ("models/__init__.py", "strategies.py", "client_app.py", "server_app.py"):
        (folder / file).write_text("raise RuntimeError('a file of the user was imported')")
