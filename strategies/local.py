"""Local (standalone) training: every client keeps training its own model, nothing is exchanged.

The reference against which every federated method is measured. Uplink and downlink carry no
arrays; the server holds nothing. Order of a round on a client: train with the loss of its task
(cross entropy where the run names none), continuing from the last round's model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import Tensor

from models import SplitModel, TaskModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import register
from strategies.base.server import ServerContext, ServerHalf
from strategies.common.losses import task_loss
from strategies.common.training import train_epochs


@dataclasses.dataclass(frozen=True)
class Config:
    """Local training has no options of its own."""


@dataclasses.dataclass
class Uplink:
    """Nothing is sent."""


@dataclasses.dataclass
class Downlink:
    """Nothing is received."""


@dataclasses.dataclass
class ServerState:
    """The server keeps nothing."""


@dataclasses.dataclass
class ClientState:
    """The personal model; one for its task where the run names tasks."""

    model: SplitModel | TaskModel


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: cross entropy on the local data."""

    def build(self, context: ClientContext) -> ClientState:
        if context.task is not None:
            return ClientState(context.build_task_model())
        return ClientState(context.build_model())

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        loss = task_loss(context.data.task, state.model)
        return Uplink(), train_epochs(context, [state.model], loss)

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images)}


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: aggregates nothing."""

    def initial_state(self, context: ServerContext) -> ServerState:
        return ServerState()

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink:
        return Downlink()

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        for _ in updates:
            pass  # replies are still awaited, so that rounds stay in step
        return {}


METHOD = register(
    __name__,
    summary="no exchange: the reference for every other method",
    common_feature_dim=False,
    any_task=True,
    pairs=True,
    regression=True,
)
