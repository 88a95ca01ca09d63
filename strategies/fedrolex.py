"""FedRolex: HeteroFL whose parts roll over the network, so that all of it is trained evenly.

Alam et al., FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction
(NeurIPS 2022, arXiv 2212.01548). In round t, from 0 on, a client of rate r has of a layer with n
channels those numbered (t + j) mod n for j below ceil(r n). The window moves on by one channel in
every round and wraps around, so that over n rounds every channel is trained equally often. What a
layer has is what the next one reads.

All else is HeteroFL's (`strategies.heterofl`): the training, and the mean of every value over the
round's clients that hold it.

Scalars: about r^2 |w| up and down. Evaluated: the client's part of this round, before local
training.

Departures: BatchNorm's statistics as in HeteroFL here; the released code normalises test batches by
their own statistics. Its weights by width or by past updates are left out. A window's channels are
in ascending order, which changes nothing of what the network computes.
"""

from __future__ import annotations

import dataclasses

from strategies.base.method import Training, register
from strategies.common.layerwise import WeightsPayload
from strategies.common.parts import PartClientState
from strategies.common.parts_server import PartServerState
from strategies.common.widths import (
    WidthClient,
    WidthConfig,
    WidthServer,
    Windows,
    unfit_options,
)


@dataclasses.dataclass(frozen=True)
class Config(WidthConfig):
    """Options of FedRolex: those of the family, see `WidthConfig`."""


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: the client's part of the network in this round."""
ClientState = PartClientState
ServerState = PartServerState


class Client(WidthClient):
    """Client half: trains this round's window."""

    parts = Windows(rolling=True)


class Server(WidthServer):
    """Server half: the mean over holders."""

    parts = Windows(rolling=True)


METHOD = register(
    __name__,
    summary="clients train windows of one wide network's channels that move on with the rounds",
    training=Training(optimizer="adam", lr=2e-4, weight_decay=1e-3),
    common_feature_dim=False,
    evaluated_model="global",
    one_network=True,
    reads=("image",),
    refuses=unfit_options,
)
