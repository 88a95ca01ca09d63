"""Groups of clients that share weights: one architecture, one task; the halves of such methods.

`AveragingServer` keeps the round's means as they are; another `GroupServer` makes more of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from models import SplitModel, TaskModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.payload import Template
from strategies.base.server import ServerContext, ServerHalf
from strategies.base.state import Transient
from strategies.common.layerwise import WeightsPayload, fill_model, layout_of, split_state
from strategies.common.losses import task_loss
from strategies.common.robust import mean_over_clients
from strategies.common.server_models import (
    client_skeleton,
    first_weights,
    group_of,
    layout_for,
    unlike_of_its_task,
)
from strategies.common.training import train_epochs
from strategies.common.weights import RunningMean, StateArrays, state_views


@dataclasses.dataclass
class GroupClientState:
    """The model, which every downlink brings."""

    model: Transient[SplitModel | TaskModel]


@dataclasses.dataclass
class GroupServerState:
    """Every group's weights and buffers, by "group/entry"."""

    weights: dict[str, Tensor]

    def put(self, group: str, entries: Mapping[str, Tensor]) -> None:
        """Keep what a group has now."""
        self.weights |= {f"{group}/{name}": item for name, item in entries.items()}


T = TypeVar("T", bound=GroupServerState)


def first_of_each(groups: Mapping[int, Hashable]) -> set[int]:
    """Return the lowest id of every group, of clients' groups by id."""
    first: dict[Hashable, int] = {}
    for client_id in sorted(groups):
        first.setdefault(groups[client_id], client_id)
    return set(first.values())


class GroupMeans:
    """The means of a round's clients by group, of what is read once.

    Attributes
    ----------
    members : dict of str to ClientInfo
        A client of every group that has sent something.
    """

    def __init__(self, context: ServerContext, state: GroupServerState) -> None:
        self.members: dict[str, ClientInfo] = {}
        self._context, self._state = context, state
        self._means: dict[str, RunningMean] = {}

    def add(self, update: ClientUpdate) -> tuple[ClientInfo, StateArrays]:
        """Add what a client sent, by the option `mean`; return who it is, and its entries."""
        info = self._context.clients[update.client_id]
        group = group_of(info)
        entries = {**update.uplink.weights, **update.uplink.buffers}
        if group not in self._means:
            held = {name: self._state.weights[f"{group}/{name}"] for name in entries}
            self._means[group] = mean_over_clients(self._context.run, held)
            self.members[group] = info
        weighted = self._context.config.mean == "weighted"
        self._means[group].add(entries, update.num_examples if weighted else 1)
        return info, entries

    def by_group(self) -> Iterator[tuple[str, ClientInfo, dict[str, Tensor]]]:
        """Yield groups by name, a client of each, and its means, which are then forgotten."""
        for group in sorted(self._means):
            yield group, self.members[group], self._means.pop(group).means()


class GroupClient(ClientHalf[GroupClientState, WeightsPayload, WeightsPayload]):
    """Client half: the task's loss on the local data, from the received weights."""

    def build(self, context: ClientContext) -> GroupClientState:
        """Return a state around a model without weights."""
        return GroupClientState(client_skeleton(context))

    def templates(self, context: ClientContext) -> Mapping[str, Template]:
        """Return what a downlink must hold: the client's own architecture."""
        layout = layout_of(client_skeleton(context), "average")
        return {"weights": layout.weights, "buffers": layout.buffers}

    def receive(
        self, context: ClientContext, state: GroupClientState, downlink: WeightsPayload
    ) -> None:
        """Make the model of what arrived."""
        fill_model(context, state.model, {**downlink.weights, **downlink.buffers}, {})

    def train(
        self, context: ClientContext, state: GroupClientState, downlink: WeightsPayload
    ) -> tuple[WeightsPayload, dict[str, float]]:
        """Train on the local data and send the weights."""
        loss = task_loss(context.data.task, state.model)
        metrics = train_epochs(context, [state.model], loss)
        return self.outgoing(state), metrics

    def outgoing(self, state: GroupClientState) -> WeightsPayload:
        """Return the model's weights and buffers, to be packed at once."""
        weights, buffers = split_state(state.model)
        return WeightsPayload(state_views(weights), state_views(buffers))

    def predict(
        self, state: GroupClientState, downlink: WeightsPayload, images: Tensor
    ) -> dict[str, Tensor]:
        """Score with the model: the received one, after training the client's own."""
        return {"accuracy": state.model(images)}


class GroupServer(ServerHalf[T, WeightsPayload], Generic[T]):
    """A server half that keeps every group's weights; a subclass gives the rest."""

    def check(self, context: ServerContext, state: T | None, client: ClientInfo) -> str | None:
        """Return what of the client's data is unlike that of others with its task, or None."""
        layout_for(context.run, client)  # one that cannot be built here is refused by name
        return unlike_of_its_task(context, client) or super().check(context, state, client)

    def templates(
        self, context: ServerContext, state: T, client: ClientInfo
    ) -> Mapping[str, Template]:
        """Return what an uplink must hold: the client's own architecture."""
        layout = layout_for(context.run, client)
        return {"weights": layout.weights, "buffers": layout.buffers}

    def downlink(
        self, context: ServerContext, state: T, client: ClientInfo | None
    ) -> WeightsPayload | None:
        """Return the current weights of the client's group."""
        if client is None:
            return None
        self.add_group(context, state, client)
        layout, group = layout_for(context.run, client), group_of(client)
        fields = [
            state_views({name: state.weights[f"{group}/{name}"] for name in template})
            for template in (layout.weights, layout.buffers)
        ]
        return WeightsPayload(*fields)

    def evaluates_test(self, context: ServerContext, clients: Sequence[int]) -> set[int]:
        """Return who measures a test set that all share: one client of every group."""
        if context.run.test_split != "global":
            return set(clients)
        return first_of_each({client: group_of(context.clients[client]) for client in clients})

    def add_group(self, context: ServerContext, state: T, info: ClientInfo) -> None:
        """Draw the weights of a group that the server does not have yet."""
        group = group_of(info)
        names = layout_for(context.run, info).all
        if not all(f"{group}/{name}" in state.weights for name in names):
            fresh = first_weights(context.run, info)
            state.put(group, {name: fresh[name] for name in names})


class AveragingServer(GroupServer[GroupServerState]):
    """A server half whose groups go on with the means of what their clients send."""

    def initial_state(self, context: ServerContext) -> GroupServerState:
        """Draw every group's first weights."""
        state = GroupServerState({})
        for info in context.clients.values():
            self.add_group(context, state, info)
        return state

    def aggregate(
        self, context: ServerContext, state: GroupServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Keep the means."""
        groups = GroupMeans(context, state)
        for update in updates:
            groups.add(update)
        for group, _, means in groups.by_group():
            state.put(group, means)
        return {}
