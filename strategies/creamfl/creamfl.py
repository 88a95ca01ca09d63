"""CreamFL: image, text and multimodal clients teach a server's two towers, and learn from them.

Yu et al., Multimodal Federated Learning via Contrastive Representation Ensemble (ICLR 2023), and
the authors' code. All hold P public pairs of an image and its caption. Clients have tasks and
models of their own: images, text, or pairs of both (task `retrieval`). Of a round:

1. The server sends its features Z_I, Z_T (P, d) of the public pairs.
2. A client trains on its own task; where an example has one class with a margin of 4 on the true
   logit and 0.5 times a term that keeps the classes' weights apart. Then it makes steps on the
   public pairs, on 0.5 (inter + intra): inter finds an item's pair among all features of the other
   side, intra pulls its feature to the server's of the same side and pushes it from what it was
   before the round (`contrast.py`). It sends its features of what it reads: images, texts or both.
3. The server weights every item's features over clients by how well they find their pair among its
   own of the other side, and its towers learn the means, by 0.3 times the squared error. Then it
   trains on the pairs themselves, by InfoNCE between both sides (`learning.py`).

With `alignment = "muscle"` FedMuscle's loss takes the place of contrast and aggregation: a client
aligns its features with M others of the same pair, drawn anew for every batch from the server's two
and what other clients sent in the last round; each tower of the server with M of the clients'.

Scalars: 2 P d down, P d up, 2 P d of multimodal clients; with "muscle" M P d down. Evaluated:
clients' own models on their own tasks, and the server's model by R@1 both ways on `held_out` pairs
that follow the public ones, which no client is given. The server holds one client's features at a
time; with "muscle" those of a whole round.

Departures: a client's E epochs come before its `public_epochs` passes, not in turn. The server's
first training is in round 1, before anything is sent. Its own loss is InfoNCE; the authors' is a
soft contrastive one with learned offsets. Optimisers of public steps and of the server start anew
in every round. BatchNorm of clients keeps local statistics in public steps. By default the towers
are small ones, trained at the parser's 2e-4, and clients take SGD at 0.01; the authors fine-tune
ResNet-101 and BERT at 1e-5, and clients' pretrained encoders at 1e-4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data import CAPTIONED_DATASETS
from data.tasks import task_name
from models import ModelError, PairModel, TaskModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import AUTO, ConfigError, option
from strategies.base.payload import PayloadError, array
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext, ServerHalf, ServerScores
from strategies.base.treatments import UNIT_ROWS
from strategies.common.public import check_unit_rows
from strategies.common.training import train_epochs
from strategies.creamfl.contrast import IMAGES, SIDES, TEXTS, PublicPairs, local_loss
from strategies.creamfl.draws import drawn_features
from strategies.creamfl.learning import Agreement, ServerLearning
from strategies.creamfl.server_model import (
    HELD_OUT,
    first_towers,
    held_out_pairs,
    recalls_on,
    server_sides,
    tower_names,
    towers,
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of CreamFL; defaults are the authors' where the module's head does not say otherwise.

    Attributes
    ----------
    alignment : str
        "contrast": inter and intra contrast, and global-local aggregation; "muscle": FedMuscle's
        loss in place of both.
    server_image_model, server_text_model : str
        The server's two towers.
    margin, centre : float
        Of a client's loss where an example has one class: what the true logit is lowered by, and
        the weight of the term on the classes' weights.
    contrast_weight, contrast_temperature : float
        Weight of inter plus intra contrast, and tau of both.
    public_epochs : int
        A client's passes over the public pairs in a round.
    batch_size : int or "auto"
        Public pairs in a step, of clients and server; auto: 128, with muscle 32.
    distil_weight : float
        Weight of the squared error to the clients' aggregated features.
    server_epochs : int
        Passes of each of the server's two trainings in a round.
    server_lr : float
        Of the server's AdamW.
    server_temperature : float
        tau of the server's InfoNCE.
    users : int
        M, with muscle: how many others' features an item is aligned with.
    temperature, temperature_others : float
        tau^(N) and tau^(N-1) of the Muscle loss.
    held_out : int
        Pairs that only the server has, on which its model is scored; 0: no score.
    """

    alignment: str = option("contrast", "muscle")
    server_image_model: str = option("cnn5", hint="the name of a model for images")
    server_text_model: str = option("text-small", hint="the name of a model for text")
    margin: float = option(4.0, minimum=0)
    centre: float = option(0.5, minimum=0)
    contrast_weight: float = option(0.5, above=0)
    contrast_temperature: float = option(0.5, above=0)
    public_epochs: int = option(1, minimum=1)
    batch_size: int | str = option(AUTO, kind=int, minimum=2)
    distil_weight: float = option(0.3, above=0)
    server_epochs: int = option(1, minimum=1)
    server_lr: float = option(2e-4, above=0)
    server_temperature: float = option(0.07, above=0)
    users: int = option(3, minimum=1)
    temperature: float = option(0.2, above=0)
    temperature_others: float = option(0.15, above=0)
    held_out: int = option(500, minimum=0)

    def __post_init__(self) -> None:
        if self.temperature_others >= self.temperature:
            raise ConfigError(
                f"creamfl.temperature-others = {self.temperature_others:g}: expected a number "
                f"below creamfl.temperature, {self.temperature:g}"
            )

    @property
    def muscle(self) -> bool:
        """Whether the Muscle loss takes the place of contrast and aggregation."""
        return self.alignment == "muscle"

    @property
    def size_of_batches(self) -> int:
        """Public pairs in a step, resolved."""
        if self.batch_size == AUTO:
            return 32 if self.muscle else 128
        return int(self.batch_size)


@dataclasses.dataclass
class Uplink:
    """What a client sends: its features of the public images, of the texts, or of both."""

    images: NDArray[np.float32] = array("i", "d", protect=UNIT_ROWS)
    texts: NDArray[np.float32] = array("t", "d", protect=UNIT_ROWS)


@dataclasses.dataclass
class Downlink:
    """The server's features of both sides; with "muscle" M others' features (m, P, d) instead."""

    images: NDArray[np.float32] = array("i", "d")
    texts: NDArray[np.float32] = array("t", "d")
    others: NDArray[np.float32] = array("m", "p", "d")


@dataclasses.dataclass
class ServerState:
    """The two towers, and features (P, d) that the next round's downlinks are made of.

    By "server/images" and "server/texts"; with "muscle" also by "<client>/<side>".
    """

    model: dict[str, Tensor]
    features: dict[str, Tensor]


@dataclasses.dataclass
class ClientState:
    """The personal model: a `PairModel` of a multimodal client."""

    model: TaskModel


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: the own task, then contrast or alignment on the public pairs."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_task_model())

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        model, pairs = state.model, PublicPairs(context, state.model)
        before = {} if context.config.muscle else pairs.represent()
        metrics = train_epochs(context, [model], local_loss(context, model))
        if context.config.muscle:
            further = pairs.align(downlink.others)
        else:
            further = pairs.contrast({s: getattr(downlink, s) for s in SIDES}, before)
        nothing = np.empty((0, context.dims["d"]), dtype=np.float32)
        found = dict.fromkeys(SIDES, nothing) | pairs.represent()
        return Uplink(**found), {**further, **metrics, "flops": metrics["flops"] + further["flops"]}

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images)}


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: two towers that learn from public pairs and from what clients make of them."""

    def check_run(self, run: RunConfig) -> tuple[str, ...]:
        try:
            tower_names(run)
        except ModelError as error:
            keys = "creamfl.server-image-model, creamfl.server-text-model"
            raise ConfigError(f"{keys}: {error}") from error
        return ()

    def initial_state(self, context: ServerContext) -> ServerState:
        """Draw the towers, and load the public pairs once, before anything is sent."""
        return ServerState(first_towers(context), {})

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink | None:
        """Return the server's features to all; with "muscle" others' features to each."""
        if not state.features:
            self._learn(context, state, {}, {})
        empty = np.empty((0, context.dims["d"]), dtype=np.float32)
        if not context.config.muscle:
            z = {side: state.features[f"server/{side}"].numpy() for side in SIDES}
            return Downlink(**z, others=empty.reshape(0, 0, context.dims["d"]))
        if client is None:
            return None
        own = f"{client.client_id}/"
        pool = {key: item for key, item in state.features.items() if not key.startswith(own)}
        return Downlink(empty, empty, drawn_features(context, pool, str(client.client_id)))

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        task = task_name(context.clients[update.client_id].task)
        reads = {"text": (TEXTS,), "retrieval": SIDES}.get(task, (IMAGES,))
        for side in SIDES:
            z = getattr(update.uplink, side)
            wanted = context.run.public_size if side in reads else 0
            if len(z) != wanted:
                raise PayloadError(f"{side}: {len(z)} rows, {wanted} expected of task {task}")
            check_unit_rows(side, z, context.run)

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        others = {IMAGES: state.features["server/texts"], TEXTS: state.features["server/images"]}
        means = {side: Agreement(others[side]) for side in SIDES}
        received: dict[str, Tensor] = {}
        for update in updates:
            for side in SIDES:
                z = getattr(update.uplink, side)
                if len(z) and context.config.muscle:
                    received[f"{update.client_id}/{side}"] = torch.tensor(z)
                elif len(z):
                    means[side].add(z)
        targets = {side: mean.target() for side, mean in means.items()}
        known = {side: target for side, target in targets.items() if target is not None}
        return self._learn(context, state, known, received)

    def _learn(
        self,
        context: ServerContext,
        state: ServerState,
        targets: Mapping[str, Tensor],
        received: Mapping[str, Tensor],
    ) -> dict[str, float]:
        """Train the towers on what clients sent, then on the pairs; keep the new features."""
        model = towers(context, state.model)
        learning, metrics = ServerLearning(context, model, server_sides(context, model)), {}
        if targets:
            metrics["server_loss_distil"] = learning.towards(targets)
        if received:
            metrics["server_loss_muscle"] = learning.aligned(received)
        metrics["server_loss_pairs"] = learning.alone()
        trained = model.state_dict().items()
        state.model = {name: item.detach().cpu().contiguous() for name, item in trained}
        own = {f"server/{side}": z for side, z in learning.features().items()}
        state.features = {**own, **received}
        return metrics

    def score_basis(self, context: ServerContext) -> str:
        return f"{len(held_out_pairs(context)):,} pairs: {HELD_OUT}"

    def score(self, context: ServerContext, state: ServerState) -> ServerScores:
        """Return R@1 both ways and their mean on the held-out pairs."""
        model: PairModel = towers(context, state.model)
        forth, back = recalls_on(context, model)
        values = {"recall": (forth + back) / 2, "recall_i2t": forth, "recall_t2i": back}
        return ServerScores(values, context.config.held_out)


def _no_captions(run: RunConfig) -> str | None:
    """Return what is wrong with the public data; captions that COCO lacks show on loading."""
    if run.public_dataset in CAPTIONED_DATASETS:
        return None
    return (
        f"public-dataset = {run.public_dataset!r}: its items are not images with captions, "
        f"and creamfl needs both; expected {' or '.join(CAPTIONED_DATASETS)}"
    )


METHOD = register(
    __name__,
    summary="image, text and multimodal clients teach a two-tower server by public pairs' features",
    training=Training(optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=5e-5),
    evaluate_when="post",
    any_task=True,
    task_models=True,
    pairs=True,
    public_data=True,
    refuses=_no_captions,
    server_score="recall",
    server_scored_on=HELD_OUT,
)
