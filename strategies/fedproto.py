"""FedProto: federated prototype learning across heterogeneous clients.

AAAI 2022, arXiv 2105.00243. Clients send the mean representation of each of their classes; the
server averages them by class; every client pulls its representations towards the global means.
Only the representation width d is common: extractors and heads stay private.

Uplink, per participant and round: one prototype (d,) for each class the client has, with class
ids, and with `prototype-mean = "weighted"` example counts; the paper counts |C_k| * d. Downlink, to
everyone: the global prototypes of the classes that have one, at most C * d. Private: the whole
model.

Order of a round on a client: keep the prototypes received; train extractor and head with cross
entropy and the prototype term; compute prototypes in evaluation mode over all training examples;
upload. The server holds one prototype per class, no model.

Evaluation: a sample belongs to the class of the nearest global prototype in L2 ("accuracy"); the
head's prediction is recorded beside it ("accuracy_head"). `evaluate-by = "head"` swaps the two
("accuracy" is the head's, "accuracy_prototype" the prototypes'). As long as the server has no
prototype at all, in round 1, "accuracy" is the head's in either case, and there is no
"accuracy_prototype".

Where sources disagree or this departs from them: the paper weights a client's prototype by its
examples of the class, the released code averages plainly; plain is the default here (option
`prototype-mean`). HtFLlib collects prototypes from training-mode forwards of all local epochs,
while the model still changes; here they are collected in one clean pass afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models import SplitModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import register
from strategies.base.options import option
from strategies.base.payload import PayloadError, array
from strategies.base.server import ServerContext, ServerHalf
from strategies.common.prototypes import (
    ClassAverage,
    class_means,
    held_classes,
    prototype_loss,
    prototype_predictions,
    spread_by_class,
)
from strategies.common.robust import class_average
from strategies.common.training import collect_representations, train_epochs


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedProto; defaults are the authors'.

    Attributes
    ----------
    prototype_weight : float
        lambda, the weight of the prototype term. The authors use 1, HtFLlib's benchmark 10.
    prototype_mean : str
        How the server averages a class over clients: "uniform" (released code) counts every
        client equally, "weighted" (paper) by its number of examples of the class.
    evaluate_by : str
        What "accuracy" means: the nearest "prototype", or the "head".
    """

    prototype_weight: float = option(1.0, minimum=0)
    prototype_mean: str = option("uniform", "weighted")
    evaluate_by: str = option("prototype", "head")


@dataclasses.dataclass
class Uplink:
    """What a participant sends: its prototypes p_{k,c}; for a weighted mean, their examples."""

    class_ids: NDArray[np.int64] = held_classes()
    prototypes: NDArray[np.float32] = array("m", "d")
    counts: NDArray[np.int64] = array(
        "w", dtype="int64", counted=False, minimum=1, degree=0,
        absent_with=("prototype_mean", "uniform"),
    )  # fmt: skip


@dataclasses.dataclass
class Downlink:
    """What every client receives: the global prototypes P_c of the classes that have one."""

    class_ids: NDArray[np.int64] = array(
        "m", dtype="int64", counted=False, minimum=0, below="C", unique=True
    )
    prototypes: NDArray[np.float32] = array("m", "d")


@dataclasses.dataclass
class ServerState:
    """The global prototypes, (C, d), and which of them exist, (C,) bool."""

    prototypes: Tensor
    known: Tensor


@dataclasses.dataclass
class ClientState:
    """The personal model, and the run's `evaluate-by`, which prediction needs."""

    model: SplitModel
    evaluate_by: str


def mean_prototypes(
    uplinks: Iterable[Uplink], average: ClassAverage, kind: str
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Average prototypes over the clients that hold a class.

    Parameters
    ----------
    uplinks : iterable of Uplink
        Read once; of the plain average only sums by class are kept.
    average : ClassAverage
        An empty one, over C classes and width d.
    kind : str
        "uniform": (1/|N_c|) sum_k p_{k,c}. "weighted": sum_k n_{k,c} p_{k,c} / sum_k n_{k,c}.

    Returns
    -------
    tuple of ndarray
        The classes received (m,), ascending, and their means (m, d).
    """
    for uplink in uplinks:
        counts = torch.tensor(uplink.counts) if kind == "weighted" else None
        average.add(torch.tensor(uplink.class_ids), torch.tensor(uplink.prototypes), counts)
    class_ids, means, _ = average.result()
    return class_ids, means


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: cross entropy and pull to the global prototypes, then new prototypes."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model(), context.config.evaluate_by)

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        model, weight = state.model, context.config.prototype_weight
        table, known = spread_by_class(
            downlink.class_ids, downlink.prototypes, context.data.num_classes, context.device
        )

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            features = model.features(images)
            pull = prototype_loss(features, labels, table, known)
            return {
                "loss_ce": F.cross_entropy(model.head(features), labels),
                "loss_prototype": weight * pull,
            }

        metrics = train_epochs(context, [model], loss)
        class_ids, prototypes, counts = class_means(*collect_representations(context, model))
        weighted = context.config.prototype_mean == "weighted"
        return Uplink(class_ids, prototypes, counts if weighted else counts[:0]), metrics

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return prototype_predictions(
            state.model, images, downlink.class_ids, downlink.prototypes, state.evaluate_by
        )


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: one running mean per class; a class nobody sent keeps its last prototype."""

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        sent, weighted = update.uplink, context.config.prototype_mean == "weighted"
        expected = len(sent.class_ids) if weighted else 0
        if len(sent.counts) != expected:
            raise PayloadError(f"counts: {len(sent.counts)} values, expected {expected}")
        if sum(sent.counts.tolist()) > update.num_examples:
            raise PayloadError("counts: they sum to more than num-examples")

    def initial_state(self, context: ServerContext) -> ServerState:
        classes, width = context.dims["C"], context.dims["d"]
        return ServerState(torch.zeros(classes, width), torch.zeros(classes, dtype=torch.bool))

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink:
        class_ids = state.known.nonzero().flatten()
        return Downlink(class_ids.numpy(), state.prototypes[class_ids].numpy())

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        average = class_average(context.run, context.dims["C"], context.dims["d"])
        class_ids, means = mean_prototypes(
            (update.uplink for update in updates), average, context.config.prototype_mean
        )
        received = torch.from_numpy(class_ids)
        prototypes, known = state.prototypes.clone(), state.known.clone()
        prototypes[received] = torch.from_numpy(means)
        known[received] = True
        state.prototypes, state.known = prototypes, known
        return {"classes_received": float(len(received)), "classes_known": float(known.sum())}


METHOD = register(
    __name__,
    summary="clients pull representations towards the federation's mean ones of each class",
    averages=True,
)
