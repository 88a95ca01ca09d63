"""LG-FedAvg: clients keep their extractors and average the head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", arXiv 2001.01523. Every client trains its whole model; only the head, of one
shape on all clients, is exchanged and averaged. Extractors may have any architecture.

Uplink, per participant and round: the head, C*d + C. Downlink, to everyone: the averaged head,
C*d + C. Private: extractor and mapping, with all their buffers.

Order of a round on a client: load the head; train extractor, mapping and head with cross entropy;
upload the head. Server: head <- sum_k (n_k / n) head_k, n_k the training examples of client k and
n their sum over the clients that answered. Local defaults: SGD with lr 0.01.

Where this departs from the paper: the original may share further top layers, and ensembles local
and global models for unseen devices. Here only the head is shared, since nothing else has one
shape on unlike clients, and the personal model is evaluated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import Tensor

from models import SplitModel
from strategies.base.client import ClientContext
from strategies.base.messages import ClientUpdate
from strategies.base.method import Training, register
from strategies.base.server import ServerContext
from strategies.common.head import (
    HeadClient,
    HeadPayload,
    HeadServer,
    HeadState,
    head_arrays,
)
from strategies.common.losses import task_loss
from strategies.common.robust import mean_over_clients
from strategies.common.training import train_epochs
from strategies.common.weights import RunningMean, mean_states


@dataclasses.dataclass(frozen=True)
class Config:
    """LG-FedAvg has no options of its own."""


Uplink = HeadPayload
Downlink = HeadPayload
"""What travels both ways: a head, weight (C, d) and bias (C,)."""


@dataclasses.dataclass
class ClientState:
    """The personal model."""

    model: SplitModel


def average_heads(
    heads: Iterable[tuple[Uplink, int]], mean: RunningMean | None = None
) -> tuple[Tensor, Tensor]:
    """Average heads weighted by examples: sum_k (n_k / n) head_k.

    Parameters
    ----------
    heads : iterable of (Uplink, int)
        Heads and their n_k >= 1, at least one pair. Read once and not kept: the memory needed
        does not grow with the number of clients.
    mean : RunningMean, optional
        An empty one of another kind, see `common.robust`.

    Returns
    -------
    tuple of Tensor
        Weight (C, d) and bias (C,), float32. Sums are in float64 and in the order of arrival,
        which is the order of client ids, so that the result does not depend on who is fastest.
    """
    fields = (({"weight": h.head_weight, "bias": h.head_bias}, count) for h, count in heads)
    averaged = mean_states(fields, mean)
    return averaged["weight"], averaged["bias"]


class Client(HeadClient[ClientState, Downlink, Uplink]):
    """Client half: local training with cross entropy from the averaged head on."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model())

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        metrics = train_epochs(context, [state.model], task_loss(context.data.task, state.model))
        return Uplink(*head_arrays(state.model.head)), metrics


class Server(HeadServer):
    """Server half: one head, the mean of the round's heads."""

    def aggregate(
        self, context: ServerContext, state: HeadState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        heads = ((update.uplink, update.num_examples) for update in updates)
        held = {"weight": state.head_weight, "bias": state.head_bias}
        mean = mean_over_clients(context.run, held)
        state.head_weight, state.head_bias = average_heads(heads, mean)
        return {}


METHOD = register(
    __name__,
    name="lg-fedavg",
    summary="private extractors, and a head that is averaged over the clients",
    training=Training(optimizer="sgd", lr=0.01),
    averages=True,
    regression=True,
)
