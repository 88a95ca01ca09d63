"""The server half of FedIN: means of weights, and a pool of the clients' feature pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from models import InputShape, ModelError, build_model
from models.skeleton import skeleton
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.options import AUTO
from strategies.base.payload import PayloadError
from strategies.base.server import ServerContext
from strategies.common.layerwise import WeightsServerState
from strategies.common.layerwise_server import LayerwiseServer
from strategies.common.shapes import shape_of
from strategies.fedin.features import FeatureShape, feature_shape


@dataclasses.dataclass
class PoolState(WeightsServerState):
    """The means, and P pairs: s_in (P, c, s, s), s_out (P, d) and who sent each, ascending."""

    s_in: Tensor
    s_out: Tensor
    sender: Tensor


T = TypeVar("T", bound=PoolState)


class FeaturePoolServer(LayerwiseServer[T], Generic[T]):
    """Pools the pairs of a round, or the latest of every client, and deals them out.

    Reads FedIN's options. The shape of a pair is fixed before round 1; the pool, even an empty
    one, has it.
    """

    def new_state(self, context: ServerContext, layerwise: bool, weights: dict[str, Tensor]) -> T:
        s_in, s_out = common_shape(context).no_pairs()
        sender = torch.empty(0, dtype=torch.int64)
        return PoolState(layerwise, weights, s_in, s_out, sender)  # type: ignore[return-value]

    def nests(self, context: ServerContext, models: Sequence[str]) -> bool:
        """By layer only where all clients' features have the exchanged shape by themselves."""
        common = common_shape(context)
        alike = all(shape_for(context, model) == common for model in models)
        return alike and super().nests(context, models)

    def weighted(self, context: ServerContext, state: T) -> bool:
        """As configured; "auto" by n_k within architectures, not by layer (Eq. 19 to 21)."""
        if context.config.mean == AUTO:
            return not state.layerwise
        return super().weighted(context, state)

    def downlink(self, context: ServerContext, state: T, client: ClientInfo | None) -> Any:
        """Return the current means of the client's entries, and pairs of others."""
        if client is None:
            return None
        chosen = self.draw(context, state, client.client_id)
        return context.method.downlink(
            **self.weights_for(context, state, client),
            s_in=state.s_in[chosen].numpy(),
            s_out=state.s_out[chosen].numpy(),
        )

    def draw(self, context: ServerContext, state: T, client_id: int) -> Tensor:
        """Choose pairs for a client: positions in the pool, without replacement."""
        sender = state.sender
        eligible = torch.arange(len(sender))
        if context.config.draw == "shared":
            purpose = "pairs"
        else:
            purpose = f"pairs-{client_id}"
            others = eligible[sender != client_id]
            eligible = others if len(others) else eligible
        order = torch.randperm(len(eligible), generator=context.generator(purpose))
        return eligible[order[: context.config.pairs]]

    def aggregate(
        self, context: ServerContext, state: T, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Average the weights, and take the round's pairs into the pool."""
        fresh: list[tuple[Tensor, Tensor, Tensor]] = []

        def noted() -> Iterator[ClientUpdate]:
            for update in updates:
                s_in, s_out = torch.tensor(update.uplink.s_in), torch.tensor(update.uplink.s_out)
                fresh.append((s_in, s_out, torch.full((len(s_in),), update.client_id)))
                yield update

        self.average(context, state, noted())
        pairs = [torch.cat(parts) for parts in zip(*fresh, strict=True)]
        self._pool(state, pairs, keep_others=context.config.pool == "latest")
        return {"pool_pairs": float(len(state.sender))}

    def _pool(self, state: T, fresh: list[Tensor], *, keep_others: bool) -> None:
        """Replace the pool, or what it holds of the clients that sent something."""
        if keep_others:
            stays = ~torch.isin(state.sender, fresh[2])
            held = [state.s_in[stays], state.s_out[stays], state.sender[stays]]
            fresh = [torch.cat(pair) for pair in zip(held, fresh, strict=True)]
            order = torch.argsort(fresh[2], stable=True)
            fresh = [item[order] for item in fresh]
        state.s_in, state.s_out, state.sender = fresh

    def check_uplink(self, context: ServerContext, state: T, update: ClientUpdate) -> None:
        """Refuse other numbers or shapes of pairs than are asked for, or than examples allow."""
        wanted = min(context.config.pairs, update.num_examples)
        if len(update.uplink.s_in) != wanted:
            raise PayloadError(f"s_in: {len(update.uplink.s_in)} pairs, expected {wanted}")
        for name in ("s_in", "s_out"):
            sent, common = getattr(update.uplink, name).shape, getattr(state, name).shape
            if sent[1:] != common[1:]:
                raise PayloadError(f"{name}: shape {sent}, expected {(wanted, *common[1:])}")

    def check(self, context: ServerContext, state: T | None, client: ClientInfo) -> str | None:
        """Return what is wrong with a model without a cut, or one that is not to be projected."""
        if (problem := super().check(context, state, client)) is not None:
            return problem
        first = context.any_client
        try:
            shape, usual = shape_for(context, client.model), shape_for(context, first.model)
        except ModelError as error:
            return f"client {client.client_id}: {error}"
        if context.config.projection != "none" or shape == usual:
            return None
        return (
            f"client {client.client_id}: model {client.model} gives {shape}, client "
            f"{first.client_id}'s {first.model} {usual}; choose models with equal stems and "
            f"heads, or {context.method.name}.projection = 'fixed'"
        )


def shape_for(context: ServerContext, model: str) -> FeatureShape:
    """Return the shape of an architecture's own pairs; raises `ModelError` if it has none."""
    client = context.any_client
    return _shape(model, shape_of(client), context.run.feature_dim, context.config.mapping)


@lru_cache(maxsize=256)
def _shape(model: str, images: InputShape, width: int, mapping: str) -> FeatureShape:
    with skeleton():
        return feature_shape(build_model(model, images, width, mapping), images)


def common_shape(context: ServerContext) -> FeatureShape:
    """Return the shape of the pairs that are exchanged: as configured, else from the clients."""
    models = {info.model for info in context.clients.values()}
    own = [shape_for(context, model) for model in models]
    config = context.config
    return FeatureShape(
        _chosen(config.common_channels, max(shape.channels for shape in own)),
        _chosen(config.common_size, min(shape.size for shape in own)),
        _chosen(config.common_width, max(shape.width for shape in own)),
    )


def _chosen(configured: int | str, usual: int) -> int:
    return usual if isinstance(configured, str) else configured
