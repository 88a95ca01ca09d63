"""FedET: small models of unlike architectures teach a larger one on the server, which gives back.

Cho et al., Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated
Learning (IJCAI 2022). The authors' code is not public; where the sources at hand are silent the
choice is this project's, as listed below.

Order of a round on a client: as FedAvg, E epochs of cross entropy from the received weights. On the
server:

1. the mean of the round's clients of every architecture, weighted by n_k;
2. of every public item x and client k, s_k(x) = softmax(f_k(x)), with the confidence v_k(x), the
   variance of s_k(x) over the classes. Consensus: s = sum_k v_k s_k / sum_k v_k, label y = argmax
   s. Diversity: s_div, the same mean over the clients whose argmax is not y;
3. the server's model minimises CE(f(x), y) + lambda KL(s_div || softmax(f(x))), the second term
   over the items on which some client disagrees;
4. its head, W (C, d) and b (C,), replaces that of every architecture.

Scalars: |w_k| up and down. Evaluated: every architecture's model with the server's head, before
local training; and the server's own model, which never leaves it, by the server on the official
test examples (`test-split = "global"`). `server_agreement` is the share of the public items that it
labels y. The server holds one client's model at a time, and of the s_k sums by label that was
predicted, (P, C, C), in a file that takes up disk only where there is something: both are flat in
the number of clients.

Chosen here: Adam at 1e-3, one pass a round over the public items in batches of 64; the server's
model is drawn from the run's seed and trained on from round to round; v_k = 0 everywhere, which is
a client that knows nothing, counts as equal confidence. Where no `server_model` is named it is the
clients' largest. BatchNorm of the server's model learns from public items. Clients have to have
the public items, too, as with FedDF.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable
from typing import IO

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models import ModelError, model_info
from strategies.base.messages import ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import ConfigError, option
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.run_config import RunConfig
from strategies.base.server import (
    LOSS_AFTER,
    LOSS_BEFORE,
    NotScoredError,
    ServerContext,
    ServerScores,
)
from strategies.common.groups import (
    GroupClient,
    GroupClientState,
    GroupMeans,
    GroupServer,
    GroupServerState,
)
from strategies.common.layerwise import WeightsPayload
from strategies.common.optimizers import make_adam, take_step
from strategies.common.public import PublicItems
from strategies.common.server_models import (
    OFFICIAL_TEST,
    ServerPlace,
    accuracy_on,
    built,
    filled,
    group_of,
    logits_of,
    official_test,
    public_for,
    public_items,
)
from strategies.common.training import TrainingDivergedError
from strategies.common.weights import copied


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedET; `diversity` is the source's, the others are chosen here.

    Attributes
    ----------
    server_model : str
        The server's architecture; "auto": the largest of the clients'.
    mean : str
        Weights of clients in the mean of their weights: n_k ("weighted") or equal ("uniform").
    diversity : float
        lambda, the weight of the second term.
    server_epochs : int
        Passes over the public items in a round; 0 leaves server model and heads alone.
    server_batch_size, server_lr
        Of the server's Adam.
    """

    server_model: str = option("auto", hint="the name of a model, or auto")
    mean: str = option("weighted", "uniform")
    diversity: float = option(0.05, minimum=0)
    server_epochs: int = option(1, minimum=0)
    server_batch_size: int = option(64, minimum=2)
    server_lr: float = option(1e-3, above=0)


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ClientState = GroupClientState


@dataclasses.dataclass
class ServerState(GroupServerState):
    """And the server's model: its architecture's name, and its weights and buffers."""

    server_name: str
    server_model: dict[str, Tensor]


HEAD = ("head.weight", "head.bias")
"""Entries of the head, W (C, d) and b (C,), of the server's model and of every client's."""

Targets = tuple[Tensor, Tensor, Tensor]
"""What the server's model learns of every public item, see `Consensus.targets`."""


class Consensus:
    """Sums over clients of v_k s_k and v_k, by item and predicted label; read once, kept no more.

    Parameters
    ----------
    file : binary file
        An empty one, for (P, C, C) float32: most of it stays zero and takes up no disk.
    items, classes : int
        P and C.
    """

    def __init__(self, file: IO[bytes], items: int, classes: int) -> None:
        shape = (items, classes, classes)
        self._sums = np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
        self._weights = np.zeros((items, classes))

    def add(self, logits: NDArray[np.float32]) -> None:
        """Add a client's logits (P, C)."""
        shares = F.softmax(torch.from_numpy(logits).double(), dim=1).numpy()
        confidence = shares.var(axis=1) + np.finfo(np.float32).tiny
        rows, labels = np.arange(len(shares)), shares.argmax(axis=1)
        self._sums[rows, labels] += (confidence[:, None] * shares).astype(np.float32)
        self._weights[rows, labels] += confidence

    def targets(self) -> Targets:
        """Return y (P,) int64, s_div (P, C) float32, and where some client disagrees, (P,) bool.

        s_div is 0 where none does.
        """
        total = np.stack([item.sum(axis=0, dtype=np.float64) for item in self._sums])
        label = total.argmax(axis=1)
        rows = np.arange(len(label))
        weights = self._weights.copy()
        weights[rows, label] = 0
        left = weights.sum(axis=1)
        others = [
            np.delete(item, own, axis=0).sum(axis=0, dtype=np.float64)
            for item, own in zip(self._sums, label, strict=True)
        ]
        diverse = np.stack(others) / np.where(left > 0, left, 1)[:, None]
        disagree = torch.from_numpy(left > 0)
        return torch.from_numpy(label), torch.from_numpy(diverse).float(), disagree


def transfer_loss(
    logits: Tensor, labels: Tensor, diverse: Tensor, disagree: Tensor, weight: float
) -> Tensor:
    """Return CE(f(x), y) + weight KL(s_div || softmax(f(x))), both averaged over the batch.

    Logits and s_div are (B, C), labels (B,) int64; items on which not `disagree` (B,) bool
    contribute 0 to the second term.
    """
    divergence = F.kl_div(F.log_softmax(logits, dim=1), diverse, reduction="none").sum(dim=1)
    return F.cross_entropy(logits, labels) + weight * (divergence * disagree).mean()


def transfer(
    model: nn.Module,
    items: PublicItems,
    targets: Targets,
    config: Config,
    rng: torch.Generator,
) -> dict[str, float]:
    """Train the server's model in place on `Consensus.targets`; return what is measured."""
    device = next(model.parameters()).device
    labels, diverse, disagree = (item.to(device) for item in targets)
    optimizer = make_adam(torch.optim.Adam, model.parameters(), lr=config.server_lr)
    every = np.arange(len(items), dtype=np.int32)
    fewest = 2 if any(isinstance(layer, _BatchNorm) for layer in model.modules()) else 1

    def measured() -> tuple[float, float]:
        logits = items.outputs(model, every, model)
        loss = transfer_loss(logits, labels, diverse, disagree, config.diversity)
        return loss.item(), (logits.argmax(dim=1) == labels).double().mean().item()

    before, _ = measured()
    model.train()
    for _ in range(config.server_epochs):
        order = torch.randperm(len(items), generator=rng)
        for rows in order.split(config.server_batch_size):
            if len(rows) < fewest:
                continue
            logits = model(items.batch(rows.numpy().astype(np.int32))).float()
            own = rows.to(device)
            loss = transfer_loss(logits, labels[own], diverse[own], disagree[own], config.diversity)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            take_step(optimizer)
    model.eval()
    after, agreement = measured()
    if not np.isfinite(after):
        raise TrainingDivergedError(
            f"fedet: the server's loss became {after}; lower fedet.server-lr = {config.server_lr}"
        )
    return {LOSS_BEFORE: before, LOSS_AFTER: after, "server_agreement": agreement}


class Client(GroupClient):
    """Client half: cross entropy on the local data, from the received weights."""


class Server(GroupServer[ServerState]):
    """Server half: means by architecture, and the larger model that learns from all clients."""

    def check_run(self, run: RunConfig) -> tuple[str, ...]:
        name = run.method_config.server_model
        try:
            if name != "auto":
                model_info(name)
        except ModelError as error:
            raise ConfigError(f"fedet.server-model = {name!r}: {error}") from error
        return ()

    def initial_state(self, context: ServerContext) -> ServerState:
        """Draw all first weights, and load the public items once, before anything is sent."""
        name = _server_name(context)
        info = dataclasses.replace(context.any_client, model=name)
        try:
            with isolated_torch_rng(derive_seed(context.run.seed, SERVER, 0, "server-model")):
                model = built(context.run, info)
        except ModelError as error:
            raise ConfigError(f"fedet.server-model = {name!r}: {error}") from error
        state = ServerState({}, name, copied(model.state_dict()))
        for client in context.clients.values():
            self.add_group(context, state, client)
        public_for(context, context.any_client)
        return state

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        groups = GroupMeans(context, state)
        with tempfile.TemporaryFile(prefix="wildflower-fedet-") as file:
            consensus = Consensus(file, context.run.public_size, context.dims["C"])
            for update in updates:
                info, entries = groups.add(update)
                if context.config.server_epochs:
                    model = filled(context.run, info, entries)
                    consensus.add(logits_of(public_items(context, info), model))
            targets = consensus.targets()
        for group, _, means in groups.by_group():
            state.put(group, means)
        if not context.config.server_epochs:
            return {}
        measured = self._learn(context, state, targets)
        for group in {group_of(info) for info in context.clients.values()}:
            for name in HEAD:
                if f"{group}/{name}" in state.weights:
                    state.weights[f"{group}/{name}"] = state.server_model[name].clone()
        return measured

    def score_basis(self, context: ServerContext) -> str:
        if not context.config.server_epochs:
            raise NotScoredError("fedet.server-epochs = 0 never trains it; set 1 or more")
        test = official_test(context, _server_name(context))
        return f"{len(test):,} examples: {OFFICIAL_TEST}, {context.run.dataset}"

    def score(self, context: ServerContext, state: ServerState) -> ServerScores:
        """Return the accuracy of the server's model."""
        info = dataclasses.replace(context.any_client, model=state.server_name)
        model = filled(context.run, info, state.server_model)
        test = official_test(context, state.server_name)
        accuracy = accuracy_on(test, model, ServerPlace(context.run))
        return ServerScores({"accuracy": accuracy}, len(test))

    def _learn(
        self, context: ServerContext, state: ServerState, targets: Targets
    ) -> dict[str, float]:
        """Train the server's model on what clients agree and disagree on."""
        info = dataclasses.replace(context.any_client, model=state.server_name)
        model = filled(context.run, info, state.server_model)
        measured = transfer(
            model, public_items(context, info), targets, context.config,
            context.generator("transfer"),
        )  # fmt: skip
        trained = model.state_dict().items()
        state.server_model = {name: item.detach().cpu().contiguous() for name, item in trained}
        return measured


def _server_name(context: ServerContext) -> str:
    """Return the architecture of a server's model that is yet to be drawn."""
    largest = max(context.clients.values(), key=lambda info: (info.parameters, info.model))
    name: str = context.config.server_model
    return largest.model if name == "auto" else name


METHOD = register(
    __name__,
    summary="unlike small models teach a larger one on the server, whose head they get",
    training=Training(optimizer="sgd", lr=0.01),
    evaluated_model="global",
    public_data=True,
    server_score="accuracy",
    server_scored_on=OFFICIAL_TEST,
    shares_reader=True,
    averages=True,
)
