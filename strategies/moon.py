"""MOON: features are drawn to those of the received model, away from those of the client's last.

Li, He and Song, Model-Contrastive Federated Learning (CVPR 2021, arXiv 2103.16257). With z the
input of the classifier, z_glob the same from the received weights and z_prev from the client's own
model at the end of its last participation,

    l_con = -log( e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + e^{cos(z, z_prev)/tau}) )
    loss  = CE + mu l_con,

l_con averaged over the batch. A client that participates for the first time has no last model and
takes the received one: l_con is log 2 and has no gradient.

Order of a round on a client: load the received weights, keep a copy of them, train E epochs, keep
the trained model for the next participation, send the weights. The server averages as in FedAvg.

The received and the last model run without gradients and in evaluation mode, as in the authors'
code: BatchNorm uses their running statistics and leaves them alone, so z_glob and z_prev of an
image do not depend on its batch. The model in training uses batch statistics.

Scalars: |w_k| up and down. Private: the last model, |w_k| and its buffers, from one participation
to the next. Three models are in memory. Evaluated: the aggregated model of every architecture,
before local training.

Departures: the paper puts a projection head (two layers, 256 wide) before the classifier and takes
z behind it; here z is what the client's own architecture gives its classifier. Optimiser settings
are the run's, by default those of `fedavg`, not the authors' momentum and weight decay. Clients
may have different architectures, averaged by layer.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from models import SplitModel
from strategies.base.client import ClientContext
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.common.layerwise import (
    LayerwiseClient,
    LayerwiseConfig,
    WeightsClientState,
    WeightsPayload,
    WeightsServerState,
    bare_model,
    fill_model,
)
from strategies.common.layerwise_server import LayerwiseServer
from strategies.common.losses import task_loss
from strategies.common.training import train_epochs


@dataclasses.dataclass(frozen=True)
class Config(LayerwiseConfig):
    """Options of MOON, besides those of the family.

    Attributes
    ----------
    mu : float
        Weight of the contrastive term; the paper tunes it among 0.1, 1, 5 and 10.
    tau : float
        Temperature of the similarities.
    """

    mu: float = option(5.0, minimum=0)
    tau: float = option(0.5, above=0)


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ServerState = WeightsServerState


@dataclasses.dataclass
class ClientState(WeightsClientState):
    """And the last local model, buffers included; empty before the first participation."""

    previous: dict[str, Tensor]


def contrastive(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Return l_con of features (N, d), averaged over N, in float32.

    The quotient is 1 / (1 + e^s) with s = (cos(z, z_prev) - cos(z, z_glob)) / tau, so l_con is the
    softplus of s.
    """
    z, z_glob, z_prev = z.float(), z_glob.float(), z_prev.float()
    near, far = F.cosine_similarity(z, z_glob), F.cosine_similarity(z, z_prev)
    return F.softplus((far - near) / tau).mean()


def frozen_copy(model: SplitModel) -> SplitModel:
    """Return a copy in evaluation mode, whose parameters take no gradient."""
    return copy.deepcopy(model).eval().requires_grad_(False)


class Client(LayerwiseClient[ClientState, Downlink, Uplink]):
    """Client half: cross entropy and the contrast between the received and the last model."""

    def new_state(self, model: SplitModel, buffers: dict[str, Tensor]) -> ClientState:
        return ClientState(model, buffers, {})

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        model, config = state.model, context.config
        own = task_loss(context.data.task, model.head)
        received = previous = frozen_copy(model)
        if state.previous:
            previous = bare_model(context)
            fill_model(context, previous, {}, state.previous)

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            z = model.features(images)
            # Both passes always, so that every step of an architecture costs the same.
            with torch.no_grad():
                z_glob, z_prev = received.features(images), previous.features(images)
            return {
                **own(z, labels),
                "loss_contrastive": config.mu * contrastive(z, z_glob, z_prev, config.tau),
            }

        metrics = train_epochs(context, [model], loss)
        state.previous = {name: item.clone() for name, item in model.state_dict().items()}
        return Uplink(**self.outgoing(context, state)), metrics


class Server(LayerwiseServer[ServerState]):
    """Server half: the mean of every layer."""


METHOD = register(
    __name__,
    summary="FedAvg, with features drawn to the received model's and away from the last one's",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    evaluated_model="global",
    shares_reader=True,
    averages=True,
    regression=True,
)
