"""Clients that train parts of one wide network: the server half; see `parts`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import InputShape, ModelError, model_info, resolve_models
from models.channels import Indices, Part, indices_of, taken
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.payload import Template
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.run_config import RunConfig
from strategies.base.server import RegistrationError, ServerContext, ServerHalf
from strategies.common.groups import first_of_each
from strategies.common.layerwise import Layout, WeightsPayload
from strategies.common.parts import Parts, part_layout, spans_of

_ANY_SHAPE = InputShape(3, 32, 10)
"""Before clients are known; whether a network can be cut does not depend on it."""


@dataclasses.dataclass
class PartServerState:
    """The whole network's parameters and, where they are averaged, its statistics, by name."""

    weights: dict[str, Tensor]


class PartMean:
    """Mean of every value over the parts that hold it; what none holds stays as it was.

    Sums are in float64 and in the order of `add`. Integers are counters, such as BatchNorm's
    `num_batches_tracked`, of which the maximum is kept. Memory is that of the network, however many
    parts there are.

    Parameters
    ----------
    whole : Mapping of str to Tensor
        The network before.
    """

    def __init__(self, whole: Mapping[str, Tensor]) -> None:
        self._whole = whole
        self._totals: dict[str, NDArray[Any]] = {}
        self._weights: dict[str, NDArray[np.float64]] = {}

    def add(
        self, part: Mapping[str, NDArray[Any]], indices: Mapping[str, Indices], weight: float
    ) -> None:
        """Add a part that lies at these indices of the network, with weight > 0."""
        for name, item in part.items():
            if item.dtype.kind != "f":
                self._totals[name] = np.maximum(self._totals.get(name, item), item)
                continue
            shape, leading = tuple(self._whole[name].shape), len(indices[name])
            if name not in self._totals:
                self._totals[name] = np.zeros(shape)
                self._weights[name] = np.zeros(shape[:leading])
            place = np.ix_(*indices[name])
            self._totals[name][place] += np.multiply(item, weight, dtype=np.float64)
            self._weights[name][place] += weight

    def means(self) -> dict[str, Tensor]:
        """Return every entry of which a part was added, in the network's dtype."""
        return {name: self._mean(name) for name in self._totals}

    def _mean(self, name: str) -> Tensor:
        total, old = self._totals[name], self._whole[name]
        if name in self._weights:
            weights = self._weights[name]
            weights = weights.reshape(weights.shape + (1,) * (total.ndim - weights.ndim))
            total = np.where(weights > 0, total / np.where(weights > 0, weights, 1), old.numpy())
        return torch.tensor(total).to(old.dtype)


class PartServer(ServerHalf[PartServerState, WeightsPayload]):
    """A server half that holds the whole network; a subclass gives `parts`."""

    parts: Parts

    def check_run(self, run: RunConfig) -> Sequence[str]:
        """Refuse `models` that are not one network of which parts can be cut."""
        # What a user's own `module:factory` makes is known only where clients run.
        own = ":" in run.models
        names = [] if own else list(dict.fromkeys(resolve_models(run.models)))
        if len(names) > 1:
            raise ConfigError(
                f"models = {run.models!r}: with method {run.method!r} clients train parts of one "
                f"network, and {', '.join(names[:3])} are no parts of each other; expected one "
                "name for all, the widest, such as '*=resnet18'"
            )
        if own or not model_info(names[0]).comes_with_wildflower:
            raise ConfigError(
                f"models = {run.models!r}: method {run.method!r} cuts ResNets and CNNs of "
                "Wildflower alone; `python -m models` lists them"
            )
        try:
            spans_of(self.parts, names[0], _ANY_SHAPE)
        except ModelError as error:
            raise ConfigError(f"models = {run.models!r}: {error}") from error
        return ()

    def check(
        self, context: ServerContext, state: PartServerState | None, client: ClientInfo
    ) -> str | None:
        """Return why a client's model is no part of the network, or None."""
        who, network = f"client {client.client_id}", self._network(context)
        if client.model != network:
            return (
                f"{who}: model {client.model} is not {network}, of which all clients of "
                f"{context.method.name} train a part; leave model out of its node-config, and say "
                "how much it trains with rate"
            )
        known = sorted(set(self.parts.rates(context.run)), reverse=True)
        if client.rate and client.rate not in known:
            return (
                f"{who}: rate {client.rate:g} in its node-config is not one of "
                f"{', '.join(f'{rate:g}' for rate in known)}, the rates of {context.method.name}"
            )
        part = self.parts.part(context.run, client.client_id, 0, client.rate)
        expected = sum(
            int(np.prod(shape, dtype=np.int64))
            for shape, _ in self._layout(context, part).weights.values()
        )
        if client.parameters != expected:
            return (
                f"{who}: its part of {network} has {client.parameters:,} parameters, that of rate "
                f"{client.rate or part.rate:g} has {expected:,}; install the server's version there"
            )
        return None

    def initial_state(self, context: ServerContext) -> PartServerState:
        """Draw the whole network's first weights from the run's seed."""
        name, shape = self._network(context), _shape(context)
        with isolated_torch_rng(derive_seed(context.run.seed, SERVER, 0, f"weights-{name}")):
            fresh = self.parts.build(name, shape).state_dict()
        whole = Part(1.0)
        entries = self._layout(context, whole).all
        return PartServerState({name: fresh[name].detach().clone() for name in entries})

    def templates(
        self, context: ServerContext, state: PartServerState, client: ClientInfo
    ) -> Mapping[str, Template]:
        """Return what an uplink must hold: the client's part in this round."""
        layout = self._layout(context, self.part(context, client.client_id))
        return {"weights": layout.weights, "buffers": layout.buffers}

    def downlink(
        self, context: ServerContext, state: PartServerState, client: ClientInfo | None
    ) -> WeightsPayload | None:
        """Return the client's part as it is now."""
        if client is None:
            return None
        part = self.part(context, client.client_id)
        layout, indices = self._layout(context, part), self._indices(context, state, part)
        fields = [
            {name: taken(state.weights[name].numpy(), indices[name]) for name in template}
            for template in (layout.weights, layout.buffers)
        ]
        return WeightsPayload(*fields)

    def aggregate(
        self, context: ServerContext, state: PartServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Replace every value by its mean over the round's clients that hold it, streaming."""
        mean = PartMean(state.weights)
        for update in updates:
            indices = self._indices(context, state, self.part(context, update.client_id))
            entries = {**update.uplink.weights, **update.uplink.buffers}
            weight = update.num_examples if context.config.mean == "weighted" else 1
            if (rows := self.head_rows(context, update.client_id)) is not None:
                for name in ("head.weight", "head.bias"):
                    entries[name] = entries[name][rows]
                    indices[name] = (rows, *indices[name][1:])
            mean.add(entries, indices, weight)
        state.weights |= mean.means()
        return {}

    def head_rows(self, context: ServerContext, client_id: int) -> NDArray[np.int64] | None:
        """Return of which classes a client's rows of the head count in the means; None: all."""
        return None

    def evaluates_test(self, context: ServerContext, clients: Sequence[int]) -> set[int]:
        """Return who measures a test set that all share: one client of every part."""
        if context.run.test_split != "global" or context.config.buffers == "local":
            return set(clients)
        return first_of_each({client: self.part(context, client) for client in clients})

    def part(self, context: ServerContext, client_id: int) -> Part:
        """Return a client's part in this round."""
        own = context.clients[client_id].rate
        return self.parts.part(context.run, client_id, context.server_round, own)

    def _network(self, context: ServerContext) -> str:
        return resolve_models(context.run.models)[0]

    def _layout(self, context: ServerContext, part: Part) -> Layout:
        network, buffers = self._network(context), context.config.buffers
        return part_layout(self.parts, network, _shape(context), part.at_start, buffers)

    def _indices(
        self, context: ServerContext, state: PartServerState, part: Part
    ) -> dict[str, Indices]:
        spans = spans_of(self.parts, self._network(context), _shape(context))
        names = self._layout(context, part).all
        return {
            name: indices_of(tuple(state.weights[name].shape), spans[name], part) for name in names
        }


def _shape(context: ServerContext) -> InputShape:
    info = context.any_client
    if info.vocabulary:
        raise RegistrationError(
            f"client {info.client_id}: method {context.method.name} works on images, and its data "
            "are sentences"
        )
    return InputShape(info.channels, info.image_size, info.num_classes)
