"""FedAvg: clients train the received weights, the server averages them, layer by layer.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (AISTATS
2017); by layer over unlike depths as in the comparison of FedIN (arXiv 2304.00759, Eq. 19).

Order of a round on a client: load the received weights of its own architecture, train E epochs with
cross entropy, send the weights. The server holds one tensor of every name (see `common.layerwise`)
and replaces each by its mean over the round's clients that have it; a layer that nobody in the
round has stays as it is. Nothing of a client survives a round.

Scalars: |w_k| up and down, the parameters of the client's architecture. Evaluated: the aggregated
model of every architecture, before local training; with `test-split = "global"` on one client of
each architecture, because all would measure the same.

Departures: clients of one run may have different architectures; where their layers do not nest,
means are taken within each architecture. The mean is weighted by n_k (FedIN's study does not
weight: `mean = "uniform"`).
"""

from __future__ import annotations

import dataclasses

from strategies.base.method import Training, register
from strategies.common.layerwise import (
    CrossEntropyClient,
    LayerwiseConfig,
    WeightsClientState,
    WeightsPayload,
    WeightsServerState,
)
from strategies.common.layerwise_server import LayerwiseServer


@dataclasses.dataclass(frozen=True)
class Config(LayerwiseConfig):
    """Options of FedAvg: those of the family, see `LayerwiseConfig`."""


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ClientState = WeightsClientState
ServerState = WeightsServerState


class Client(CrossEntropyClient[ClientState, Downlink, Uplink]):
    """Client half: cross entropy on the local data, from the received weights."""


class Server(LayerwiseServer[ServerState]):
    """Server half: the mean of every layer."""


METHOD = register(
    __name__,
    summary="weights are averaged, layer by layer over unlike depths",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    evaluated_model="global",
    shares_reader=True,
    averages=True,
    regression=True,
)
