"""FedMuscle: users of unlike models and tasks align their representations of public items.

Source: FedMuscle (ICLR 2026, arXiv 2602.01626). Local training is each user's own task. Then, in T
contrastive steps on batches I_t of a public, unlabelled set that all users hold item by item, every
user moves its representations z_i^n towards those of M other users by the Muscle loss, an N-tuple
contrastive loss. The theta^n = (w^n, phi^n) of a user is its `TaskModel`: w^n is encoder and
projection, phi^n the task's head.

A round takes two exchanges (`exchange = "batch"`): after local training every user sends the
representations of all T batches (T B, d); then it receives those of M users (M, T B, d), drawn
anew for every user and batch, and makes its T steps. The others' representations are up to T steps
old. With `exchange = "step"` there is one exchange for each step and T + 1 in all: message t
carries the others' representations of I_t and the indices of I_{t+1}.

Where the code departs from the paper, and why:
- The paper's server sends the sums of all B^M tuples and their weights, (d + 1) B^M numbers a
  step. The M matrices give the same loss exactly in M B d numbers.
- E, T, R, the optimiser, and where the projection sits are not in the sources: one local epoch,
  one pass over the public set, AdamW, the head reads the encoder's feature (`projection`).
- Users are evaluated after local training (`evaluate_after`): when is not in the sources.
- BatchNorm stays in evaluation mode in the contrastive steps, so that public statistics do not
  replace local ones.
- `loss` selects what the paper compares with: pairwise InfoNCE, the Gramian volume, and SimCLR,
  which needs no communication: a round is then one exchange without arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models import TaskModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import AUTO, ConfigError, option
from strategies.base.payload import PayloadError, array
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext, ServerHalf
from strategies.base.state import Transient
from strategies.base.treatments import UNIT_ROWS
from strategies.common.losses import task_loss
from strategies.common.public import PublicInputs, check_unit_rows
from strategies.common.training import train_epochs
from strategies.fedmuscle.alignment import Alignment
from strategies.fedmuscle.draws import items_of, partners, public_batches


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedMuscle; defaults as the sources have them, else see the module's head.

    Attributes
    ----------
    loss : str
        "muscle", or one of the alternatives "pairwise", "gramian", "simclr".
    exchange : str
        "batch": two exchanges a round; "step": T + 1.
    users : int
        M, how many others' representations a user gets; clipped to how many there are.
    batch_size : int
        B, public items in a step.
    steps : int
        T, contrastive steps in a round; 0: one pass over the public set, floor(|D| / B).
    temperature : float or "auto"
        tau^(N) of the Muscle loss; of the others, tau. auto: 0.2 for muscle and pairwise, 0.07
        for gramian, 0.5 for simclr.
    temperature_others : float
        tau^(N-1) of the Muscle loss, below `temperature`.
    label_smoothing : float
        Of the Gramian loss; its authors' code uses 0.1.
    public_lr : float or "auto"
        Learning rate of AdamW in the contrastive steps; its weight decay is the run's. auto: 0.0001
        for encoders with pretrained weights, 0.001 for those that start from nothing.
    evaluate_after : str
        With `evaluate-when = "post"`, whether users are evaluated after their "local" training, or
        after the "alignment", which has moved w^n away from what the head phi^n knows.
    projection : str
        "side": the head reads the encoder's feature, the projection serves the alignment alone;
        "in-path": the head reads the projection. Not for segmentation.
    """

    loss: str = option("muscle", "pairwise", "gramian", "simclr")
    exchange: str = option("batch", "step")
    users: int = option(3, minimum=1)
    batch_size: int = option(32, minimum=2)
    steps: int = option(0, minimum=0)
    temperature: float | str = option(AUTO, kind=float, above=0)
    temperature_others: float = option(0.15, above=0)
    label_smoothing: float = option(0.0, minimum=0, maximum=0.9)
    public_lr: float | str = option(AUTO, kind=float, above=0)
    evaluate_after: str = option("local", "alignment")
    projection: str = option("side", "in-path")

    def __post_init__(self) -> None:
        if self.loss == "muscle" and self.temperature_others >= self.tau:
            raise ConfigError(
                f"fedmuscle.temperature-others = {self.temperature_others:g}: expected a number "
                f"below fedmuscle.temperature, {self.tau:g}"
            )

    @property
    def tau(self) -> float:
        """The loss's temperature, resolved."""
        usual = {"gramian": 0.07, "simclr": 0.5}
        return usual.get(self.loss, 0.2) if self.temperature == AUTO else float(self.temperature)


@dataclasses.dataclass
class Uplink:
    """What a user sends: the representations of the batches asked for, rows of length 1."""

    representations: NDArray[np.float32] = array("e", "d", protect=UNIT_ROWS)


@dataclasses.dataclass
class Downlink:
    """What a user receives: others' representations to align with, and what to represent next.

    `others` (m, u, d) belong to the items `update_indices` (u,), m users to each; both are empty
    for a user that has no part in these steps. `encode_indices` (e,) are to be represented.
    """

    update_indices: NDArray[np.int32] = array(
        "u", dtype="int32", counted=False, minimum=0, below="P"
    )
    others: NDArray[np.float32] = array("m", "u", "d")
    encode_indices: NDArray[np.int32] = array(
        "e", dtype="int32", counted=False, minimum=0, below="P"
    )


@dataclasses.dataclass
class ServerState:
    """What users sent in one exchange of a round, (e, d) by client id, and which one that was.

    Only the exchange that follows uses it. It may not come: an exchange that has nobody to ask is
    not aggregated, and what lies here then belongs to other items than those of the next downlink.
    """

    received: Transient[dict[int, NDArray[np.float32]]] = dataclasses.field(default_factory=dict)
    received_in: Transient[tuple[int, int]] = (0, 0)

    def received_before(self, context: ServerContext) -> dict[int, NDArray[np.float32]]:
        """Return what users sent in the exchange before this one, in this round."""
        before = context.server_round, context.exchange - 1
        return self.received if self.received_in == before else {}


@dataclasses.dataclass
class ClientState:
    """theta^n, and AdamW's moments between the exchanges of a round (`exchange = "step"`)."""

    model: TaskModel
    moments: dict[str, Tensor]


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: the own task, then alignment of the representations of public items."""

    def build(self, context: ClientContext) -> ClientState:
        in_path = context.config.projection == "in-path"
        return ClientState(context.build_task_model(in_path=in_path), {})

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        model, public = state.model, PublicInputs(context)
        metrics: dict[str, float] = {}
        if context.exchange == 1:
            metrics = self._local(context, model, public)
            state.moments = {}
        elif len(downlink.others):
            metrics = Alignment(context, model, public).towards(
                downlink.update_indices, downlink.others, state.moments
            )
        if not len(downlink.encode_indices):
            state.moments = {}  # the round's last exchange
        return Uplink(public.represent(model, downlink.encode_indices)), metrics

    def _local(
        self, context: ClientContext, model: TaskModel, public: PublicInputs
    ) -> dict[str, float]:
        """Train on the own task; with SimCLR, whose steps need nobody, align as well."""
        config, own = context.config, task_loss(context.data.task, model)
        if config.loss != "simclr":
            return train_epochs(context, [model], own)
        align = Alignment(context, model, public).with_itself
        batches = public_batches(context.run, context.server_round)
        # Evaluation follows: the steps that belong after the last round's training come first.
        if config.evaluate_after == "local":
            further = align(batches) if context.server_round > 1 else {}
            metrics = train_epochs(context, [model], own)
        else:
            metrics = train_epochs(context, [model], own)
            further = align(batches)
        return {**further, **metrics, "flops": metrics["flops"] + further.get("flops", 0.0)}

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images)}


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: chooses public items and, for every user and step, whom it is aligned with."""

    def initial_state(self, context: ServerContext) -> ServerState:
        return ServerState()

    def check_run(self, run: RunConfig) -> tuple[str, ...]:
        if run.public_size < run.method_config.batch_size:
            raise ConfigError(
                f"public-size = {run.public_size}: expected at least one batch, "
                f"fedmuscle.batch-size = {run.method_config.batch_size}"
            )
        return ()

    def exchanges(self, context: ServerContext) -> int:
        if context.config.loss == "simclr":
            return 1
        by_step = context.config.exchange == "step"
        batches = public_batches(context.run, context.server_round)
        return 1 + (len(batches) if by_step else 1)

    def evaluated_exchange(self, context: ServerContext) -> int:
        after_local = context.config.evaluate_after == "local"
        return 1 if after_local else super().evaluated_exchange(context)

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink | None:
        """Return what an exchange carries; see the module's head."""
        if client is None:
            return None
        update, encode = items_of(context)
        received = state.received_before(context)
        if client.client_id in received and len(received) > 1:
            return Downlink(update, partners(context, received, client.client_id), encode)
        nothing = np.empty((0, 0, context.dims["d"]), dtype=np.float32)
        return Downlink(update[:0], nothing, encode)

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        z = update.uplink.representations
        wanted = len(items_of(context)[1])
        if len(z) != wanted:
            raise PayloadError(f"representations: {len(z)} rows, {wanted} were asked for")
        check_unit_rows("representations", z, context.run)

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        received = {u.client_id: u.uplink.representations for u in updates}
        last = context.exchange == self.exchanges(context)
        state.received = {} if last else received
        state.received_in = context.server_round, context.exchange
        return {"users_aligned": float(len(received))} if last else {}


METHOD = register(
    __name__,
    summary="users of any task align their representations of public items, tuple by tuple",
    training=Training(optimizer="adamw", lr=1e-3),
    evaluate_when="post",
    any_task=True,
    task_models=True,
    public_data=True,
)
