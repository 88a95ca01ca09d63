"""InCo: layer-wise FedAvg whose later blocks also move along what their stage's first one learned.

Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to Heterogeneity in Federated
Learning (ICLR 2024): InCo Aggregation on FedAvg. Few clients own the deep blocks, and all own the
first block of every stage.

Order of a round on a client: as FedAvg, E epochs of cross entropy from the received weights. On the
server, with w the weights before the round and g an entry's mean over clients minus w:

1. for every block b >= 1 of a stage and every k x k kernel, one for each pair of output and input
   channel, of its convolutions, g0 being the same kernel of `conv2` of the stage's block 0:
       theta = min(|<g0, g>| / <g0, g0>, theta_max),
       g <- (g / |g| + theta g0 / |g0|) (|g| + |g0|) / 2,
   of which each element is then clipped to [-clip, clip];
2. w <- w + g.

As in the authors' code 1e-7 is added to |g|, |g0| and <g0, g0> where they divide: a kernel that did
not move stays, and beside a g0 of zero g is halved. A convolution whose shape is not that of
`conv2` of block 0 (the 1 x 1 ones of a bottleneck) is only averaged, as are BatchNorm, projections,
stem and head. Models without such stages, the CNNs, are averaged as FedAvg does; the run says so.

Scalars: |w_k| up and down. Evaluated: every architecture's model, before local training.

Departures: clients send w_k, not w_k - w: the mean minus w is the mean of the differences, and the
payload has the same size. Running variances are means of variances, so that there is none below 0
to clip. What the authors' code does for transformers (`norm2` of a block after its `norm1`) is not
here.
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
from strategies.common.layerwise_server import LayerwiseServer

_CONVOLUTION = re.compile(r"((?:.+\.)?layer\d+)\.(\d+)\.conv\d+\.weight")
"""Stage and block, as in `backbone.layer2.1.conv1.weight`; a model's name may stand before it."""

EPSILON = 1e-7
"""Added to norms and to <g0, g0> where they divide, as in the authors' code."""


@dataclasses.dataclass(frozen=True)
class Config(LayerwiseConfig):
    """Options of InCo, besides those of the family; defaults are the authors'.

    Attributes
    ----------
    mean : str
        Weights of clients in the mean: equal ("uniform") or n_k ("weighted").
    theta_max : float
        Largest theta; 0 takes nothing over from the first block.
    clip : float
        Largest change of a single weight of the kernels concerned, in a round.
    """

    mean: str = option("uniform", "weighted")
    theta_max: float = option(5.0, minimum=0)
    clip: float = option(0.1, above=0)


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ClientState = WeightsClientState
ServerState = WeightsServerState


def reference_of(key: str) -> str | None:
    """Return the entry that one is mixed with: `conv2` of its stage's block 0, or None.

    Convolutions of blocks from 1 on have one.
    """
    match = _CONVOLUTION.fullmatch(key)
    return f"{match[1]}.0.conv2.weight" if match and int(match[2]) > 0 else None


def mixed(g: Tensor, g0: Tensor, theta_max: float, clip: float) -> Tensor:
    """Return step 1 of the module's head for one convolution.

    Parameters
    ----------
    g, g0 : Tensor
        Changes of a convolution and of its reference, both (outputs, inputs, k, k).
    theta_max, clip : float
        See `Config`.

    Returns
    -------
    Tensor
        (outputs, inputs, k, k), every kernel (k, k) on its own.
    """
    kernel = (-2, -1)
    size, size0 = (torch.linalg.vector_norm(x, dim=kernel, keepdim=True) for x in (g, g0))
    along = (g0 * g).sum(dim=kernel, keepdim=True).abs()
    theta = (along / (size0.square() + EPSILON)).clamp(max=theta_max)
    direction = g / (size + EPSILON) + theta * g0 / (size0 + EPSILON)
    step: Tensor = direction * (size + size0) / 2
    return step.clamp(-clip, clip)


def with_cross_layer(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], config: Config
) -> dict[str, Tensor]:
    """Return the convolutions that the first blocks change, after the round.

    Parameters
    ----------
    before, after : mapping of str to Tensor
        Weights before the round, and means over its clients; `after` may lack entries.
    config : Config
        `theta_max` and `clip`.

    Returns
    -------
    dict of str to Tensor
        Entries of `after` with a reference of their own shape.
    """
    changed = {}
    for key, mean in after.items():
        reference = reference_of(key)
        if reference is None or reference not in after or after[reference].shape != mean.shape:
            continue
        old = before[key].double()
        g0 = after[reference].double() - before[reference].double()
        step = mixed(mean.double() - old, g0, config.theta_max, config.clip)
        changed[key] = (old + step).to(mean.dtype)
    return changed


class Client(CrossEntropyClient[ClientState, Downlink, Uplink]):
    """Client half: cross entropy on the local data, from the received weights."""


class Server(LayerwiseServer[ServerState]):
    """Server half: the mean of every layer, then the first blocks' part of it in later ones."""

    def initial_state(self, context: ServerContext) -> ServerState:
        """Draw the first weights; say where no architecture has a block to change."""
        state = super().initial_state(context)
        if not any(reference_of(key) in state.weights for key in state.weights):
            print(
                f"{context.method.name}: no model of this run has a stage of two residual blocks "
                "(layer1.1.conv1, ...): the server averages as fedavg does",
                flush=True,
            )
        return state

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        means = self.means(context, state, updates)
        changed = with_cross_layer(state.weights, means, context.config)
        state.weights |= means | changed
        return {"cross_layer_convolutions": float(len(changed))}


METHOD = register(
    __name__,
    summary="fedavg by layer, whose deep blocks also move along what their stage's first learned",
    training=Training(optimizer="adam", lr=0.001),
    common_feature_dim=False,
    evaluated_model="global",
    shares_reader=True,
    averages=True,
    regression=True,
)
