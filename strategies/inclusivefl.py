"""InclusiveFL: one model size per group of clients, shared layers, and updates handed downwards.

Liu et al., No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices (KDD 2022,
arXiv 2202.08036). A group is all clients of one architecture. The architectures of a run nest in
depth: what a shallow one has, deeper ones have too.

Order of a round on a client: as FedAvg, E epochs of cross entropy from the received weights. On
the server, with n_i the training examples of a group's repliers:

1. inside every group, the mean of its clients, weighted by n_k;
2. momentum distillation: u_i is what the last block of group i moved by, v the mean of what blocks
   L_i to L_{i+1} of the next deeper group moved by, its own last block included;
       u_i <- (1 - beta) u_i + beta v;
3. of every entry, the mean over the groups that share it, weighted by n_i. Every group keeps a
   classifier and last blocks of its own, as in the authors' published command (`own-head`,
   `own-last-blocks`).

Blocks of a ResNet. A block is `layer<stage>.<i>`, and every stage has a last one, so step 2 is
made stage by stage. L_i is the number of blocks of group i in that stage; where the next group has
as many, v is that one block's update. The first block of a stage may have other shapes (stride,
projection) than the later ones. A tensor of u_i is changed only if each of the blocks that v
averages has it in u_i's shape; else v does not exist for it, and u_i stays. So a ResNet10's last
block of stages 2 to 4 takes over `conv2`, `bn1` and `bn2` from deeper stages, not `conv1` or
`downsample`. Only parameters are distilled; BatchNorm's statistics are averaged.

The next deeper group is, of the round's groups (those with a reply), the one with the fewest
blocks among those deeper in some stage and shallower in none; v is made of updates before their own
distillation. A group without a reply keeps what is its own, and gets what others made of the rest.
An architecture without such blocks takes no part in step 2. Where the architectures do not nest,
each is averaged alone and nothing is distilled.

Scalars: |w_k| up and down. Evaluated: every architecture's model, before local training.

Departures: the published code (SGD on averaged gradients) overwrites v instead of averaging it and
applies it only while it is still the integer 0, so it merely scales u_i by 0.8. It distils the
gradients of the round before; here they are this round's. With `own-last-blocks = false`, which it
refuses together with distillation, u_i changes before it enters the mean of step 3. The server
holds one running mean per group, however many clients reply.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from strategies.base.messages import ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.server import ServerContext
from strategies.common.layerwise import (
    CrossEntropyClient,
    LayerwiseConfig,
    WeightsClientState,
    WeightsPayload,
    WeightsServerState,
)
from strategies.common.layerwise_server import LayerwiseServer, layout_for
from strategies.common.robust import mean_over_clients
from strategies.common.weights import RunningMean, state_views

_BLOCK = re.compile(r"((?:.+\.)?layer\d+)\.(\d+)\.(.+)")
"""Stage, block and entry, as in `backbone.layer2.0.conv1.weight`."""

Depths = Mapping[str, int]
"""Number of blocks of every stage."""


@dataclasses.dataclass(frozen=True)
class Config(LayerwiseConfig):
    """Options of InclusiveFL, besides those of the family.

    Attributes
    ----------
    beta : float
        Share of the deeper group's update; 0 distils nothing.
    own_head : bool
        Whether every group has a classifier of its own.
    own_last_blocks : bool
        Whether every group has the last block of every stage for its own.
    """

    beta: float = option(0.2, minimum=0, maximum=1)
    own_head: bool = option(True)
    own_last_blocks: bool = option(True)


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ClientState = WeightsClientState
ServerState = WeightsServerState
"""Shared entries by name, a group's own ones by "architecture/name"."""


@dataclasses.dataclass(frozen=True)
class Group:
    """A group's round: what its clients were sent, and the mean of what they sent back.

    Attributes
    ----------
    before : Mapping[str, Tensor]
        Parameters at the start of the round.
    after : Mapping[str, Tensor]
        Mean of every entry, buffers included, over the group's repliers.
    weight : float
        Sum of the repliers' weights.
    """

    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    weight: float

    def update(self, name: str) -> Tensor:
        """Return what a parameter moved by, in float64."""
        return self.after[name].double() - self.before[name].double()


def depths_of(names: Iterable[str]) -> dict[str, int]:
    """Return how many blocks every stage of an architecture with these entries has."""
    depths: dict[str, int] = {}
    for name in names:
        if match := _BLOCK.fullmatch(name):
            stage, block = match[1], int(match[2])
            depths[stage] = max(depths.get(stage, 0), block + 1)
    return depths


def in_last_block(name: str, depths: Depths) -> bool:
    """Return whether an entry belongs to the last block of its stage."""
    match = _BLOCK.fullmatch(name)
    return match is not None and int(match[2]) == depths[match[1]] - 1


def next_deeper(depths: Depths, others: Mapping[str, Depths]) -> str | None:
    """Return the nearest of other architectures that is deeper in a stage and shallower in none."""
    deeper = [
        (sum(other.values()), model)
        for model, other in others.items()
        if other.keys() == depths.keys()
        and other != depths
        and all(other[stage] >= depth for stage, depth in depths.items())
    ]
    return min(deeper)[1] if deeper else None


def distilled(group: Group, deeper: Group, beta: float) -> dict[str, Tensor]:
    """Return a group's last blocks after distillation from a deeper one, where v exists.

    Written as after + beta (v - u), which is before + (1 - beta) u + beta v and exact for beta = 0.
    """
    depths, available = depths_of(group.before), depths_of(deeper.before)
    changed = {}
    for name, old in group.before.items():
        match = _BLOCK.fullmatch(name)
        if match is None or not in_last_block(name, depths):
            continue
        stage, last, entry = match[1], int(match[2]), match[3]
        sources = [f"{stage}.{block}.{entry}" for block in range(last, available[stage])]
        shapes = {deeper.before[s].shape if s in deeper.before else None for s in sources}
        if shapes == {old.shape}:
            v = torch.stack([deeper.update(source) for source in sources]).mean(dim=0)
            new = group.after[name].double() + beta * (v - group.update(name))
            changed[name] = new.to(old.dtype)
    return changed


def own_names(context: ServerContext, model: str) -> frozenset[str]:
    """Return the entries that a group keeps for itself where architectures nest."""
    config, names = context.config, layout_for(context, model).all
    depths = depths_of(names)
    return frozenset(
        name
        for name in names
        if (config.own_head and name.startswith("head."))
        or (config.own_last_blocks and in_last_block(name, depths))
    )


class Client(CrossEntropyClient[ClientState, Downlink, Uplink]):
    """Client half: cross entropy on the local data, from the group's weights."""


class Server(LayerwiseServer[ServerState]):
    """Server half: means by group, distillation to the shallower, then means over groups."""

    def keys(self, context: ServerContext, state: ServerState, model: str) -> dict[str, str]:
        keys = super().keys(context, state, model)
        if state.layerwise:
            keys |= {name: f"{model}/{name}" for name in own_names(context, model)}
        return keys

    def add_architecture(self, context: ServerContext, state: ServerState, model: str) -> None:
        """Let a group's own entries start as the shared ones, which the deepest network gave."""
        super().add_architecture(context, state, model)
        if state.layerwise:
            for name in own_names(context, model):
                state.weights.setdefault(f"{model}/{name}", state.weights[name].clone())

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        if not state.layerwise:
            self.average(context, state, updates)
            return {"distilled_groups": 0.0}
        groups = self._means_by_group(context, state, updates)
        depths = {model: depths_of(group.before) for model, group in groups.items()}
        over_groups, count = mean_over_clients(context.run, state.weights), 0
        own: dict[str, Tensor] = {}
        for model, group in groups.items():
            entries = dict(group.after)
            deeper = next_deeper(depths[model], depths)
            if deeper is not None:
                entries |= distilled(group, groups[deeper], context.config.beta)
                count += 1
            kept = own_names(context, model)
            own |= {f"{model}/{name}": entries[name] for name in kept}
            shared = {name: item for name, item in entries.items() if name not in kept}
            over_groups.add(state_views(shared), group.weight)
        state.weights |= over_groups.means() | own
        return {"distilled_groups": float(count)}

    def _means_by_group(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, Group]:
        """Average inside every group, reading the updates one by one."""
        means: dict[str, RunningMean] = {}
        weights: dict[str, float] = {}
        weighted = self.weighted(context, state)
        for update in updates:
            model = context.clients[update.client_id].model
            weight = update.num_examples if weighted else 1
            sent = {**update.uplink.weights, **update.uplink.buffers}
            if model not in means:
                keys = self.keys(context, state, model)
                held = {name: state.weights[key] for name, key in keys.items()}
                means[model] = mean_over_clients(context.run, held)
            means[model].add(sent, weight)
            weights[model] = weights.get(model, 0.0) + weight
        return {
            model: self._group(context, state, model, means[model].means(), weights[model])
            for model in sorted(means)
        }

    def _group(
        self,
        context: ServerContext,
        state: ServerState,
        model: str,
        after: Mapping[str, Tensor],
        weight: float,
    ) -> Group:
        keys = self.keys(context, state, model)
        trained = layout_for(context, model).weights
        return Group({name: state.weights[keys[name]] for name in trained}, after, weight)


METHOD = register(
    __name__,
    summary="weights are averaged by layer over groups of unlike depth, deeper updates help",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    evaluated_model="global",
    shares_reader=True,
    averages=True,
    regression=True,
)
