"""SCAFFOLD: control variates on clients and server correct the drift of local steps.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (ICML 2020,
arXiv 1910.06378), Algorithm 1 with option II; by layer over unlike depths as in the comparison of
FedIN (arXiv 2304.00759), everything below then holds for every entry of the state by itself.

    client k, S_k local steps from w = w_ref:   w <- w - eta (grad - c_k + c)
                                                c_k^+ = c_k - c + (w_ref - w) / (S_k eta)
    server:   w <- w + eta_g mean_k(w_k - w_ref)       c <- c + (1 / K) sum_k (c_k^+ - c_k)

The sums run over the round's clients P_t that own the entry; K is how many known clients with
training examples own it, so that c = mean of all c_k, those never seen counting as 0. The server
keeps sum_k c_k and divides when it sends: that stays exact when a client joins late and K grows.

Uplink: w_k - w_ref and c_k^+ - c_k, 2 |w_k| scalars. Downlink: w and c, 2 |w_k|. Private: c_k,
kept from one participation to the next, 0 before the first. Controls exist for parameters only;
buffers travel as they are and are averaged.

eta is the run's `lr`. The method is defined for plain SGD. With momentum or Adam, the optimiser's
step divided by lr takes the place of the gradient in both formulas (so does Li et al.'s study,
arXiv 2102.02079): c_k is then the mean of such steps. A warning says so when a run starts.

Departures: the correction moves the weights before the optimiser's step instead of entering the
gradient, which is the same for plain SGD, but for rounding and, with weight decay lambda, a term
eta^2 lambda (c - c_k). An uplink that is lost on its way leaves c_k changed and c as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models import SplitModel
from strategies.base.client import ClientContext
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.payload import Template, arrays
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext
from strategies.base.treatments import VALUE
from strategies.common.layerwise import (
    LayerwiseClient,
    LayerwiseConfig,
    WeightsClientState,
    WeightsPayload,
    WeightsServerState,
)
from strategies.common.layerwise_server import LayerwiseServer, layout_for, optimizer_of
from strategies.common.losses import task_loss
from strategies.common.optimizers import learning_rate
from strategies.common.robust import mean_over_clients
from strategies.common.training import train_epochs
from strategies.common.weights import state_views


@dataclasses.dataclass(frozen=True)
class Config(LayerwiseConfig):
    """Options of SCAFFOLD, beside those of the family (`LayerwiseConfig`).

    Attributes
    ----------
    mean : str
        Weights of clients in the means of w and of buffers; the paper's are equal. Means of
        controls never weight.
    server_lr : float
        eta_g.
    """

    mean: str = option("uniform", "weighted")
    server_lr: float = option(1.0, above=0)


@dataclasses.dataclass
class Downlink(WeightsPayload):
    """The weights w, buffers, and the controls c of every parameter."""

    controls: Mapping[str, NDArray[Any]] = arrays()


@dataclasses.dataclass
class Uplink(WeightsPayload):
    """Changes: in `weights` w_k - w_ref, in `controls` c_k^+ - c_k; buffers as they are."""

    weights: Mapping[str, NDArray[Any]] = arrays(protect=VALUE)
    controls: Mapping[str, NDArray[Any]] = arrays(protect=VALUE)


@dataclasses.dataclass
class ClientState(WeightsClientState):
    """The model, local buffers if any, and c_k by parameter: empty before the first training."""

    controls: dict[str, Tensor]


@dataclasses.dataclass
class ServerState(WeightsServerState):
    """The means, and sum_k c_k by the server's keys; a key that nobody sent yet is missing."""

    control_sums: dict[str, Tensor]


class Correction:
    """The gradient hook: moves the weights by -eta (c - c_k) in every step, and counts steps.

    Parameters
    ----------
    model : nn.Module
        What is trained.
    common, own : mapping of str to array or Tensor
        c and c_k by parameter; those missing in `own` are 0.
    lr : float
        eta.
    """

    def __init__(
        self,
        model: nn.Module,
        common: Mapping[str, NDArray[Any]],
        own: Mapping[str, Tensor],
        lr: float,
    ) -> None:
        self.steps = 0
        self._lr = lr
        self._parameters: list[Tensor] = []
        self._offsets: list[Tensor] = []
        for name, parameter in model.named_parameters():
            # In the parameter's own memory layout, without which a step is slower.
            offset = torch.empty_like(parameter, requires_grad=False)
            offset.copy_(torch.tensor(common[name]))
            if name in own:
                offset -= own[name].to(offset.device)
            self._parameters.append(parameter)
            self._offsets.append(offset)

    @torch.no_grad()
    def __call__(self) -> dict[str, Tensor]:
        """Apply the correction of one step."""
        torch._foreach_add_(self._parameters, self._offsets, alpha=-self._lr)
        self.steps += 1
        return {}


class Client(LayerwiseClient[ClientState, Downlink, Uplink]):
    """Client half: corrected steps from the received weights, and the client's own control."""

    def new_state(self, model: SplitModel, buffers: dict[str, Tensor]) -> ClientState:
        return ClientState(model, buffers, {})

    def templates(self, context: ClientContext) -> Mapping[str, Template]:
        templates = super().templates(context)
        return {**templates, "controls": templates["weights"]}

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        model = state.model
        lr = learning_rate(context)
        hook = Correction(model, downlink.controls, state.controls, lr)
        metrics = train_epochs(
            context, [model], task_loss(context.data.task, model), gradient_hook=hook
        )
        fields = self.outgoing(context, state)
        moved = {name: item - downlink.weights[name] for name, item in fields["weights"].items()}
        # c_k^+ - c_k does not depend on c_k.
        steps = hook.steps * lr
        drift = {name: -downlink.controls[name] - item / steps for name, item in moved.items()}
        zero = torch.zeros(())
        state.controls = {
            name: state.controls.get(name, zero).cpu() + torch.tensor(item)
            for name, item in drift.items()
        }
        return Uplink(moved, fields["buffers"], drift), metrics


class Server(LayerwiseServer[ServerState]):
    """Server half: adds the mean change to every layer, and keeps the sum of all controls."""

    def new_state(
        self, context: ServerContext, layerwise: bool, weights: dict[str, Tensor]
    ) -> ServerState:
        return ServerState(layerwise, weights, {})

    def check_run(self, run: RunConfig) -> tuple[str, ...]:
        """Warn where the optimiser is one that the method is not defined for."""
        name, momentum = optimizer_of(run)
        if name == "sgd" and not momentum:
            return ()
        used = f"optimizer = {name!r}" if name != "sgd" else f"momentum = {momentum:g}"
        return (
            f"scaffold is defined for plain SGD; with {used} its controls are means of the "
            "optimiser's steps divided by lr, not of gradients",
        )

    def templates(
        self, context: ServerContext, state: ServerState, client: ClientInfo
    ) -> Mapping[str, Template]:
        templates = super().templates(context, state, client)
        return {**templates, "controls": templates["weights"]}

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink | None:
        if client is None:
            return None
        controls = state_views(self.controls_for(context, state, client))
        return Downlink(**self.weights_for(context, state, client), controls=controls)

    def controls_for(
        self, context: ServerContext, state: ServerState, client: ClientInfo
    ) -> dict[str, Tensor]:
        """Return c by the names of a client's architecture: sum_k c_k / K, 0 where none is."""
        owners, keys = self.owners(context, state), self.keys(context, state, client.model)
        controls = {}
        for name, (shape, _) in layout_for(context, client.model).weights.items():
            known = state.control_sums.get(keys[name])
            # A resumed run may know a key's owners again only after they have answered.
            holders = max(1, owners[keys[name]])
            controls[name] = torch.zeros(shape) if known is None else known / holders
        return controls

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Add mean changes to weights, and summed ones to controls; replace buffers; streaming."""
        run = context.run
        changes, drifts = mean_over_clients(run), mean_over_clients(run)
        buffers = mean_over_clients(run, state.weights)
        weighted, server_lr = self.weighted(context, state), context.config.server_lr
        for update in updates:
            share = update.num_examples if weighted else 1
            client, sent = update.client_id, update.uplink
            changes.add(self.keyed(context, state, client, sent.weights), share)
            buffers.add(self.keyed(context, state, client, sent.buffers), share)
            drifts.add(self.keyed(context, state, client, sent.controls), 1)
        count, weights, sums = drifts.weights, state.weights, state.control_sums
        weights |= buffers.means()
        for key, item in changes.means().items():
            weights[key] = weights[key] + server_lr * item
        for key, item in drifts.means().items():
            total = item * count[key]
            sums[key] = sums[key] + total if key in sums else total
        return {}


METHOD = register(
    __name__,
    summary="control variates on clients and server correct the drift of local steps",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    evaluated_model="global",
    shares_reader=True,
    averages=True,
    regression=True,
)
