"""FedNova: averages normalised updates, so that clients with more local steps do not pull more.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization
(NeurIPS 2020, arXiv 2007.07481), Eq. 4 and section 4; by layer over unlike depths as in the
comparison of FedIN (arXiv 2304.00759).

    w <- w - (sum_k p_k a_k) sum_k p_k (w - w_k) / a_k

p_k = n_k / sum_j n_j over the round's clients that own the entry. a_k is the sum of the weights
that client k's S_k gradients have in w - w_k, divided by the learning rate: S_k for plain SGD, and
with momentum rho, which gives a gradient the weight 1 + rho + rho^2 ... over the steps left,

    a_k = (S_k - rho (1 - rho^{S_k}) / (1 - rho)) / (1 - rho)

Clients differ in S_k because they differ in n_k: S_k = E ceil(n_k / B). With equal a_k the formula
is FedAvg's weighted mean. Buffers are no updates: their weighted mean is taken, as in FedAvg.

Uplink: w_k and a_k, |w_k| + 1 scalars. Downlink: |w_k|. Nothing of a client survives a round.

Adam and AdamW: their steps are no weighted sums of gradients. As every step has about the same
length, a_k = S_k is used, and a warning says so when a run starts. Weight decay is taken as part of
the gradient. The paper's server momentum is not part of this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strategies.base.client import ClientContext
from strategies.base.messages import ClientUpdate
from strategies.base.method import Training, register
from strategies.base.payload import PayloadError, array
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext
from strategies.common.layerwise import (
    LayerwiseClient,
    LayerwiseConfig,
    WeightsClientState,
    WeightsPayload,
    WeightsServerState,
)
from strategies.common.layerwise_server import LayerwiseServer, optimizer_of
from strategies.common.losses import task_loss
from strategies.common.robust import mean_over_clients
from strategies.common.training import train_epochs
from strategies.common.weights import RunningMean


@dataclasses.dataclass(frozen=True)
class Config(LayerwiseConfig):
    """Options of FedNova: those of the family, see `LayerwiseConfig`; `mean` decides p_k."""


@dataclasses.dataclass
class Uplink(WeightsPayload):
    """The weights w_k, buffers, and `effort`, a_k, of shape (1,)."""

    effort: NDArray[Any] = array(1, minimum=1, degree=0)


Downlink = WeightsPayload
"""Weights and buffers of the client's architecture."""
ClientState = WeightsClientState
ServerState = WeightsServerState


def effort_of(steps: int, momentum: float) -> float:
    """Return a_k: the sum over S_k local gradients of the weight each has in w - w_k.

    Added up step by step, which is the closed form of the module's text and holds for rho = 1.
    """
    velocity = total = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        total += velocity
    return total


def refuses(run: RunConfig) -> str | None:
    """Refuse momentum of earlier rounds: a_k counts the gradients of one round."""
    training = run.training
    if not run.keep_optimizer or training.optimizer != "sgd" or not training.momentum:
        return None
    return (
        f"keep-optimizer = True: expected false with fednova and momentum = {training.momentum:g}, "
        "because its normalisation a_k counts on a momentum that starts at 0 in every round"
    )


class Client(LayerwiseClient[ClientState, Downlink, Uplink]):
    """Client half: cross entropy from the received weights, counting steps."""

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        model, steps = state.model, 0

        def count() -> dict[str, Tensor]:
            nonlocal steps
            steps += 1
            return {}

        metrics = train_epochs(
            context, [model], task_loss(context.data.task, model), gradient_hook=count
        )
        settings = context.run.training
        effort = effort_of(steps, settings.momentum if settings.optimizer == "sgd" else 0.0)
        fields = self.outgoing(context, state)
        return Uplink(**fields, effort=np.array([effort], np.float32)), metrics


class Server(LayerwiseServer[ServerState]):
    """Server half: the mean of normalised updates of every layer."""

    def check_run(self, run: RunConfig) -> tuple[str, ...]:
        """Warn where the optimiser is one that the method is not defined for."""
        name, _ = optimizer_of(run)
        if name == "sgd":
            return ()
        return (
            f"fednova is defined for SGD; with optimizer = {name!r} updates are divided by the "
            "number of local steps",
        )

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        """Refuse an a_k that the client's examples do not allow: it scales everyone's update."""
        examples = context.clients[update.client_id].train_examples
        run = context.run
        steps = run.local_epochs * ceil(examples / run.batch_size)
        effort, most = float(update.uplink.effort[0]), effort_of(steps, optimizer_of(run)[1])
        if effort > most * (1 + 1e-6):  # it travels as float32
            raise PayloadError(
                f"effort: {effort:g} is above {most:g}, that of the {steps} local steps which "
                f"{examples} examples give"
            )

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Move every entry by the normalised mean update; streaming.

        With q_k = p_k / a_k and m = sum_k q_k w_k / sum_k q_k, the formula is
        w + f (m - w), f = (sum_k p_k a_k) (sum_k q_k): one weighted mean is all there is to keep.
        """
        if context.run.robust_mean != "off":
            return self._aggregate_robustly(context, state, updates)
        trained, efforts, buffers = RunningMean(), RunningMean(), RunningMean()
        for update in updates:
            share = update.num_examples if self.weighted(context, state) else 1
            effort = float(update.uplink.effort[0])
            entries = self.keyed(context, state, update.client_id, update.uplink.weights)
            trained.add(entries, share / effort)
            efforts.add(dict.fromkeys(entries, np.array(effort)), share)
            statistics = self.keyed(context, state, update.client_id, update.uplink.buffers)
            buffers.add(statistics, share)
        weights, mean_efforts = state.weights, efforts.means()
        inverse, shares = trained.weights, efforts.weights
        for key, mean in trained.means().items():
            factor = float(mean_efforts[key]) * inverse[key] / shares[key]
            weights[key] = torch.lerp(weights[key], mean, factor)
        weights |= buffers.means()
        return {}

    def _aggregate_robustly(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Move every entry by the robust mean of (w_k - w) / a_k, times that of a_k."""
        run, weights = context.run, state.weights
        moves, efforts = mean_over_clients(run), mean_over_clients(run)
        buffers = mean_over_clients(run, weights)
        for update in updates:
            share = update.num_examples if self.weighted(context, state) else 1
            client, sent = update.client_id, update.uplink
            entries = self.keyed(context, state, client, sent.weights)
            moves.add(
                {k: (item - weights[k].numpy()) / sent.effort[0] for k, item in entries.items()},
                share,
            )
            efforts.add(dict.fromkeys(entries, np.array(sent.effort[0])), share)
            buffers.add(self.keyed(context, state, client, sent.buffers), share)
        mean_efforts = efforts.means()
        for key, move in moves.means().items():
            weights[key] = weights[key] + mean_efforts[key] * move
        weights |= buffers.means()
        return {}


METHOD = register(
    __name__,
    summary="weights are averaged after dividing each client's update by its local steps",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    evaluated_model="global",
    shares_reader=True,
    refuses=refuses,
    averages=True,
    regression=True,
)
