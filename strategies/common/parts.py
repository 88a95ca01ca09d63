"""Clients that train parts of one wide network: which part is whose, payload, client half.

For the methods in which the server holds one network and every client trains as much of it as it
can: HeteroFL, FedRolex, ScaleFL. `models.channels` says where a part lies in the network. A payload
holds the part alone, never the whole network with zeros in it. The server half is in
`parts_server`.

How much a client trains is its rate: what its device's node-config says, else what the run assigns.
Both sides come to the same part from (seed, client id, round) alone, so no message carries it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from models import InputShape, SplitModel, build_model
from models.build import proven
from models.channels import Part, Spans, channel_spans, narrow
from models.skeleton import skeleton
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.options import option
from strategies.base.payload import Template
from strategies.base.run_config import RunConfig
from strategies.base.state import Transient
from strategies.common.layerwise import (
    Layout,
    WeightsPayload,
    fill_model,
    layout_of,
    split_state,
)
from strategies.common.weights import state_views


@dataclasses.dataclass(frozen=True)
class PartConfig:
    """Options that all methods of the family have.

    Attributes
    ----------
    mean : str
        Weights of the clients that hold a value in its mean: equal ("uniform") or n_k ("weighted").
    """

    mean: str = option("uniform", "weighted")

    @property
    def mapping(self) -> str:
        """What brings raw features to the head's width: a part's head reads as many as it has."""
        return "none"

    @property
    def buffers(self) -> str:
        """Whether BatchNorm's statistics travel ("average") or stay on the client ("local")."""
        return "average"


@dataclasses.dataclass(frozen=True)
class Parts:
    """How a method cuts its network; one object for both halves."""

    def build(self, name: str, shape: InputShape) -> SplitModel:
        """Build the whole network."""
        return build_model(name, shape, mapping="none")

    def spans(self, model: SplitModel) -> dict[str, Spans]:
        """Return the spans of every entry; raises `ModelError` for a network it cannot cut."""
        return channel_spans(model)

    def cut(self, model: SplitModel, part: Part) -> None:
        """Leave of the whole network, on the meta device, the shapes of a part, in place."""
        narrow(model, self.spans(model), part.rate)

    def rates(self, run: RunConfig) -> Sequence[float]:
        """Return the rates that a client can have, as the run assigns them."""
        raise NotImplementedError(f"{type(self).__name__} must define rates(run)")

    def part(self, run: RunConfig, client_id: int, server_round: int, own: float) -> Part:
        """Return a client's part in a round; `own` is its device's rate, 0 without one."""
        raise NotImplementedError(f"{type(self).__name__} must define part(...)")


def bare_part(parts: Parts, name: str, shape: InputShape, part: Part) -> SplitModel:
    """Return a part of a network without weights, on the meta device."""
    with skeleton(), proven():
        model = parts.build(name, shape)
    parts.cut(model, part)
    return model


@lru_cache(maxsize=256)  # asked for with every message and every reply
def part_layout(parts: Parts, name: str, shape: InputShape, part: Part, buffers: str) -> Layout:
    """Return what travels of a part."""
    return layout_of(bare_part(parts, name, shape, part), buffers)


@lru_cache(maxsize=16)
def spans_of(parts: Parts, name: str, shape: InputShape) -> Mapping[str, Spans]:
    """Return the spans of a network's entries."""
    with skeleton(), proven():
        return parts.spans(parts.build(name, shape))


def image_shape(context: ClientContext) -> InputShape:
    """Return what the images ask of the network; the family's methods read nothing else."""
    data = context.data
    return InputShape(data.channels, data.image_size, data.num_classes)


@dataclasses.dataclass
class PartClientState:
    """The client's part, which every downlink brings; nothing survives a round."""

    model: Transient[SplitModel]


class PartClient(ClientHalf[PartClientState, WeightsPayload, WeightsPayload]):
    """A client half whose part arrives with every downlink; a subclass gives parts and train."""

    parts: Parts

    def part(self, context: ClientContext) -> Part:
        """Return the client's part in this round."""
        number = context.server_round
        return self.parts.part(context.run, context.client_id, number, context.rate or 0.0)

    def build(self, context: ClientContext) -> PartClientState:
        """Return a state around a part without weights."""
        name, shape, part = context.model_name, image_shape(context), self.part(context)
        return PartClientState(bare_part(self.parts, name, shape, part))

    def templates(self, context: ClientContext) -> Mapping[str, Template]:
        """Return what a downlink must hold: the client's own part."""
        name, shape, part = context.model_name, image_shape(context), self.part(context)
        layout = part_layout(self.parts, name, shape, part.at_start, context.config.buffers)
        return {"weights": layout.weights, "buffers": layout.buffers}

    def receive(
        self, context: ClientContext, state: PartClientState, downlink: WeightsPayload
    ) -> None:
        """Make the model of what arrived."""
        received = {**downlink.weights, **downlink.buffers}
        fill_model(context, state.model, received, self.fresh_buffers(context, state.model))

    def fresh_buffers(self, context: ClientContext, model: SplitModel) -> dict[str, Tensor]:
        """Return BatchNorm's statistics before any example, where none arrive."""
        if context.config.buffers == "average":
            return {}
        buffers = split_state(model)[1]
        return {
            name: torch.full(item.shape, float(name.endswith("running_var"))).to(item.dtype)
            for name, item in buffers.items()
        }

    def predict(
        self, state: PartClientState, downlink: WeightsPayload, images: Tensor
    ) -> dict[str, Tensor]:
        """Score with the part as it is: the received one, after training the client's own."""
        return {"accuracy": state.model(images)}

    def outgoing(self, context: ClientContext, state: PartClientState) -> WeightsPayload:
        """Return the uplink, to be packed at once."""
        parameters, buffers = split_state(state.model)
        sent: Any = buffers if context.config.buffers == "average" else {}
        return WeightsPayload(state_views(parameters), state_views(sent))
