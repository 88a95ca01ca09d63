"""FedProx: FedAvg whose local training is held near the received weights.

Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020, arXiv 1812.06127), Eq. 2;
by layer over unlike depths as in the comparison of FedIN (arXiv 2304.00759).

    minimise F_k(w) + (mu / 2) ||w - w_ref||^2       w_ref: the weights received this round

It is the squared norm, over all parameters; buffers are not part of it. Its gradient
mu (w - w_ref) is added to that of the cross entropy before every step of the optimiser, so that no
graph is built over all weights. Everything else is FedAvg's; with mu = 0 so is every number.

Scalars: |w_k| up and down. A second copy of the model, w_ref, is in memory while a client trains.
`loss_prox` is the mean over steps of (mu / 2) ||w - w_ref||^2; "loss" is cross entropy alone, so
that it can be compared with FedAvg's.

Departures: all clients make `local-epochs`; the paper lets slow ones stop early. The weights of the
server's mean are FedAvg's (the paper draws clients by n_k and averages uniformly).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from strategies.base.client import ClientContext
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.common.layerwise import (
    LayerwiseClient,
    LayerwiseConfig,
    WeightsClientState,
    WeightsPayload,
    WeightsServerState,
)
from strategies.common.layerwise_server import LayerwiseServer
from strategies.common.losses import task_loss
from strategies.common.training import GradientHook, train_epochs


@dataclasses.dataclass(frozen=True)
class Config(LayerwiseConfig):
    """Options of FedProx, beside those of the family (`LayerwiseConfig`).

    Attributes
    ----------
    mu : float
        Weight of the proximal term, of which half multiplies the squared norm; 0.1 is FedIN's
        study (mu / 2 = 0.05). The paper tries 0.001, 0.01, 0.1 and 1; 0 is FedAvg.
    """

    mu: float = option(0.1, minimum=0)


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ClientState = WeightsClientState
ServerState = WeightsServerState


def proximal_hook(model: nn.Module, mu: float) -> GradientHook:
    """Return what adds mu (w - w_ref) to the gradients; w_ref are the model's weights now.

    The hook returns `loss_prox`, (mu / 2) ||w - w_ref||^2 before the step. A parameter without a
    gradient does not move, so there its term is 0.
    """
    reference = [(p, p.detach().clone()) for p in model.parameters()]

    @torch.no_grad()
    def hook() -> dict[str, Tensor]:
        moving = [(p, old, p.grad) for p, old in reference if p.grad is not None]
        distances = torch._foreach_sub([p for p, _, _ in moving], [old for _, old, _ in moving])
        torch._foreach_add_([grad for _, _, grad in moving], distances, alpha=mu)
        norms = torch.stack(list(torch._foreach_norm(distances)))
        return {"loss_prox": mu / 2 * norms.square().sum()}

    return hook


class Client(LayerwiseClient[ClientState, Downlink, Uplink]):
    """Client half: cross entropy and the proximal term, from the received weights."""

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        metrics = train_epochs(
            context,
            [state.model],
            task_loss(context.data.task, state.model),
            gradient_hook=proximal_hook(state.model, context.config.mu),
        )
        return Uplink(**self.outgoing(context, state)), metrics


class Server(LayerwiseServer[ServerState]):
    """Server half: the mean of every layer."""


METHOD = register(
    __name__,
    summary="FedAvg whose local training is held near the received weights",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    evaluated_model="global",
    shares_reader=True,
    averages=True,
    regression=True,
)
