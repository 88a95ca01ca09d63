"""FedAllRep: every representation goes to the server, which trains the shared head on all of them.

The upper-bound variant of FedRE (CVPR 2026, arXiv 2511.22265): instead of one entangled vector a
client uploads (r_i, y_i) for its whole training set. It shows what entanglement costs in accuracy
(TinyImageNet, practical split: 31.20 against FedRE's 30.48) and saves in traffic, and it discloses
every label and representation. Clients keep extractors of any architecture.

Uplink, per participant and round: representations (n_k, d) and labels (n_k,), n_k*d + n_k scalars;
both are counted, as the published n_k (d + 1) does. Downlink, to everyone: the head, C*d + C.
Private: extractor and mapping.

Order of a round on a client: load the head; train extractor, mapping and head with cross entropy;
collect representations in evaluation mode; upload them. Everything else, options and defaults
included, is FedRE's. With its sum reduction the server takes one step of up to 32 times the mean
gradient per 32 representations, hundreds of steps where FedRE takes one. Between ten unlike models
that diverged in six of twelve runs; with `reduction = "stable"` none did.

The server holds all representations of the round at once, twice for a moment while it joins them:
8 d bytes per training example of the participants. Every epoch shuffles their union, so it cannot
stream them.
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
from strategies.base.options import option
from strategies.base.payload import PayloadError, array
from strategies.base.server import ServerContext
from strategies.common.head import HeadClient, HeadPayload, HeadServer, HeadState
from strategies.common.losses import cross_entropy_of
from strategies.common.training import collect_representations, train_epochs


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedAllRep; those of FedRE without the entanglement's.

    Attributes
    ----------
    mapping : str
        From the raw feature width to d: adaptive average (AP) or maximum pooling (MP), or a
        private trainable linear layer (FC).
    server_epochs, server_batch_size, server_lr, reduction
        The head's SGD on the server; the loss of a batch is a sum (FedRE's code), a mean, or
        "stable", see `strategies.fedre`.
    mask_absent : bool
        Leave the logits of classes that no upload of the round contains out of the server loss.
    """

    mapping: str = option("AP", "MP", "FC")
    server_epochs: int = option(1, minimum=1)
    server_batch_size: int = option(32, minimum=1)
    server_lr: float = option(0.01, above=0)
    reduction: str = option("sum", "mean", "stable")
    mask_absent: bool = option(False)


@dataclasses.dataclass
class Uplink:
    """What a participant sends: all its representations and their classes."""

    representations: NDArray[np.float32] = array("n", "d")
    labels: NDArray[np.int64] = array("n", dtype="int64", minimum=0, below="C")


Downlink = HeadPayload
"""What every client receives: the head, weight W (C, d) and bias b (C,)."""


@dataclasses.dataclass
class ClientState:
    """The personal model."""

    model: SplitModel


def join_uplinks(uplinks: Iterable[Uplink]) -> tuple[Tensor, Tensor]:
    """Return the union of all uploads: representations (N, d) and labels (N,), in client order."""
    received = [(uplink.representations, uplink.labels) for uplink in uplinks]
    representations = np.concatenate([r for r, _ in received])
    labels = np.concatenate([y for _, y in received])
    return torch.from_numpy(representations), torch.from_numpy(labels)


class Client(HeadClient[ClientState, Downlink, Uplink]):
    """Client half: local training with cross entropy, then all representations."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model(mapping=context.config.mapping))

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        metrics = train_epochs(context, [state.model], cross_entropy_of(state.model))
        representations, labels = collect_representations(context, state.model)
        return Uplink(representations.numpy(), labels.numpy()), metrics


class Server(HeadServer):
    """Server half: one head, trained on the union of the round's representations."""

    def check_uplink(self, context: ServerContext, state: HeadState, update: ClientUpdate) -> None:
        sent = len(update.uplink.labels)
        if sent != update.num_examples:
            raise PayloadError(f"labels: {sent} were sent, num-examples is {update.num_examples}")

    def aggregate(
        self, context: ServerContext, state: HeadState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        inputs, labels = join_uplinks(update.uplink for update in updates)
        targets = F.one_hot(labels, context.dims["C"]).float()
        return self.train_as_configured(context, state, inputs, targets)


METHOD = register(
    __name__,
    summary="all representations of all clients train a shared head: FedRE's upper bound",
    training=Training(optimizer="sgd", lr=0.06),
)
