"""Weights shared by layer inside a family of architectures: options, payload, states, client half.

The base of the methods that exchange the client's whole model: every client sends the weights of
its own architecture, and the server keeps one tensor of every name, so that a shallow network's
layers are averaged with the same layers of deeper ones (FedIN, arXiv 2304.00759, Eq. 19). Where
architectures do not nest, means are taken within each architecture (Eq. 20, 21). The server half is
in `layerwise_server`.

BatchNorm's running statistics are averaged like weights and its batch counter keeps its maximum,
unless they stay on the client (`buffers = "local"`). They count on the wire, not in the paper's
number of scalars.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models import SplitModel
from models.memory_format import to_channels_last
from models.skeleton import skeleton
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.options import option
from strategies.base.payload import Template, arrays
from strategies.base.state import Transient, fill_module
from strategies.base.treatments import REFUSED, UPDATE
from strategies.common.losses import task_loss
from strategies.common.training import train_epochs
from strategies.common.weights import state_template, state_views


@dataclasses.dataclass(frozen=True)
class LayerwiseConfig:
    """Options that all methods of the family have.

    Attributes
    ----------
    aggregation : str
        "layerwise": every entry is averaged over the clients whose architecture has it;
        "architecture": only over clients of the same architecture; "auto": by layer where
        entries of one name have one shape in all the clients' architectures, else the other.
    mean : str
        Weights of clients in the mean: n_k ("weighted") or equal ("uniform").
    buffers : str
        "average": BatchNorm statistics travel and are averaged; "local": each client keeps its
        own, and its model is a personal one (FedBN).
    """

    aggregation: str = option("auto", "layerwise", "architecture")
    mean: str = option("weighted", "uniform")
    buffers: str = option("average", "local")

    @property
    def mapping(self) -> str:
        """What brings raw features to the head's width, as `build_model` takes it."""
        return "AP"


@dataclasses.dataclass
class WeightsPayload:
    """A model on the wire: parameters, and buffers apart, which papers do not count."""

    weights: Mapping[str, NDArray[Any]] = arrays(protect=UPDATE)
    buffers: Mapping[str, NDArray[Any]] = arrays(
        counted=False, protect=REFUSED, absent_with=("buffers", "local")
    )


@dataclasses.dataclass
class WeightsClientState:
    """The model, which every downlink brings, and the buffers that stay here, if any do."""

    model: Transient[SplitModel]
    buffers: dict[str, Tensor]


@dataclasses.dataclass
class WeightsServerState:
    """Every entry's mean: by name, or by "architecture/name" where architectures do not nest."""

    layerwise: bool
    weights: dict[str, Tensor]


S = TypeVar("S", bound=WeightsClientState)
D = TypeVar("D", bound=WeightsPayload)
U = TypeVar("U", bound=WeightsPayload)


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """What travels of one architecture: shape and dtype of its parameters and of its buffers."""

    weights: Template
    buffers: Template

    @property
    def all(self) -> dict[str, Any]:
        """Both, by entry."""
        return {**self.weights, **self.buffers}


def layout_of(model: nn.Module, buffers: str) -> Layout:
    """Return what travels of a model, which may live on the meta device."""
    parameters, statistics = split_state(model)
    kept = {} if buffers == "local" else statistics
    return Layout(state_template(parameters), state_template(kept))


def split_state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a module's state in two: its parameters, and its buffers; uncopied."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict()
    return (
        {name: item for name, item in state.items() if name in names},
        {name: item for name, item in state.items() if name not in names},
    )


class LayerwiseClient(ClientHalf[S, D, U], Generic[S, D, U]):
    """A client half whose model arrives with every downlink; a subclass gives `train`.

    A subclass with a state of its own overrides `new_state`.
    """

    def new_state(self, model: SplitModel, buffers: dict[str, Tensor]) -> S:
        """Return the state of a client that has not trained yet."""
        return WeightsClientState(model, buffers)  # type: ignore[return-value]

    def build(self, context: ClientContext) -> S:
        """Return a state around a model without weights."""
        buffers: dict[str, Tensor] = {}
        if context.config.buffers == "local":
            buffers = split_state(context.build_model(context.config.mapping))[1]
        return self.new_state(bare_model(context), buffers)

    def templates(self, context: ClientContext) -> Mapping[str, Template]:
        """Return what a downlink must hold: the client's own architecture."""
        layout = layout_of(bare_model(context), context.config.buffers)
        return {"weights": layout.weights, "buffers": layout.buffers}

    def receive(self, context: ClientContext, state: S, downlink: D) -> None:
        """Make the model of what arrived, and of the buffers that never left."""
        fill_model(context, state.model, {**downlink.weights, **downlink.buffers}, state.buffers)

    def predict(self, state: S, downlink: D, images: Tensor) -> dict[str, Tensor]:
        """Score with the model: the received one, after training the client's own."""
        return {"accuracy": state.model(images)}

    def outgoing(self, context: ClientContext, state: S) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the uplink's fields `weights` and `buffers`, to be packed at once.

        Buffers that stay on the client go into its state instead.
        """
        parameters, buffers = split_state(state.model)
        if context.config.buffers == "local":
            state.buffers = {name: item.clone() for name, item in buffers.items()}
            buffers = {}
        return {"weights": state_views(parameters), "buffers": state_views(buffers)}


class CrossEntropyClient(LayerwiseClient[S, D, U], Generic[S, D, U]):
    """A client half that trains the received model by its task's loss and sends its weights."""

    def train(self, context: ClientContext, state: S, downlink: D) -> tuple[U, dict[str, float]]:
        """Train on the local data; the uplink is the method's, of weights and buffers alone."""
        metrics = train_epochs(context, [state.model], task_loss(context.data.task, state.model))
        sent: U = context.run.chosen_method.uplink(**self.outgoing(context, state))
        return sent, metrics


def bare_model(context: ClientContext) -> SplitModel:
    """Return the client's architecture without weights, on the meta device."""
    with skeleton():
        return context.build_model(context.config.mapping)


def fill_model(
    context: ClientContext,
    model: nn.Module,
    received: Mapping[str, NDArray[Any]],
    own: Mapping[str, Tensor],
) -> None:
    """Give a bare model copies of these entries, on the client's device, in evaluation mode."""
    entries = {name: torch.tensor(item, device=context.device) for name, item in received.items()}
    entries |= {name: item.to(context.device, copy=True) for name, item in own.items()}
    fill_module(model, entries)
    to_channels_last(model)
    model.eval()
