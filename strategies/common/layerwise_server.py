"""Weights shared by layer inside a family of architectures: the server half; see `layerwise`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from models import InputShape, SplitModel, TextShape, build_model
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.options import AUTO
from strategies.base.payload import Template
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.server import ServerHalf
from strategies.common.layerwise import Layout, WeightsServerState, layout_of
from strategies.common.shapes import shape_of
from strategies.common.weights import RunningMean, state_views

T = TypeVar("T", bound=WeightsServerState)


class LayerwiseServer(ServerHalf[T], Generic[T]):
    """A server half that keeps the mean of every layer; reads the options of `LayerwiseConfig`.

    A subclass with a state of its own overrides `new_state`; one that does more than averaging
    overrides `aggregate`, and `make_downlink` if more than weights goes out. `nests` and `weighted`
    decide what "auto" options mean.
    """

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._layouts: dict[str, Layout] = {}
        self._shape: InputShape | TextShape | None = None

    def new_state(self, layerwise: bool, weights: dict[str, Tensor]) -> T:
        """Return the state before round 1."""
        return WeightsServerState(layerwise, weights)  # type: ignore[return-value]

    def initial_state(self) -> T:
        """Draw the first weights from the run's seed; the deepest network's come first."""
        models = self._by_size(info.model for info in self.clients.values())
        wanted = self.config.aggregation
        layerwise = wanted == "layerwise" or (wanted == "auto" and self.nests(models))
        print(
            f"weights are averaged {'by layer' if layerwise else 'within each architecture'}: "
            + ", ".join(models),
            flush=True,
        )
        state = self.new_state(layerwise, {})
        for model in models:
            self._add_architecture(state, model)
        return state

    def templates(self, info: ClientInfo) -> Mapping[str, Template]:
        """Return what an uplink must hold: the client's own architecture."""
        layout = self.layout(info.model)
        return {"weights": layout.weights, "buffers": layout.buffers}

    def make_downlink(self, info: ClientInfo, server_round: int) -> Any:
        """Return the current means of the client's entries."""
        return self.method.downlink(**self.weights_for(info))

    def aggregate(self, server_round: int, updates: Iterable[ClientUpdate]) -> dict[str, float]:
        """Replace every entry by its mean over the round's clients that have it, streaming."""
        self.average(updates)
        return {}

    def evaluates_test(self, clients: Sequence[int]) -> set[int]:
        """Return who measures a test set that all share: one client of every architecture."""
        if self.run.test_split != "global" or self.config.buffers == "local":
            return set(clients)
        first: dict[str, int] = {}
        for client_id in sorted(clients):
            first.setdefault(self.clients[client_id].model, client_id)
        return set(first.values())

    def nests(self, models: Sequence[str]) -> bool:
        """Return whether `aggregation = "auto"` averages these architectures by layer."""
        return self._clash(models) is None

    @property
    def weighted(self) -> bool:
        """Whether means over clients are weighted by their training examples."""
        return bool(self.config.mean == "weighted")

    # What subclasses use ------------------------------------------------------------------------

    def weights_for(self, info: ClientInfo) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the downlink's fields `weights` and `buffers`: views, to be packed at once."""
        if info.model not in self._layouts or not self._holds(info.model):
            self._add_architecture(self.state, info.model)
        layout, held = self.layout(info.model), self.state.weights
        return {
            field: state_views({name: held[self.key(info.model, name)] for name in template})
            for field, template in (("weights", layout.weights), ("buffers", layout.buffers))
        }

    def average(self, updates: Iterable[ClientUpdate]) -> None:
        """Aggregate the round's weights; an entry that nobody sent stays as it is."""
        mean = RunningMean()
        for update in updates:
            mean.add(self.received(update), update.num_examples if self.weighted else 1)
        self.state.weights |= mean.means()

    def received(self, update: ClientUpdate) -> dict[str, NDArray[Any]]:
        """Return an uplink's weights and buffers under the server's keys."""
        entries = {**update.uplink.weights, **update.uplink.buffers}
        return self.keyed(update.client_id, entries)

    def keyed(self, client_id: int, entries: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return a client's entries under the server's keys."""
        model = self.clients[client_id].model
        return {self.key(model, name): item for name, item in entries.items()}

    def key(self, model: str, name: str) -> str:
        """Return the server's key of an architecture's entry."""
        return name if self.state.layerwise else f"{model}/{name}"

    def layout(self, model: str) -> Layout:
        """Return what travels of an architecture."""
        if model not in self._layouts:
            self._layouts[model] = layout_of(self._build(model, "meta"), self.config.buffers)
        return self._layouts[model]

    @property
    def optimizer(self) -> tuple[str, float]:
        """Name and momentum of the clients' optimiser."""
        run, defaults = self.run, self.method.training
        name = defaults.optimizer if run.optimizer == AUTO else run.optimizer
        momentum = defaults.momentum if isinstance(run.momentum, str) else run.momentum
        return name, momentum if name == "sgd" else 0.0

    def owners(self) -> Counter[str]:
        """Return how many known clients that have training examples have an entry, by key."""
        models = Counter(c.model for c in self.clients.values() if c.train_examples > 0)
        counts: Counter[str] = Counter()
        for model, clients in models.items():
            counts.update({self.key(model, name): clients for name in self.layout(model).all})
        return counts

    # Own matters --------------------------------------------------------------------------------

    def _holds(self, model: str) -> bool:
        held = self.state.weights
        return all(self.key(model, name) in held for name in self.layout(model).all)

    def _add_architecture(self, state: Any, model: str) -> None:
        """Draw the entries of an architecture that the server does not have yet."""
        with isolated_torch_rng(derive_seed(self.run.seed, SERVER, 0, f"weights-{model}")):
            fresh = self._build(model, "cpu").state_dict()
        for name in self.layout(model).all:
            key = name if state.layerwise else f"{model}/{name}"
            state.weights.setdefault(key, fresh[name].detach().clone())

    def _build(self, model: str, device: str) -> SplitModel:
        self._shape = self._shape or shape_of(next(iter(self.clients.values())))
        with torch.device(device):
            return build_model(model, self._shape, self.run.feature_dim, self.config.mapping)

    def _by_size(self, models: Iterable[str]) -> list[str]:
        """Return different architectures, that with the most entries first."""
        return sorted(set(models), key=lambda m: (-len(self.layout(m).all), m))

    def _clash(self, models: Iterable[str]) -> str | None:
        """Return what keeps architectures from being averaged by layer, or None."""
        seen: dict[str, tuple[str, Any]] = {}
        for model in models:
            for name, kind in self.layout(model).all.items():
                first, known = seen.setdefault(name, (model, kind))
                if known != kind:
                    return f"{name} is {known[0]} in {first} and {kind[0]} in {model}"
        return None

    def _contradictions(self, infos: list[ClientInfo]) -> list[str]:
        """Add to the base's contradictions an architecture that does not nest with the others."""
        problems = super()._contradictions(infos)
        must_nest = self.config.aggregation == "layerwise" or getattr(
            self.state, "layerwise", False
        )
        if problems or not infos:
            return problems
        self._shape = self._shape or shape_of(infos[0])
        if not must_nest:
            return []
        clash = self._clash(self._by_size(c.model for c in [*self.clients.values(), *infos]))
        if clash is None:
            return []
        return [
            f"{clash}, so clients cannot be averaged by layer; choose models of one family, such "
            f"as resnet10 to resnet26, or {self.method.name}.aggregation = 'architecture'"
        ]
