"""A client as it was when it sent its uplink: its data, and its model after that round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.kept_run import KeptClient, KeptRun, downlink_for
from models import SplitModel
from server_app.records.payload_files import DIRECTORY, PayloadFiles
from server_app.records.run_reader import RunRecords
from server_app.rounds.method_server import MethodServer
from strategies.base.client import ClientContext
from strategies.base.options import ConfigError
from strategies.base.payload import named_arrays
from strategies.common.small_model import SmallModelServer, first_small_model
from strategies.common.weights import load_arrays

CHANGES = ("weights", "theta", "head_weight")
"""Fields of an uplink that are what the downlink's became in training."""


@dataclass(frozen=True, eq=False)
class SharedModel:
    """A model that travels: the client's own, or the small one that all clients have.

    Attributes
    ----------
    field : str
        Of the payload, "weights" or "theta".
    model : SplitModel
        As it was sent, in evaluation mode, on the client's device.
    """

    field: str
    model: SplitModel


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
    uplink : Mapping of str to ndarray
        The arrays it sent.
    shared : SharedModel or None
        The model whose weights it sent, if it sent any.
    received : Mapping of str to ndarray
        The arrays it was sent at the start of the round, where what it sent is a change of them;
        else empty.
    """

    context: ClientContext
    model: SplitModel
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    uplink: Mapping[str, NDArray[Any]]
    shared: SharedModel | None
    received: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Scene:
    """A run whose uplinks were kept, and the round that is attacked."""

    run: KeptRun
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
        run = KeptRun.of(directory)
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
        return cls(run, payloads, chosen, payloads.clients(chosen))

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self.run.directory

    @property
    def records(self) -> RunRecords:
        """What the run recorded."""
        return self.run.records

    @cached_property
    def server(self) -> MethodServer:
        """The server at the start of the round."""
        return self.run.server_before(self.round)

    def victim(self, client_id: int) -> Victim:
        """Load a client as it was when it sent its uplink.

        Raises
        ------
        ConfigError
            Its data, its state of that round or the server's before it is not on this machine.
        """
        client = self.run.client(client_id, self.round)
        uplink = self.payloads.read(self.round, client_id)
        changes = any(key.partition("/")[0] in CHANGES for key in uplink)
        downlink = downlink_for(self.server, client_id) if changes or client.is_bare else None
        context = client.context
        if client.is_bare:
            client.receive(downlink)
        model = getattr(client.state, "model", None)
        if not isinstance(model, SplitModel):
            raise ConfigError(f"client {client_id}: method {context.run.method} has no one model")
        shared = self._shared(client, model, uplink)
        model.eval().requires_grad_(False).to(context.device)
        images, labels = context.data.train.batch(np.arange(len(context.data.train)))
        if images.dim() != 4:
            raise ConfigError(f"client {client_id}: its examples are no images, which is needed")
        received = named_arrays(downlink) if changes else {}
        return Victim(context, model, images.numpy(), labels.numpy(), uplink, shared, received)

    def _shared(
        self, client: KeptClient, model: SplitModel, uplink: Mapping[str, NDArray[Any]]
    ) -> SharedModel | None:
        """Return the model whose weights were sent; the client's own is given them in place."""
        fields = {key.partition("/")[0] for key in uplink}
        if "weights" in fields:
            _load_sent(client, model, uplink, ("weights/", "buffers/"))
            return SharedModel("weights", model)
        if "theta" not in fields or not isinstance(self.server.half, SmallModelServer):
            return None
        context = self.server.context
        small = first_small_model(context, self.server.half.small_width(context))
        _load_sent(client, small, uplink, ("theta/",))
        small.eval().requires_grad_(False).to(client.context.device)
        return SharedModel("theta", small)


def _load_sent(
    client: KeptClient,
    model: SplitModel,
    uplink: Mapping[str, NDArray[Any]],
    fields: tuple[str, ...],
) -> None:
    """Give a model that no state keeps the weights and buffers that the client sent."""
    sent = {key.partition("/")[2]: item for key, item in uplink.items() if key.startswith(fields)}
    own = model.state_dict()
    shapes = {name: tuple(item.shape) for name, item in own.items()}
    if unlike := [name for name, item in sent.items() if shapes.get(name) != item.shape]:
        raise ConfigError(
            f"client {client.context.client_id}: {unlike[0]} of the uplink is not as in its model; "
            f"weights of method {client.context.run.method} are not attacked here"
        )
    load_arrays(own, sent)
