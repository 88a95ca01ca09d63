"""FD: federated distillation of the mean logits of every class.

NeurIPS 2018 workshop on machine learning on devices, arXiv 1811.11479. While it trains, a client
averages its logits by true class; the server averages these over clients; every client distils the
average of the OTHER clients into its model. Only the label space is common: architectures and
representation widths are free, and the uplink does not grow with the model.

Uplink, per participant and round: one mean logit vector (C,) for each class the client has, with
class ids; the paper counts |C_k| * C. Downlink, to each client its own: the mean logits of the
classes that some other client has, at most C * C. Private: the whole model.

Order of a round on a client: keep the mean logits received; train with cross entropy and the
distillation term, adding up the logits of every training forward of all local epochs; upload
their means. The server holds each client's last mean logits; it has no model and trains nothing.

Averages are over clients, not over examples, and for every class over those of the last round in
which anybody sent it: who was away then is not averaged in, and a class nobody sent in a round
keeps its average. Option `average-over = "all"` averages over the last word of every client that
ever held the class; with one client a round it gives a recipient more to learn from. Option
`include-own` adds the recipient's own.

Departures from the released code (HtFLlib), which feeds raw logits as soft labels into the cross
entropy: they are not a distribution, so the softmax of the mean logit is the target here. It
averages all clients, the recipient included; leaving the recipient out is the paper's rule.
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
from strategies.base.payload import array
from strategies.base.server import ServerContext, ServerHalf
from strategies.common.prototypes import ClassAverage, held_classes, spread_by_class
from strategies.common.robust import class_average
from strategies.common.training import train_epochs


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FD; defaults are HtFLlib's weight and the paper's average.

    Attributes
    ----------
    distillation_weight : float
        lambda, the weight of the distillation term.
    include_own : bool
        Whether a client's own mean logits take part in the average it receives.
    average_over : str
        "round": the clients of the last round in which the class was sent; "all": the last word
        of every client that ever sent it.
    """

    distillation_weight: float = option(1.0, minimum=0)
    include_own: bool = option(False)
    average_over: str = option("round", "all")


@dataclasses.dataclass
class Uplink:
    """What a participant sends: its mean logits by true class."""

    class_ids: NDArray[np.int64] = held_classes()
    logits: NDArray[np.float32] = array("m", "C")


@dataclasses.dataclass
class Downlink:
    """What one client receives: G_{k,c} of the classes that have one for it."""

    class_ids: NDArray[np.int64] = array(
        "m", dtype="int64", counted=False, minimum=0, below="C", unique=True
    )
    logits: NDArray[np.float32] = array("m", "C")


@dataclasses.dataclass
class ServerState:
    """What every client sent last, by client id, and its sums over clients.

    Attributes
    ----------
    class_ids, logits : dict of str to Tensor
        A client's classes (m,) and their mean logits (m, C).
    rounds : dict of str to Tensor
        When the client sent them, () int64.
    newest : Tensor
        The last round in which anybody sent a class, (C,) int64; -1 for never.
    sums : Tensor
        Sum of the averaged mean logits of a true class, (C, C) float64.
    holders : Tensor
        How many clients are in that sum, (C,) int64.
    """

    class_ids: dict[str, Tensor]
    logits: dict[str, Tensor]
    rounds: dict[str, Tensor]
    newest: Tensor
    sums: Tensor
    holders: Tensor


@dataclasses.dataclass
class ClientState:
    """The personal model."""

    model: SplitModel


def newest_rounds(class_ids: dict[str, Tensor], rounds: dict[str, Tensor], classes: int) -> Tensor:
    """Return the last round in which anybody sent a class, (C,) int64; -1 for never.

    Parameters
    ----------
    class_ids, rounds : dict of str to Tensor
        By client id: classes (m,) and the round in which they were sent, ().
    classes : int
        C.
    """
    newest = torch.full((classes,), -1, dtype=torch.int64)
    for client, ids in class_ids.items():
        newest[ids] = newest[ids].maximum(rounds[client])
    return newest


def sum_over_clients(
    class_ids: dict[str, Tensor], logits: dict[str, Tensor], classes: int
) -> tuple[Tensor, Tensor]:
    """Return the sums over clients (C, C), float64, and the number of holders (C,).

    Parameters
    ----------
    class_ids, logits : dict of str to Tensor
        By client id: classes (m,) and mean logits (m, C).
    classes : int
        C.
    """
    sums = torch.zeros(classes, classes, dtype=torch.float64)
    holders = torch.zeros(classes, dtype=torch.int64)
    # In the order of ids, so that sums do not depend on who joined when.
    for client in sorted(class_ids, key=int):
        sums[class_ids[client]] += logits[client].double()
        holders[class_ids[client]] += 1
    return sums, holders


def leave_one_out(
    sums: Tensor, holders: Tensor, own_ids: Tensor, own_logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the classes that other clients hold, (m,), and their mean logits, (m, C) float32.

    Parameters
    ----------
    sums, holders : Tensor
        Over all clients, (C, C) float64 and (C,).
    own_ids, own_logits : Tensor
        What the recipient sent itself, (n,) and (n, C); n = 0 leaves nothing out.
    """
    others, count = sums.clone(), holders.clone()
    others[own_ids] -= own_logits.double()
    count[own_ids] -= 1
    held = count.nonzero().flatten()
    return held, (others[held] / count[held].unsqueeze(1)).float()


def distillation_loss(outputs: Tensor, labels: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Return CE(out, softmax(G_y)), the mean over the whole batch.

    A sample whose class has no global mean logit contributes 0 and still counts in the mean.

    Parameters
    ----------
    outputs, labels : Tensor
        Logits, (B, C), and y, (B,).
    targets, known : Tensor
        softmax(G), (C, C), rows by true class, and which rows are known, (C,) bool.
    """
    by_sample = -(targets[labels] * F.log_softmax(outputs.float(), dim=1)).sum(dim=1)
    return (by_sample * known[labels]).mean()


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: cross entropy and distillation, adding up logits by class on the way."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model())

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        classes, weight = context.data.num_classes, context.config.distillation_weight
        table, known = spread_by_class(downlink.class_ids, downlink.logits, classes, context.device)
        targets = table.softmax(dim=1)
        average = ClassAverage(classes, classes, context.device)

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            outputs = state.model(images)
            average.add(labels, outputs)
            distilled = distillation_loss(outputs, labels, targets, known)
            return {
                "loss_ce": F.cross_entropy(outputs, labels),
                "loss_distillation": weight * distilled,
            }

        metrics = train_epochs(context, [state.model], loss)
        class_ids, logits, _ = average.result()
        return Uplink(class_ids, logits), metrics

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images)}


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: keeps every client's last mean logits, sends each what the others know."""

    def initial_state(self, context: ServerContext) -> ServerState:
        classes = context.dims["C"]
        never = torch.full((classes,), -1, dtype=torch.int64)
        return ServerState({}, {}, {}, never, *sum_over_clients({}, {}, classes))

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink | None:
        if client is None:
            return None  # each is told what the others know
        if context.run.robust_mean != "off":
            return Downlink(*self._robust_others(context, state, str(client.client_id)))
        own_ids, own_logits = self._averaged(context, state, str(client.client_id))
        if context.config.include_own:
            own_ids, own_logits = own_ids[:0], own_logits[:0]
        held, means = leave_one_out(state.sums, state.holders, own_ids, own_logits)
        return Downlink(held.numpy(), means.numpy())

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        classes = context.dims["C"]
        for update in updates:
            client = str(update.client_id)
            state.class_ids[client] = torch.tensor(update.uplink.class_ids)
            state.logits[client] = torch.tensor(update.uplink.logits)
            state.rounds[client] = torch.tensor(context.server_round)
        state.newest = newest_rounds(state.class_ids, state.rounds, classes)
        averaged = {c: self._averaged(context, state, c) for c in state.class_ids}
        for client in [c for c, (ids, _) in averaged.items() if not len(ids)]:
            # Everything this client sent has been sent later by others: it is not needed again.
            for table in (state.class_ids, state.logits, state.rounds, averaged):
                del table[client]
        ids = {client: pair[0] for client, pair in averaged.items()}
        logits = {client: pair[1] for client, pair in averaged.items()}
        state.sums, state.holders = sum_over_clients(ids, logits, classes)
        return {"clients_known": float(len(state.class_ids))}

    def _robust_others(
        self, context: ServerContext, state: ServerState, own: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the classes that others hold, (m,), and the robust means of their logits, (m, C).

        These cannot be had from sums, so that a round takes time with the square of the clients.
        """
        average = class_average(context.run, context.dims["C"], context.dims["C"])
        for other in sorted(state.class_ids, key=int):
            if other != own or context.config.include_own:
                average.add(*self._averaged(context, state, other))
        held, means, _ = average.result()
        return held, means

    def _averaged(
        self, context: ServerContext, state: ServerState, client: str
    ) -> tuple[Tensor, Tensor]:
        """Return a client's class ids (m,) and mean logits (m, C) that the averages contain."""
        if client not in state.class_ids:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, context.dims["C"])
        ids, logits = state.class_ids[client], state.logits[client]
        if context.config.average_over == "all":
            return ids, logits
        kept = state.newest[ids] == state.rounds[client]
        return ids[kept], logits[kept]


METHOD = register(
    __name__,
    summary="clients distil each other's mean logits of every class",
    common_feature_dim=False,
    averages=True,
)
