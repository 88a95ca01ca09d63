"""FedKD: mutual distillation of a private teacher and a shared student, sent as low-rank updates.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature
Communications 13, 2022. The teacher is the client's own model, of any architecture; the student
theta is small, common and averaged; its updates travel as truncated SVDs (`low_rank`).

Uplink, per participant and round: for each tensor of theta q (rows + cols + 1) scalars, or the
tensor where that is not less. Downlink: the mean update, compressed in the same way, or all of
theta, see below; the counters hold what was sent (HtFLlib: 0.46 of 924,708 scalars). Private:
teacher, W_h, and the theta last received.

Order of a round on a client: bring theta up to date; train teacher, student and W_h on

    L_t = CE_t + [KL(p_s || p_t) + MSE(r_t, W_h r_s)] / s,    s = CE_t + CE_s
    L_s = CE_s + [KL(p_t || p_s) + MSE(r_t, W_h r_s)] / s

with p softmax probabilities and r representations; upload theta minus the theta received. L_t
moves the teacher, L_s student and W_h. Server: theta <- theta + compressed mean of the updates.
Evaluation: the teacher ("accuracy"); the student stands beside it ("accuracy_student").

In round t a compressed matrix keeps at least rank 1 and the share T_t = T_s + (T_e - T_s) t / T of
its squared singular values, with T = num-rounds unless `energy-rounds` says otherwise.

References: an update serves only who holds the theta that it is relative to. The server's theta
is what the compressed update makes of the last one, and `decompress` gives the same bits on all
machines, so client and server hold equal thetas. Clients that answered in the last round hold its
theta and get the update. All others (in round 1, not sampled, late, failed) get theta whole, at
its full price; with few participants a round that is most. A client whose state was lost refuses
an update that does not fit, and gets theta whole the next time.

Where this departs from public code: both keep rank 0 where only all singular values reach T_t; the
authors' multiplies U by the vector sigma, and passes gradients through s (`detach-scale`) and into
the other's model; HtFLlib compresses theta itself (`compress`), and kernels k by k.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, as_tensor, nn

from models import SplitModel
from models.small import SMALL_MODEL_OF
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.payload import PayloadError, array
from strategies.base.server import ServerContext, ServerHalf
from strategies.base.state import Transient
from strategies.common.robust import mean_over_clients
from strategies.common.small_model import first_small_model, imitation, small_model
from strategies.common.training import train_epochs
from strategies.common.weights import State, StateArrays, load_arrays, mean_states, state_arrays
from strategies.fedkd.low_rank import LowRank, compress, decompress, layout_of, pieces


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedKD; defaults are the authors', the student is HtFLlib's.

    Attributes
    ----------
    small_model : str
        Architecture of the student, see `models.small`; its features are feature-dim wide.
        On sentences the default stands for text-small, on numbers for mlp-small or cnn1d-small.
    detach_scale : bool
        Whether s is a constant; if not, a loss also follows its own model's part of s.
    compress : str
        What is decomposed, on both ways: the "update" of theta, or its "weights".
    energy_start, energy_end : float
        T_s and T_e.
    energy_rounds : int
        T, after which the share stays T_e; 0: `num-rounds`. Of a run that is resumed with more
        rounds it stays what it was: give the number then.
    clip_norm : float
        Largest gradient norm of teacher, student and W_h each; 0 does not clip.
    mean : str
        Weights of the clients on the server: n_k ("weighted"), or equal ("uniform").
    """

    small_model: str = option("fedavgcnn", "cnn5", "cnn1", *SMALL_MODEL_OF.values())
    detach_scale: bool = option(True)
    compress: str = option("update", "weights")
    energy_start: float = option(0.95, above=0, maximum=1)
    energy_end: float = option(0.98, above=0, maximum=1)
    energy_rounds: int = option(0, minimum=0)
    clip_norm: float = option(10.0, minimum=0)
    mean: str = option("weighted", "uniform")

    def in_rounds(self, num_rounds: int) -> Config:
        """Return these options with T as a number, where it matters."""
        varies = self.energy_start != self.energy_end
        total = (self.energy_rounds or num_rounds) if varies else 0
        return dataclasses.replace(self, energy_rounds=total)

    def energy(self, server_round: int, num_rounds: int) -> float:
        """Return T_t of round t; 0 stands for the server's first draw."""
        share = min(server_round / (self.energy_rounds or num_rounds), 1.0)
        return self.energy_start + (self.energy_end - self.energy_start) * share


@dataclasses.dataclass
class Uplink(LowRank):
    """What a participant sends: the update of theta (or theta), compressed."""


@dataclasses.dataclass
class Downlink(LowRank):
    """Theta by the round that made it (0: the first draw); added to `base` if `relative`."""

    relative: NDArray[np.bool_] = array(dtype="bool", counted=False)
    base: NDArray[np.int64] = array(dtype="int64", counted=False, minimum=0)
    number: NDArray[np.int64] = array(dtype="int64", counted=False, minimum=0)


@dataclasses.dataclass
class ServerState:
    """Theta as the clients get to know it, and what makes it of its predecessor.

    Attributes
    ----------
    theta, sent, base, number
        Theta number `number`, and the fields of `LowRank` that make it of number `base`, or with
        `compress = "weights"` of nothing.
    current : list of int
        Clients that hold theta number `base`, having answered in round `number`.
    frames : dict of bool to Downlink
        The round's downlinks that were made already, by whether they are relative.
    """

    theta: dict[str, Tensor]
    sent: dict[str, Tensor]
    base: int
    number: int
    current: list[int]
    frames: Transient[dict[bool, Downlink]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class ClientState:
    """Teacher, student, W_h (d_t, d_s), and theta as last received, with its number."""

    model: SplitModel
    student: SplitModel
    projection: nn.Linear
    theta: dict[str, Tensor]
    number: int = 0


SMALLEST_SCALE = 1e-6


def distillation_terms(
    teacher: tuple[Tensor, Tensor],
    student: tuple[Tensor, Tensor],
    labels: Tensor,
    projection: nn.Module,
    detach_scale: bool,
) -> dict[str, Tensor]:
    """Return the terms of L_t and L_s; each moves what it is named after, L_s also W_h.

    Teacher and student are representations (B, d) and logits (B, C), labels are (B,), `projection`
    is W_h, `detach_scale` says whether 1 / s is a constant.
    """
    (r_t, o_t), (r_s, o_s) = teacher, student
    ce_t, ce_s = F.cross_entropy(o_t, labels), F.cross_entropy(o_s, labels)
    s_t = (ce_t if not detach_scale else ce_t.detach()) + ce_s.detach()
    s_s = ce_t.detach() + (ce_s if not detach_scale else ce_s.detach())
    # On a client that has learned its data by heart both cross entropies can be exactly 0.
    s_t, s_s = s_t.clamp(min=SMALLEST_SCALE), s_s.clamp(min=SMALLEST_SCALE)
    r_t, mapped = r_t.float(), projection(r_s).float()
    return {
        "loss_teacher_ce": ce_t,
        "loss_teacher_kl": imitation(o_s, o_t) / s_t,
        "loss_teacher_hidden": F.mse_loss(r_t, mapped.detach()) / s_t,
        "loss_student_ce": ce_s,
        "loss_student_kl": imitation(o_t, o_s) / s_s,
        "loss_student_hidden": F.mse_loss(mapped, r_t.detach()) / s_s,
    }


def tensors(arrays: StateArrays) -> dict[str, Tensor]:
    """Return arrays as tensors that share memory."""
    return {name: as_tensor(item) for name, item in arrays.items()}


def add(theta: State, update: StateArrays) -> dict[str, Tensor]:
    """Return theta + update, new tensors on the CPU: the same bits on client and server."""
    return {name: theta[name].cpu() + as_tensor(item) for name, item in update.items()}


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: theta by its number, mutual distillation, the compressed update."""

    def build(self, context: ClientContext) -> ClientState:
        teacher = context.build_model()
        width = context.run.feature_dim
        student = small_model(context.run, context.shape, width)
        projection = nn.Linear(width, teacher.feature_dim, bias=False)
        return ClientState(teacher, student, projection, theta={})

    def receive(self, context: ClientContext, state: ClientState, downlink: Downlink) -> None:
        entries = state.student.state_dict()
        received = decompress(downlink, layout_of(entries))
        if not downlink.relative:
            state.theta = tensors(received)
        elif state.theta and state.number == downlink.base:
            state.theta = add(state.theta, received)
        else:
            held = f"number {state.number}" if state.theta else "none"
            raise PayloadError(
                f"base: an update of theta number {downlink.base} reached client "
                f"{context.client_id}, which holds {held}; theta comes whole the next time"
            )
        state.number = int(downlink.number)
        load_arrays(entries, {name: item.numpy() for name, item in state.theta.items()})

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config = context.config

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            r_t, r_s = state.model.features(images), state.student.features(images)
            pairs = (r_t, state.model.head(r_t)), (r_s, state.student.head(r_s))
            return distillation_terms(*pairs, labels, state.projection, config.detach_scale)

        modules = [state.model, state.student, state.projection]
        metrics = train_epochs(context, modules, loss, clip_norm=config.clip_norm or None)
        trained = state_arrays(state.student.state_dict())
        if config.compress == "update":
            trained = {k: item - state.theta[k].cpu().numpy() for k, item in trained.items()}
        energy = config.energy(context.server_round, context.run.num_rounds)
        return Uplink(**compress(trained, energy)), metrics

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images), "accuracy_student": state.student(images)}


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: theta, moved by the compressed mean of the round's updates."""

    def initial_state(self, context: ServerContext) -> ServerState:
        config, run = context.config, context.run
        entries = first_small_model(context, run.feature_dim).state_dict()
        energy = None if config.compress == "update" else config.energy(0, run.num_rounds)
        sent = compress(state_arrays(entries), energy)
        theta = decompress(LowRank(**sent), layout_of(entries))
        return ServerState(tensors(theta), tensors(sent), base=0, number=0, current=[])

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink | None:
        """Return the update for who holds its base, else theta; each is made once a round."""
        if client is None:
            return None
        relative = context.config.compress == "update" and client.client_id in state.current
        if relative not in state.frames:
            state.frames[relative] = self._frame(context, state, relative)
        return state.frames[relative]

    def _frame(self, context: ServerContext, state: ServerState, relative: bool) -> Downlink:
        stored = relative or context.config.compress != "update"
        fields = state_arrays(state.sent) if stored else compress(state_arrays(state.theta), None)
        base = state.base if relative else state.number
        numbers = {"relative": relative, "base": base, "number": state.number}
        return Downlink(**fields, **{name: np.array(item) for name, item in numbers.items()})

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        """Refuse what does not fit the student before anything is summed."""
        list(pieces(update.uplink, layout_of(state.theta)))

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        config, layout = context.config, layout_of(state.theta)
        energy = config.energy(context.server_round, context.run.num_rounds)
        answered: list[int] = []

        def received() -> Iterator[tuple[StateArrays, int]]:
            for update in updates:
                answered.append(update.client_id)
                count = update.num_examples if config.mean == "weighted" else 1
                yield decompress(update.uplink, layout), count

        relative = config.compress == "update"
        mean = mean_over_clients(context.run, None if relative else state.theta)
        sent = compress(state_arrays(mean_states(received(), mean)), energy)
        made = decompress(LowRank(**sent), layout)
        state.theta = add(state.theta, made) if relative else tensors(made)
        state.sent, state.frames = tensors(sent), {}
        state.base, state.number = state.number, context.server_round
        state.current = answered
        return {"energy_threshold": energy}


METHOD = register(
    __name__,
    summary="a private teacher and an averaged student, exchanged as low-rank updates",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    shares_reader=True,
    averages=True,
)
