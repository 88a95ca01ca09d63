"""FedGH: the server trains a shared head on the prototypes of all clients.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023,
arXiv 2303.13137. Every client sends the mean representation of each of its classes; the server
fits one Linear(d, C) to these labelled vectors and broadcasts it. Extractors may have any
architecture.

Uplink, per participant and round: prototypes p_{k,c} of the classes present, m*d scalars (FedRE's
table: 257,024 for 502 pairs at d = 512), and their class ids, not counted. Downlink, to everyone:
the head, C*d + C (that table counts C*d). Private: extractor and mapping.

Order of a round on a client: load the head; train extractor, mapping and head with cross entropy;
collect prototypes in evaluation mode; upload. Server: SGD on CE(head(p_{k,c}), c) over all (p, c)
received, in the order of `walk`. A class that nobody sent gives no example.

Defaults are HtFLlib's benchmark: local SGD with lr 0.01 and no momentum. The authors train with
lr = 0.01, momentum = 0.9, weight-decay = 0.001, batch-size = 64, local-epochs = 10,
num-rounds = 500 and fedgh.clip-norm = 50. As in their code, clients are evaluated after local
training; HtFLlib does it before (evaluate-when = "pre").

Where this departs from the authors' released script: its server step uses an optimizer that holds
a client network's parameters instead of the header's, and never clears the header's gradients, so
that the header never changes. Here the optimizer holds the head, and every step has its own
gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models import SplitModel
from strategies.base.client import ClientContext
from strategies.base.messages import ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import AUTO, option
from strategies.base.payload import array
from strategies.base.server import LOSS_AFTER, LOSS_BEFORE, ServerContext
from strategies.common.head import (
    HeadClient,
    HeadPayload,
    HeadServer,
    HeadState,
    head_loss,
    train_head,
)
from strategies.common.losses import cross_entropy_of
from strategies.common.prototypes import class_means, held_classes
from strategies.common.training import collect_representations, train_epochs


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedGH.

    Attributes
    ----------
    walk : str
        How the server goes through the prototypes of a round: "shuffled" in batches (HtFLlib), or
        "clients", client by client in the order of their ids with a step per prototype (paper).
    server_epochs, server_lr : int, float
        Passes over the prototypes, and the rate of the head's plain SGD.
    server_batch_size : int
        Prototypes per step of the shuffled walk, "auto": the local batch size; the loss of a
        batch is a mean.
    clip_norm : float
        Largest norm of a client's gradient in local training; 0 does not clip.
    """

    walk: str = option("shuffled", "clients")
    server_epochs: int = option(1, minimum=1)
    server_batch_size: int | str = option(AUTO, kind=int, minimum=1)
    server_lr: float = option(0.01, above=0)
    clip_norm: float = option(0.0, minimum=0)


@dataclasses.dataclass
class Uplink:
    """What a participant sends: the prototypes of its classes."""

    class_ids: NDArray[np.int64] = held_classes()
    prototypes: NDArray[np.float32] = array("m", "d")


Downlink = HeadPayload
"""What every client receives: the head, weight W (C, d) and bias b (C,)."""


@dataclasses.dataclass
class ClientState:
    """The personal model."""

    model: SplitModel


def fit_head(
    weight: Tensor,
    bias: Tensor,
    uplinks: Iterable[Uplink],
    config: Config,
    *,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Train the head on all prototypes received.

    Parameters
    ----------
    weight, bias : Tensor
        Head, (C, d) and (C,); not changed.
    uplinks : iterable of Uplink
        At least one prototype in all, in client order; a client's are in the order it sent them.
    config : Config
        Walk, epochs, batch size and rate.
    generator : torch.Generator
        Shuffles; the walk by clients does not draw from it.

    Returns
    -------
    tuple
        New weight, new bias, and mean losses per prototype: "server_loss" during the last epoch,
        and those before and after training.
    """
    received = [(uplink.prototypes, uplink.class_ids) for uplink in uplinks]
    inputs = torch.from_numpy(np.concatenate([p for p, _ in received]))
    labels = torch.from_numpy(np.concatenate([c for _, c in received]))
    targets = F.one_hot(labels, len(bias)).float()
    before = head_loss(weight, bias, inputs, targets)

    def train(rows: slice, epochs: int) -> float:
        nonlocal weight, bias
        weight, bias, loss = train_head(
            weight,
            bias,
            inputs[rows],
            targets[rows],
            lr=config.server_lr,
            epochs=epochs,
            batch_size=int(config.server_batch_size),
            generator=generator,
            reduction="mean",
        )
        return loss

    if config.walk == "shuffled":
        loss = train(slice(None), config.server_epochs)
    else:
        for _ in range(config.server_epochs):
            loss = sum(train(slice(i, i + 1), 1) for i in range(len(inputs))) / len(inputs)
    after = head_loss(weight, bias, inputs, targets)
    return weight, bias, {"server_loss": loss, LOSS_BEFORE: before, LOSS_AFTER: after}


class Client(HeadClient[ClientState, Downlink, Uplink]):
    """Client half: local training with cross entropy, then prototypes."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model())

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        clip_norm = context.config.clip_norm or None
        metrics = train_epochs(
            context, [state.model], cross_entropy_of(state.model), clip_norm=clip_norm
        )
        class_ids, prototypes, _ = class_means(*collect_representations(context, state.model))
        return Uplink(class_ids, prototypes), metrics


class Server(HeadServer):
    """Server half: one head, trained on the round's prototypes."""

    def aggregate(
        self, context: ServerContext, state: HeadState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        config = context.config
        if config.server_batch_size == AUTO:
            config = dataclasses.replace(config, server_batch_size=context.run.batch_size)
        state.head_weight, state.head_bias, losses = fit_head(
            state.head_weight,
            state.head_bias,
            (update.uplink for update in updates),
            config,
            generator=context.generator("server-batches"),
        )
        return losses


METHOD = register(
    __name__,
    summary="the class prototypes of all clients train a shared head",
    training=Training(optimizer="sgd", lr=0.01),
    evaluate_when="post",
)
