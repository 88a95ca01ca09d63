"""FedDF: the server averages within architectures, then teaches every mean what all clients know.

Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning (NeurIPS 2020).

Order of a round on a client: as FedAvg, E epochs of its task's loss from the received weights of
its architecture. On the server:

1. the mean of the round's clients of every architecture, weighted by n_k;
2. of every public item x, the mean logits of the round's clients, z(x) = mean_k f_k(x);
3. for every architecture, Adam on KL(softmax(z(x)) || softmax(f(x))) over batches of public items,
   from the mean of step 1. A share of the items, `holdout`, is not trained on. Training stops when
   the divergence on these has not shrunk for `patience` passes, after `server_epochs` passes at the
   latest; the weights with the smallest one stay, those of step 1 included.

Clients may have unlike tasks: those of one task are an ensemble of their own, and one that is alone
in a round teaches nobody. Of a multi-label task every class is its own Bernoulli variable. Users
that segment are averaged by architecture and not distilled: their logits are maps.

Scalars: |w_k| up and down. Evaluated: every architecture's model, before local training; and by the
server, after distillation, on the official test examples (`test-split = "global"`): the accuracy of
every architecture's, and their mean, each counting alike. The server holds one model at a time,
sums of weights, and one (P, C) mean of logits a task, however many clients there are; with
`robust-mean` what all of them sent.

Departures: the paper stops on labelled validation data of the server, 1e4 steps at most and 1e3
without a gain, 26 and 3 passes over its 50,000 images; here public items have no labels, and
`server_epochs` is 1 by default so that a trial ends. The rate is constant, not annealed.
BatchNorm uses the averaged statistics on public items and keeps them, and dropout is off. Clients
have to have the public items, too: in a simulation their fingerprint tells the server which show no
picture that a client tests on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.server import LOSS_AFTER, LOSS_BEFORE, ServerContext, ServerScores
from strategies.common.groups import (
    AveragingServer,
    GroupClient,
    GroupClientState,
    GroupMeans,
    GroupServerState,
)
from strategies.common.layerwise import WeightsPayload
from strategies.common.optimizers import make_adam, take_step
from strategies.common.public import PublicItems
from strategies.common.robust import mean_over_clients
from strategies.common.server_models import (
    OFFICIAL_TEST,
    ServerPlace,
    accuracy_on,
    filled,
    group_of,
    layout_for,
    logits_of,
    official_test,
    public_for,
    public_items,
)
from strategies.common.weights import RunningMean, copied


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedDF; the paper's are in the module's head.

    Attributes
    ----------
    mean : str
        Weights of clients in the mean of their weights: n_k ("weighted") or equal ("uniform").
    server_epochs : int
        Most passes over the public items in a round; 0 only averages.
    patience : int
        Passes without a smaller divergence on the held-out items after which training stops.
    holdout : float
        Share of the public items, drawn every round, that decide when to stop; at least one.
    server_batch_size, server_lr
        Of the server's Adam.
    """

    mean: str = option("weighted", "uniform")
    server_epochs: int = option(1, minimum=0)
    patience: int = option(3, minimum=1)
    holdout: float = option(0.1, above=0, maximum=0.5)
    server_batch_size: int = option(128, minimum=1)
    server_lr: float = option(1e-3, above=0)


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ClientState = GroupClientState
ServerState = GroupServerState


def divergence(task: str, logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student), averaged over N.

    Parameters
    ----------
    task : str
        A client's task; of a multi-label one classes are independent and averaged over.
    logits, teacher : Tensor
        Logits of student and teacher, (N, C), float32.
    """
    if task.startswith("multilabel"):
        # KL of Bernoulli variables: cross entropy minus the teacher's own.
        target = teacher.sigmoid()
        own = F.binary_cross_entropy_with_logits(teacher, target)
        return F.binary_cross_entropy_with_logits(logits, target) - own
    target = F.log_softmax(teacher, dim=1)
    student = F.log_softmax(logits, dim=1)
    return F.kl_div(student, target, reduction="batchmean", log_target=True)


@dataclasses.dataclass(frozen=True)
class Distilled:
    """How a group's training went: divergences on held-out items, and how many passes it took."""

    before: float
    after: float
    passes: int


def distil(
    task: str,
    student: nn.Module,
    items: PublicItems,
    teacher: Tensor,
    config: Config,
    rng: torch.Generator,
) -> Distilled:
    """Train a group's model on the ensemble's logits (P, C), in place; see the module's head.

    The teacher is where the model is; `rng` draws the held-out items and the batches.
    """
    order = torch.randperm(len(items), generator=rng).numpy().astype(np.int32)
    count = max(1, round(config.holdout * len(order)))
    held, used = order[:count], order[count:]
    optimizer = make_adam(torch.optim.Adam, student.parameters(), lr=config.server_lr)

    def loss_of(rows: NDArray[np.int32]) -> Tensor:
        logits = student(items.batch(rows)).float()
        return divergence(task, logits, teacher[torch.from_numpy(rows).to(teacher.device).long()])

    def held_out() -> float:
        logits = items.outputs(student, held, student)
        wanted = teacher[torch.from_numpy(held).to(teacher.device).long()]
        return divergence(task, logits, wanted).item()

    before = held_out()
    best, best_weights, passes, since = before, copied(student.state_dict()), 0, 0
    while passes < config.server_epochs and since < config.patience:
        shuffled = used[torch.randperm(len(used), generator=rng).numpy()]
        for start in range(0, len(used), config.server_batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss_of(shuffled[start : start + config.server_batch_size]).backward()
            take_step(optimizer)
        passes, since, value = passes + 1, since + 1, held_out()
        if value < best:  # not so where it is NaN
            best, best_weights, since = value, copied(student.state_dict()), 0
    student.load_state_dict(best_weights)
    return Distilled(before, best, passes)


class Client(GroupClient):
    """Client half: the task's loss on the local data, from the received weights."""


class Server(AveragingServer):
    """Server half: means by architecture, and their training on the ensemble's logits."""

    def initial_state(self, context: ServerContext) -> ServerState:
        """Draw the first weights, and load the public items once, before anything is sent."""
        state = super().initial_state(context)
        for info in context.clients.values():
            if context.config.server_epochs and not _segments(info):
                public_for(context, info)
        return state

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        groups = GroupMeans(context, state)
        ensembles: dict[str, tuple[RunningMean, list[int]]] = {}
        for update in updates:
            info, sent = groups.add(update)
            if context.config.server_epochs and not _segments(info):
                model = filled(context.run, info, sent)
                mean, who = ensembles.setdefault(info.task, (mean_over_clients(context.run), []))
                mean.add({"logits": logits_of(public_items(context, info), model)}, 1)
                who.append(update.client_id)
        teachers = {
            task: mean.means()["logits"] for task, (mean, who) in ensembles.items() if len(who) > 1
        }
        done: list[Distilled] = []
        for group, info, means in groups.by_group():
            entries = means
            if info.task in teachers:
                entries, result = _taught(context, info, means, teachers[info.task])
                done.append(result)
            state.put(group, entries)
        return _metrics(done)

    def score_basis(self, context: ServerContext) -> str:
        tests = [official_test(context, info.model) for info in _one_of_each(context).values()]
        return f"{len(tests[0]):,} examples: {OFFICIAL_TEST}, {context.run.dataset}"

    def score(self, context: ServerContext, state: ServerState) -> ServerScores:
        """Return every architecture's accuracy, and their mean."""
        found: dict[str, float] = {}
        for group, info in _one_of_each(context).items():
            names = layout_for(context.run, info).all
            held = {
                n: state.weights[f"{group}/{n}"] for n in names if f"{group}/{n}" in state.weights
            }
            if not held:
                continue  # of a client that has joined and not yet been sent anything
            test = official_test(context, info.model)
            model = filled(context.run, info, held)
            found[f"accuracy_{group}"] = accuracy_on(test, model, ServerPlace(context.run))
        mean = math.fsum(found.values()) / len(found)
        return ServerScores({"accuracy": mean, **found}, len(test))


def _one_of_each(context: ServerContext) -> dict[str, ClientInfo]:
    """Return a client of every architecture, by its name."""
    clients = sorted(context.clients.values(), key=lambda info: info.client_id, reverse=True)
    return dict(sorted({group_of(info): info for info in clients}.items()))


def _segments(info: ClientInfo) -> bool:
    return info.task.startswith("segmentation")


def _taught(
    context: ServerContext, info: ClientInfo, entries: Mapping[str, Tensor], teacher: Tensor
) -> tuple[dict[str, Tensor], Distilled]:
    """Return a group's weights after distillation, and how it went."""
    student = filled(context.run, info, entries)
    device = next(student.parameters()).device
    items, rng = public_items(context, info), context.generator(f"distil-{group_of(info)}")
    result = distil(info.task, student, items, teacher.to(device), context.config, rng)
    trained = {name: item.detach().cpu() for name, item in student.state_dict().items()}
    return {name: trained[name].contiguous() for name in entries}, result


def _metrics(done: Sequence[Distilled]) -> dict[str, float]:
    """Return means over the groups that were taught; nothing where none was."""
    if not done:
        return {}
    return {
        LOSS_BEFORE: math.fsum(item.before for item in done) / len(done),
        LOSS_AFTER: math.fsum(item.after for item in done) / len(done),
        "server_passes": sum(item.passes for item in done) / len(done),
    }


METHOD = register(
    __name__,
    summary="weights are averaged by architecture, then each mean learns all clients' mean logits",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    evaluated_model="global",
    any_task=True,
    public_data=True,
    averages=True,
    server_score="accuracy",
    server_scored_on=OFFICIAL_TEST,
)
