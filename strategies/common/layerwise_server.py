"""Weights shared by layer inside a family of architectures: the server half; see `layerwise`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from models import Shape, SplitModel, build_model
from models.skeleton import skeleton
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.options import AUTO
from strategies.base.payload import Template
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext, ServerHalf
from strategies.common.groups import first_of_each
from strategies.common.layerwise import Layout, WeightsServerState, layout_of
from strategies.common.robust import mean_over_clients
from strategies.common.shapes import shape_of
from strategies.common.weights import state_views

T = TypeVar("T", bound=WeightsServerState)


class LayerwiseServer(ServerHalf[T, Any], Generic[T]):
    """A server half that keeps the mean of every layer; reads the options of `LayerwiseConfig`.

    A subclass with a state of its own overrides `new_state`; one that does more than averaging
    overrides `aggregate`, and `downlink` if more than weights goes out. `nests` and `weighted`
    decide what "auto" options mean.
    """

    def new_state(self, context: ServerContext, layerwise: bool, weights: dict[str, Tensor]) -> T:
        """Return the state before round 1."""
        return WeightsServerState(layerwise, weights)  # type: ignore[return-value]

    def initial_state(self, context: ServerContext) -> T:
        """Draw the first weights from the run's seed; the deepest network's come first."""
        models = by_size(context, context.clients.values())
        wanted = context.config.aggregation
        layerwise = wanted == "layerwise" or (wanted == "auto" and self.nests(context, models))
        print(
            f"weights are averaged {'by layer' if layerwise else 'within each architecture'}: "
            + ", ".join(models),
            flush=True,
        )
        state = self.new_state(context, layerwise, {})
        for model in models:
            self.add_architecture(context, state, model)
        return state

    def templates(
        self, context: ServerContext, state: T, client: ClientInfo
    ) -> Mapping[str, Template]:
        """Return what an uplink must hold: the client's own architecture."""
        layout = layout_for(context, client.model)
        return {"weights": layout.weights, "buffers": layout.buffers}

    def downlink(self, context: ServerContext, state: T, client: ClientInfo | None) -> Any:
        """Return the current means of the client's entries."""
        if client is None:
            return None
        return context.method.downlink(**self.weights_for(context, state, client))

    def aggregate(
        self, context: ServerContext, state: T, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Replace every entry by its mean over the round's clients that have it, streaming."""
        self.average(context, state, updates)
        return {}

    def evaluates_test(self, context: ServerContext, clients: Sequence[int]) -> set[int]:
        """Return who measures a test set that all share: one client of every architecture."""
        if context.run.test_split != "global" or context.config.buffers == "local":
            return set(clients)
        return first_of_each({client: context.clients[client].model for client in clients})

    def check(self, context: ServerContext, state: T | None, client: ClientInfo) -> str | None:
        """Return which architectures do not nest where clients are averaged by layer, or None."""
        if (problem := super().check(context, state, client)) is not None:
            return problem
        layout_for(context, client.model)  # one that cannot be built here is refused by name
        must_nest = context.config.aggregation == "layerwise" or (state and state.layerwise)
        clash = clash_of(context, by_size(context, context.clients.values())) if must_nest else None
        if clash is None:
            return None
        return (
            f"{clash}, so clients cannot be averaged by layer; choose models of one family, such "
            f"as resnet10 to resnet26, or {context.method.name}.aggregation = 'architecture'"
        )

    # What "auto" means --------------------------------------------------------------------------

    def nests(self, context: ServerContext, models: Sequence[str]) -> bool:
        """Return whether `aggregation = "auto"` averages these architectures by layer."""
        return clash_of(context, models) is None

    def weighted(self, context: ServerContext, state: T) -> bool:
        """Return whether means over clients are weighted by their training examples."""
        return bool(context.config.mean == "weighted")

    # What subclasses use ------------------------------------------------------------------------

    def weights_for(
        self, context: ServerContext, state: T, client: ClientInfo
    ) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the downlink's fields `weights` and `buffers`: views, to be packed at once."""
        keys, held = self.keys(context, state, client.model), state.weights
        if not all(key in held for key in keys.values()):
            self.add_architecture(context, state, client.model)
        layout = layout_for(context, client.model)
        return {
            field: state_views({name: held[keys[name]] for name in template})
            for field, template in (("weights", layout.weights), ("buffers", layout.buffers))
        }

    def average(self, context: ServerContext, state: T, updates: Iterable[ClientUpdate]) -> None:
        """Aggregate the round's weights into the state; what nobody sent stays as it is."""
        state.weights |= self.means(context, state, updates)

    def means(
        self, context: ServerContext, state: T, updates: Iterable[ClientUpdate]
    ) -> dict[str, Tensor]:
        """Return the mean of every entry that somebody sent, by the server's keys."""
        mean = mean_over_clients(context.run, state.weights)
        weighted = self.weighted(context, state)
        for update in updates:
            received = self.received(context, state, update)
            mean.add(received, update.num_examples if weighted else 1)
        return mean.means()

    def received(
        self, context: ServerContext, state: T, update: ClientUpdate
    ) -> dict[str, NDArray[Any]]:
        """Return an uplink's weights and buffers under the server's keys."""
        entries = {**update.uplink.weights, **update.uplink.buffers}
        return self.keyed(context, state, update.client_id, entries)

    def keyed(
        self,
        context: ServerContext,
        state: T,
        client_id: int,
        entries: Mapping[str, NDArray[Any]],
    ) -> dict[str, NDArray[Any]]:
        """Return a client's entries under the server's keys."""
        keys = self.keys(context, state, context.clients[client_id].model)
        return {keys[name]: item for name, item in entries.items()}

    def keys(self, context: ServerContext, state: T, model: str) -> dict[str, str]:
        """Return the server's key of every entry of an architecture."""
        names = layout_for(context, model).all
        return {name: name if state.layerwise else f"{model}/{name}" for name in names}

    def owners(self, context: ServerContext, state: T) -> Counter[str]:
        """Return how many known clients that have training examples have an entry, by key."""
        models = Counter(c.model for c in context.clients.values() if c.train_examples > 0)
        counts: Counter[str] = Counter()
        for model, clients in models.items():
            keys = self.keys(context, state, model).values()
            counts.update(dict.fromkeys(keys, clients))
        return counts

    def add_architecture(self, context: ServerContext, state: T, model: str) -> None:
        """Draw the entries of an architecture that the server does not have yet."""
        with isolated_torch_rng(derive_seed(context.run.seed, SERVER, 0, f"weights-{model}")):
            fresh = build_for(context, model).state_dict()
        for name in layout_for(context, model).all:
            key = name if state.layerwise else f"{model}/{name}"
            state.weights.setdefault(key, fresh[name].detach().clone())


def optimizer_of(run: RunConfig) -> tuple[str, float]:
    """Return name and momentum of the clients' optimiser."""
    defaults = run.chosen_method.training
    name = defaults.optimizer if run.optimizer == AUTO else run.optimizer
    momentum = defaults.momentum if isinstance(run.momentum, str) else run.momentum
    return name, momentum if name == "sgd" else 0.0


def build_for(context: ServerContext, model: str) -> SplitModel:
    """Build an architecture as the run's clients do."""
    shape = shape_of(context.any_client)
    return build_model(model, shape, context.run.feature_dim, context.config.mapping)


def layout_for(context: ServerContext, model: str) -> Layout:
    """Return what travels of an architecture."""
    run, config = context.run, context.config
    return _layout(
        model, shape_of(context.any_client), run.feature_dim, config.mapping, config.buffers
    )


@lru_cache(maxsize=256)  # asked for with every message and every reply
def _layout(model: str, shape: Shape, width: int, mapping: str, buffers: str) -> Layout:
    with skeleton():
        return layout_of(build_model(model, shape, width, mapping), buffers)


def by_size(context: ServerContext, clients: Iterable[ClientInfo]) -> list[str]:
    """Return the different architectures of clients, that with the most entries first."""
    models = {client.model for client in clients}
    return sorted(models, key=lambda m: (-len(layout_for(context, m).all), m))


def clash_of(context: ServerContext, models: Sequence[str]) -> str | None:
    """Return what keeps architectures from being averaged by layer, or None."""
    return _clash(tuple((model, layout_for(context, model)) for model in models))


@lru_cache(maxsize=16)  # every client that registers asks
def _clash(layouts: tuple[tuple[str, Layout], ...]) -> str | None:
    seen: dict[str, tuple[str, Any]] = {}
    for model, layout in layouts:
        for name, kind in layout.all.items():
            first, known = seen.setdefault(name, (model, kind))
            if known != kind:
                return f"{name} is {known[0]} in {first} and {kind[0]} in {model}"
    return None
