"""A client as it was when it sent its uplink: its data, and its model after that round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from numpy.typing import NDArray

from client_app.node import client_context, state_root
from client_app.state_store import StateStore, state_directory
from models import SplitModel
from models.build import proven
from models.own_code import searching
from models.skeleton import skeleton
from server_app.records.payload_files import DIRECTORY, PayloadFiles
from server_app.records.run_directory import require_run
from server_app.records.run_reader import RunRecords, read_run
from strategies.base.client import ClientContext
from strategies.base.options import ConfigError
from strategies.base.round_files import round_file


@dataclass(frozen=True, eq=False)
class Victim:
    """A client under attack.

    Attributes
    ----------
    context : ClientContext
        Who it is.
    model : SplitModel
        Its model when it sent the uplink, in evaluation mode, on its device; nothing of it is
        trained any more.
    images : NDArray[np.uint8]
        (n, C, H, W) its training images, in the fixed order of its training set.
    labels : NDArray[np.int64]
        (n,) their classes.
    uplink : dict
        The arrays it sent.
    """

    context: ClientContext
    model: SplitModel
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    uplink: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Scene:
    """A run whose uplinks were kept, and the round that is attacked."""

    directory: Path
    records: RunRecords
    payloads: PayloadFiles
    round: int
    clients: list[int]

    @classmethod
    def of(cls, directory: Path, server_round: int | None = None) -> Scene:
        """Open a run; by default the newest round of which there are uplinks.

        Raises
        ------
        ConfigError
            There is no run, it kept no uplinks, or none of this round.
        """
        require_run(directory)
        payloads = PayloadFiles(directory / DIRECTORY)
        rounds = payloads.rounds()
        if not rounds:
            raise ConfigError(
                f"{directory}: this run kept no uplinks; run it with keep-payloads = N, where N is "
                "a divisor of num-rounds, so that those of the last round are kept"
            )
        chosen = rounds[-1] if server_round is None else server_round
        if chosen not in rounds:
            there = ", ".join(map(str, rounds))
            raise ConfigError(f"--round {chosen}: there are uplinks of rounds {there}")
        return cls(directory, read_run(directory), payloads, chosen, payloads.clients(chosen))

    def victim(self, client_id: int) -> Victim:
        """Load a client as it was when it sent its uplink.

        Raises
        ------
        ConfigError
            Its data or its state of that round is not on this machine.
        """
        config = dict(self.records.settings)
        count = 1 + max(client.client for client in self.records.clients)
        node: dict[str, bool | float | int | str] = {
            "partition-id": client_id,
            "num-partitions": count,
        }
        with searching(str(config.get("code-dir", ""))):
            context = client_context(
                Context(0, 0, node, RecordDict(), config), self.round
            )  # fmt: skip
            self._refuse_other_data(context)
            state = self._state(context)
        model = getattr(state, "model", None)
        if not isinstance(model, SplitModel):
            raise ConfigError(f"client {client_id}: method {context.run.method} has no one model")
        model.eval().requires_grad_(False).to(context.device)
        images, labels = context.data.train.batch(np.arange(len(context.data.train)))
        uplink = dict(self.payloads.read(self.round, client_id))
        return Victim(context, model, images.numpy(), labels.numpy(), uplink)

    def _refuse_other_data(self, context: ClientContext) -> None:
        """Devices of a fleet have data of their own, which is not here, or is another's."""
        (client,) = [c for c in self.records.clients if c.client == context.client_id]
        if (client.train_examples, client.model) != (len(context.data.train), context.model_name):
            raise ConfigError(
                f"client {client.client}: it had {client.train_examples} training examples and "
                f"model {client.model}, here it would have {len(context.data.train)} and "
                f"{context.model_name}; only runs of a simulation can be attacked, with their data"
            )

    def _state(self, context: ClientContext) -> Any:
        root = state_root(context.run, {}, self.directory.name)
        if root.parent.resolve() != self.directory.resolve():  # it was moved since
            root = self.directory / "clients"
        folder = state_directory(root, context.client_id)
        path = round_file(folder, self.round)
        if not path.is_file():
            raise ConfigError(
                f"client {context.client_id}: its model after round {self.round} is not kept "
                f"({path}); attack the last round, or run with a larger keep-checkpoints"
            )
        half = context.run.chosen_method.client()
        with skeleton(), proven():
            bare = half.build(context)
        about = {"method": context.run.method, "model": context.model_name}
        return StateStore(folder, about).load(path, bare)[0]
