"""HeteroFL: every client trains the first channels of one wide network, as many as it can.

Diao et al., HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients (ICLR 2021, arXiv 2010.01264). With rate r a client has the first ceil(r n) of the n
channels of every layer; the first layer reads all colours, the head scores all classes.

Order of a round on a client: load its part of the network, train E epochs with cross entropy, send
the part. In training, the outputs of convolutions are divided by r (scaler), BatchNorm normalises
by the batch and keeps nothing (static BatchNorm), and the logits of classes that the client has no
example of are 0 (masked cross entropy). The server replaces every value by its mean over the
round's clients that hold it, equally weighted; the head's rows only over clients that have examples
of the class. What nobody holds stays as it is.

Rates: fixed by client, or with `draw = "dynamic"` drawn anew in every round.

Scalars: the parameters of the part, about r^2 |w|, up and down. Evaluated: the client's part of the
network, before local training.

Departures: the paper's server asks all clients, after training, for BatchNorm's statistics under
the aggregated network, and tests that; here each client computes those of its own part from its own
training examples, which costs no exchange and one forward pass over them in rounds that evaluate.
In evaluation all logits count. The scaler stands after every convolution, also in shortcuts.
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
    """Options of HeteroFL: those of the family, see `WidthConfig`."""


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: the client's part of the network."""
ClientState = PartClientState
ServerState = PartServerState


class Client(WidthClient):
    """Client half: trains the first channels."""

    parts = Windows()


class Server(WidthServer):
    """Server half: the mean over holders, the first channels' most of all."""

    parts = Windows()


METHOD = register(
    __name__,
    summary="clients train the first channels of one wide network, each as many as it can",
    training=Training(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
    common_feature_dim=False,
    evaluated_model="global",
    one_network=True,
    reads=("image",),
    refuses=unfit_options,
)
