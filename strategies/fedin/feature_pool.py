"""The server half of FedIN: means of weights, and a pool of the clients' feature pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from models import ModelError
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.options import AUTO
from strategies.base.payload import PayloadError
from strategies.common.layerwise import WeightsServerState
from strategies.common.layerwise_server import LayerwiseServer
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

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._feature_shapes: dict[str, FeatureShape] = {}

    def new_state(self, layerwise: bool, weights: dict[str, Tensor]) -> T:
        s_in, s_out = self.common_shape().no_pairs()
        sender = torch.empty(0, dtype=torch.int64)
        return PoolState(layerwise, weights, s_in, s_out, sender)  # type: ignore[return-value]

    @property
    def dims(self) -> dict[str, int]:
        """Those of every method, and the shape of a pair."""
        return {**super().dims, **dataclasses.asdict(self.common_shape())}

    def nests(self, models: Sequence[str]) -> bool:
        """By layer only where all clients' features have the exchanged shape by themselves."""
        common = self.common_shape()
        return all(self.shape_of(m) == common for m in models) and super().nests(models)

    @property
    def weighted(self) -> bool:
        """As configured; "auto" by n_k within architectures, not by layer (Eq. 19 to 21)."""
        if self.config.mean == AUTO:
            return not self.state.layerwise
        return super().weighted

    def make_downlink(self, info: ClientInfo, server_round: int) -> Any:
        """Return the current means of the client's entries, and pairs of others."""
        chosen = self.draw(info.client_id, server_round)
        return self.method.downlink(
            **self.weights_for(info),
            s_in=self.state.s_in[chosen].numpy(),
            s_out=self.state.s_out[chosen].numpy(),
        )

    def draw(self, client_id: int, server_round: int) -> Tensor:
        """Choose pairs for a client: positions in the pool, without replacement."""
        sender = self.state.sender
        eligible = torch.arange(len(sender))
        if self.config.draw == "shared":
            purpose = "pairs"
        else:
            purpose = f"pairs-{client_id}"
            others = eligible[sender != client_id]
            eligible = others if len(others) else eligible
        order = torch.randperm(len(eligible), generator=self.generator(server_round, purpose))
        return eligible[order[: self.config.pairs]]

    def aggregate(self, server_round: int, updates: Iterable[ClientUpdate]) -> dict[str, float]:
        """Average the weights, and take the round's pairs into the pool."""
        fresh: list[tuple[Tensor, Tensor, Tensor]] = []

        def noted() -> Iterator[ClientUpdate]:
            for update in updates:
                s_in, s_out = torch.tensor(update.uplink.s_in), torch.tensor(update.uplink.s_out)
                fresh.append((s_in, s_out, torch.full((len(s_in),), update.client_id)))
                yield update

        self.average(noted())
        self._pool([torch.cat(parts) for parts in zip(*fresh, strict=True)])
        return {"pool_pairs": float(len(self.state.sender))}

    def _pool(self, fresh: list[Tensor]) -> None:
        """Replace the pool, or what it holds of the clients that sent something."""
        state = self.state
        if self.config.pool == "latest":
            stays = ~torch.isin(state.sender, fresh[2])
            held = [state.s_in[stays], state.s_out[stays], state.sender[stays]]
            fresh = [torch.cat(pair) for pair in zip(held, fresh, strict=True)]
            order = torch.argsort(fresh[2], stable=True)
            fresh = [item[order] for item in fresh]
        state.s_in, state.s_out, state.sender = fresh

    def check_uplink(self, update: ClientUpdate) -> None:
        """Refuse other numbers of pairs than is asked for, or than a client has examples."""
        wanted = min(self.config.pairs, update.num_examples)
        if len(update.uplink.s_in) != wanted:
            raise PayloadError(f"s_in: {len(update.uplink.s_in)} pairs, expected {wanted}")

    def shape_of(self, model: str) -> FeatureShape:
        """Return the shape of an architecture's own pairs; raises `ModelError` if it has none."""
        if model not in self._feature_shapes:
            skeleton = self._build(model, "meta")
            assert self._shape is not None  # `_build` needs it too
            self._feature_shapes[model] = feature_shape(skeleton, self._shape)
        return self._feature_shapes[model]

    def common_shape(self) -> FeatureShape:
        """Return the shape of the pairs that are exchanged: as configured, else from the roster."""
        if self.state is not None:
            _, channels, size, _ = self.state.s_in.shape
            return FeatureShape(channels, size, self.state.s_out.shape[1])
        own = [self.shape_of(model) for model in {info.model for info in self.clients.values()}]
        config = self.config
        return FeatureShape(
            _chosen(config.common_channels, max(shape.channels for shape in own)),
            _chosen(config.common_size, min(shape.size for shape in own)),
            _chosen(config.common_width, max(shape.width for shape in own)),
        )

    def _contradictions(self, infos: list[ClientInfo]) -> list[str]:
        """Add models without a cut, and unlike ones that are not to be projected."""
        problems = super()._contradictions(infos)
        if problems:
            return problems
        first: dict[FeatureShape, ClientInfo] = {}
        for info in [*self.clients.values(), *infos]:
            try:
                first.setdefault(self.shape_of(info.model), info)
            except ModelError as error:
                problems.append(f"client {info.client_id}: {error}")
        if self.config.projection == "none" and len(first) > 1:
            (shape, info), (other_shape, other) = list(first.items())[:2]
            problems.append(
                f"client {other.client_id}: model {other.model} gives {other_shape}, client "
                f"{info.client_id}'s {info.model} {shape}; choose models with equal stems and "
                f"heads, or {self.method.name}.projection = 'fixed'"
            )
        return problems


def _chosen(configured: int | str, usual: int) -> int:
    return usual if isinstance(configured, str) else configured
