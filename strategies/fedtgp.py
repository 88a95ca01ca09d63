"""FedTGP: trainable global prototypes with adaptive-margin-enhanced contrastive learning.

AAAI 2024, arXiv 2401.03230. As in FedProto, clients send the mean representation of each of their
classes. The server does not average them: it trains a generator, one embedding per class through a
small network, so that every received prototype is nearest to the generated one of its class, by a
margin as wide as the classes are apart. Only the representation width d is common.

Uplink, per participant and round: one prototype (d,) for each class the client has, with class
ids; the paper counts |C_k| * d. Downlink, to everyone: the generated
prototypes of every class that was ever received, at most C * d. Private: the whole model.

Order of a round on a client: train extractor and head with cross entropy and the pull to the
prototypes received; compute prototypes in evaluation mode over all training examples; upload.
Order on the server: margin from the round's means by class; S epochs of SGD on the round's
prototypes. The server holds the generator, C*d + 2*(d^2 + d) parameters, and which classes were
ever received.

Evaluation: a sample belongs to the class of the nearest global prototype in L2 ("accuracy"); the
head's prediction is "accuracy_head". In round 1 there are no prototypes and both are the head's.

Departures from the released code (HtFLlib): classes never received have a generated but untrained
vector; it competes in the server's loss, as there, but is not sent, so it neither pulls a loss nor
is predicted. 1e-12 is added under the square root, whose gradient at zero is infinite. If only
one class was received, there is no gap and the margin is its limit tau. Prototypes come from one
clean pass after training. Classes absent in a round keep what the generator knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from models import SplitModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import register
from strategies.base.options import AUTO, option
from strategies.base.payload import array
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.server import LOSS_AFTER, LOSS_BEFORE, ServerContext, ServerHalf
from strategies.common.optimizers import keep_compiler_out, take_step
from strategies.common.prototypes import (
    class_means,
    distances,
    held_classes,
    prototype_loss,
    prototype_predictions,
    spread_by_class,
)
from strategies.common.training import collect_representations, train_epochs

EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedTGP; defaults are HtFLlib's.

    Attributes
    ----------
    prototype_weight : float
        lambda, the weight of the clients' prototype term.
    margin_limit : float
        tau_m, the largest margin.
    server_epochs : int
        S, passes over the round's prototypes.
    server_lr : float or "auto"
        Of the server's SGD; "auto" is the learning rate of the clients, which HtFLlib's own 0.01
        is there, too.
    server_batch_size : int or "auto"
        Prototypes in a step; "auto" is the batch size of the clients.
    """

    prototype_weight: float = option(10.0, minimum=0)
    margin_limit: float = option(100.0, minimum=0)
    server_epochs: int = option(100, minimum=1)
    server_lr: float | str = option(0.01, kind=float, above=0)
    server_batch_size: int | str = option(AUTO, kind=int, minimum=1)


@dataclasses.dataclass
class Uplink:
    """What a participant sends: the prototypes p_{k,c} of its classes."""

    class_ids: NDArray[np.int64] = held_classes()
    prototypes: NDArray[np.float32] = array("m", "d")


@dataclasses.dataclass
class Downlink:
    """What every client receives: generated prototypes P_c of the classes ever received."""

    class_ids: NDArray[np.int64] = array(
        "m", dtype="int64", counted=False, minimum=0, below="C", unique=True
    )
    prototypes: NDArray[np.float32] = array("m", "d")


class PrototypeGenerator(nn.Module):
    """Generates P_c = F(e_c): an embedding (C, d), then Linear(d, d), ReLU, Linear(d, d).

    Parameters
    ----------
    classes, width : int
        C and d.
    """

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self) -> Tensor:
        """Return the prototypes of all classes, (C, d)."""
        prototypes: Tensor = self.output(F.relu(self.hidden(self.embedding.weight)))
        return prototypes


@dataclasses.dataclass
class ServerState:
    """The prototype generator, and which classes were ever received, (C,) bool."""

    generator: PrototypeGenerator
    received: Tensor


@dataclasses.dataclass
class ClientState:
    """The personal model."""

    model: SplitModel


def adaptive_margin(means: Tensor, limit: float) -> float:
    """Return delta = min(max_c gap_c, tau), gap_c the distance to the nearest other class.

    Parameters
    ----------
    means : Tensor
        Q_c of the classes received, (m, d), m at least 1. The released code gives absent classes
        the smallest gap, which never is the largest, so they need not appear here.
    limit : float
        tau, also the margin where m is 1.
    """
    if len(means) == 1:
        return limit
    gaps = distances(means, means).fill_diagonal_(torch.inf).min(dim=1).values
    return min(float(gaps.max()), limit)


def margin_loss(received: Tensor, labels: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Return the batch mean of CE(-D, c), D_{c'} = ||p - P_{c'}||_2 + delta * [c' = c].

    Parameters
    ----------
    received, labels : Tensor
        Prototypes p of clients, (B, d), and their classes c, (B,).
    prototypes : Tensor
        Generated P, (C, d).
    margin : float
        delta.
    """
    apart = (distances(received, prototypes).square() + EPSILON).sqrt()
    own = F.one_hot(labels, len(prototypes)).to(apart.dtype)
    return F.cross_entropy(-(apart + margin * own), labels)


def train_generator(
    generator: PrototypeGenerator,
    received: Tensor,
    labels: Tensor,
    margin: float,
    *,
    lr: float,
    epochs: int,
    batch_size: int,
    draws: torch.Generator,
) -> float:
    """Train the generator in place by SGD on `margin_loss`.

    Parameters
    ----------
    generator : PrototypeGenerator
        What is trained.
    received, labels : Tensor
        The round's prototypes, (N, d), and their classes, (N,).
    margin, lr, epochs, batch_size
        delta, and settings of the SGD; no batch is dropped.
    draws : torch.Generator
        Shuffles each epoch.

    Returns
    -------
    float
        Mean loss per prototype during the last epoch.
    """
    keep_compiler_out()
    optimizer = torch.optim.SGD(generator.parameters(), lr=lr)
    mean_loss = 0.0
    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(received), generator=draws).split(batch_size):
            loss = margin_loss(received[rows], labels[rows], generator(), margin)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            take_step(optimizer)
            total += loss.item() * len(rows)
        mean_loss = total / len(received)
    return mean_loss


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: cross entropy and pull to the global prototypes, then new prototypes."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model())

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
        class_ids, prototypes, _ = class_means(*collect_representations(context, model))
        return Uplink(class_ids, prototypes), metrics

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return prototype_predictions(state.model, images, downlink.class_ids, downlink.prototypes)


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: trains the generator on the round's prototypes, sends what it generates."""

    def initial_state(self, context: ServerContext) -> ServerState:
        classes, width = context.dims["C"], context.dims["d"]
        with isolated_torch_rng(derive_seed(context.run.seed, SERVER, 0, "prototype-generator")):
            generator = PrototypeGenerator(classes, width)
        return ServerState(generator, torch.zeros(classes, dtype=torch.bool))

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink:
        class_ids = state.received.nonzero().flatten()
        with torch.no_grad():
            prototypes = state.generator()[class_ids]
        return Downlink(class_ids.numpy(), prototypes.numpy())

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        uplinks = [update.uplink for update in updates]
        received = torch.from_numpy(np.concatenate([u.prototypes for u in uplinks]))
        labels = torch.from_numpy(np.concatenate([u.class_ids for u in uplinks]))
        _, means, _ = class_means(received, labels)
        margin = adaptive_margin(torch.from_numpy(means), context.config.margin_limit)
        before = self._loss(state, received, labels, margin)
        loss = self._train(context, state, received, labels, margin)
        after = self._loss(state, received, labels, margin)
        state.received[labels] = True
        losses = {"server_loss": loss, LOSS_BEFORE: before, LOSS_AFTER: after}
        return {**losses, "server_margin": margin}

    @torch.no_grad()
    def _loss(self, state: ServerState, received: Tensor, labels: Tensor, margin: float) -> float:
        return margin_loss(received, labels, state.generator(), margin).item()

    def _train(
        self,
        context: ServerContext,
        state: ServerState,
        received: Tensor,
        labels: Tensor,
        margin: float,
    ) -> float:
        """Train the generator with the run's settings; "auto" ones are those of the clients."""
        config, run = context.config, context.run
        local_lr = context.method.training.lr if isinstance(run.lr, str) else run.lr
        same_batch = config.server_batch_size == AUTO
        return train_generator(
            state.generator,
            received,
            labels,
            margin,
            lr=local_lr if config.server_lr == AUTO else config.server_lr,
            epochs=config.server_epochs,
            batch_size=run.batch_size if same_batch else config.server_batch_size,
            draws=context.generator("server-batches"),
        )


METHOD = register(
    __name__,
    summary="the server trains class prototypes apart by a margin, clients are pulled to them",
)
