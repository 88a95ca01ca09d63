"""FedHeNN: clients of unlike models agree on how similar any two public items are.

Source: FedHeNN (Makhija et al., 2022). In every round the server draws l public items, the
alignment set I_t, the same for all clients. Each client sends the Gram matrix K_k = Z Z^T of its
own representations Z (l, L_k) of them, the server averages, and each client trains with CE + eta_t
(1 - CKA(K_k, K-bar)), eta_t = eta_0 sqrt(t), the gradient flowing through its own K_k. Widths L_k
may differ, since only (l, l) matrices are compared.

A round takes two exchanges: the Gram matrices come first, then their mean goes out and clients
train. In round 1, t = 0 and eta_t = 0: it is one exchange of plain local training.

Where the code departs from the released code, and why:
- Gram matrices are symmetric, so their upper triangle travels, l (l + 1) / 2 numbers each way.
- Z is the encoder's feature, which the task's head reads.
- The released code compares all l items in every step. `step_items` compares a random part
  instead; the cost of a step grows with it, and 0 is all.
- Any task: CE stands for the task's own loss.
- BatchNorm uses its running statistics on public items and keeps them, so that public
  statistics do not replace local ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import TaskModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.payload import PayloadError, array
from strategies.base.rng import SERVER, numpy_generator
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext, ServerHalf
from strategies.base.state import Transient
from strategies.base.treatments import VALUE
from strategies.common.losses import task_loss
from strategies.common.public import PublicInputs, evaluating
from strategies.common.robust import mean_over_clients
from strategies.common.training import train_epochs


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedHeNN; defaults are the released code's.

    Attributes
    ----------
    eta : float
        eta_0, the weight of the alignment term; in round t it is eta_0 sqrt(t - 1).
    items : int
        l, public items in the alignment set of a round; clipped to `public-size`.
    step_items : int
        How many of them are compared in a step; 0: all.
    """

    eta: float = option(0.01, minimum=0)
    items: int = option(1000, minimum=2)
    step_items: int = option(0, minimum=0)


@dataclasses.dataclass
class Uplink:
    """The upper triangle, row by row, of K_k; empty after training."""

    kernel: NDArray[np.float32] = array("k", degree=2, protect=VALUE)


@dataclasses.dataclass
class Downlink:
    """The alignment set, and the upper triangle of the mean K; empty where it is yet to come."""

    indices: NDArray[np.int32] = array("l", dtype="int32", counted=False, minimum=0, below="P")
    kernel: NDArray[np.float32] = array("k", degree=2)


@dataclasses.dataclass
class ServerState:
    """The mean kernel of the round's first exchange, for its second: (l (l + 1) / 2,) or (0,)."""

    mean: Transient[NDArray[np.float32]]


@dataclasses.dataclass
class ClientState:
    """The personal model."""

    model: TaskModel


def cka(own: Tensor, other: Tensor) -> Tensor:
    """Return linear CKA(K, K') = <HKH, HK'H> / (||HKH|| ||HK'H||), H = I - 11^T / l.

    Parameters
    ----------
    own, other : Tensor
        Gram matrices (l, l).

    Returns
    -------
    Tensor
        A scalar in [0, 1] for positive semi-definite matrices; 0 if one of them is constant.
    """
    a, b = _centred(own), _centred(other)
    length = a.norm() * b.norm()
    alike: Tensor = (a * b).sum() / length.clamp_min(torch.finfo(length.dtype).tiny)
    return alike


def _centred(kernel: Tensor) -> Tensor:
    return kernel - kernel.mean(0, keepdim=True) - kernel.mean(1, keepdim=True) + kernel.mean()


def triangle(kernel: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the upper triangle of a symmetric (l, l) matrix as (l (l + 1) / 2,)."""
    return kernel[np.triu_indices(len(kernel))]


def square(values: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return the symmetric (l, l) matrix of an upper triangle."""
    kernel = np.empty((size, size), dtype=np.float32)
    rows, columns = np.triu_indices(size)
    kernel[rows, columns] = values
    kernel[columns, rows] = values
    return kernel


def alignment_items(run: RunConfig, server_round: int) -> NDArray[np.int32]:
    """Return the alignment set I_t of a round, (l,), drawn anew without replacement."""
    generator = numpy_generator(run.seed, SERVER, server_round, "alignment")
    size = min(run.method_config.items, run.public_size)
    return generator.permutation(run.public_size)[:size].astype(np.int32)


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: first its Gram matrix, then training towards the mean one."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_task_model())

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        first_of_two = context.exchange == 1 and context.server_round > 1
        if first_of_two:
            return Uplink(triangle(self._gram(context, state.model, downlink.indices))), {}
        nothing = Uplink(np.empty(0, dtype=np.float32))
        own_task = task_loss(context.data.task, state.model)
        if not len(downlink.kernel):
            return nothing, train_epochs(context, [state.model], own_task)
        align = self._alignment(context, state.model, downlink)

        def loss(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return {**own_task(inputs, targets), "loss_cka": align()}

        # The term costs the same whatever the batch, so operations are counted by batch size.
        first_batch = min(len(context.data.train), context.run.batch_size)
        return nothing, train_epochs(context, [state.model], loss, step_cost=first_batch)

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images)}

    def _gram(
        self, context: ClientContext, model: TaskModel, indices: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return K_k (l, l) of the encoder's features."""
        z = PublicInputs(context).outputs(model, indices, model.encoder)
        return (z @ z.T).cpu().numpy()

    def _alignment(
        self, context: ClientContext, model: TaskModel, downlink: Downlink
    ) -> Callable[[], Tensor]:
        """Return a function that gives a step's term eta_t (1 - CKA)."""
        public, config = PublicInputs(context), context.config
        eta = config.eta * math.sqrt(context.server_round - 1)
        size = len(downlink.indices)
        mean = torch.from_numpy(square(downlink.kernel, size)).to(context.device)
        generator = context.generator("alignment")
        count = min(config.step_items or size, size)

        def term() -> Tensor:
            chosen = torch.arange(size)
            if count < size:
                chosen = torch.randperm(size, generator=generator)[:count]
            with evaluating(model):
                z = model.encoder(public.batch(downlink.indices[chosen.numpy()])).float()
            part = chosen.to(context.device)
            weighted: Tensor = eta * (1 - cka(z @ z.T, mean[part][:, part]))
            return weighted

        return term


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: draws the alignment set and averages Gram matrices."""

    def initial_state(self, context: ServerContext) -> ServerState:
        return ServerState(np.empty(0, dtype=np.float32))

    def exchanges(self, context: ServerContext) -> int:
        return 1 if context.server_round == 1 else 2

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink:
        items = alignment_items(context.run, context.server_round)
        return Downlink(items if self.exchanges(context) > 1 else items[:0], state.mean)

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        size = min(context.config.items, context.run.public_size)
        kernel = update.uplink.kernel
        if len(kernel) not in (0, size * (size + 1) // 2):
            raise PayloadError(
                f"kernel: {len(kernel)} entries, expected {size * (size + 1) // 2} (the upper "
                f"triangle over {size} items) or none"
            )

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        mean, count = mean_over_clients(context.run), 0
        for update in updates:
            if len(update.uplink.kernel):
                mean.add({"kernel": update.uplink.kernel}, 1)
                count += 1
        # Of this round only: after training none came.
        state.mean = mean.means()["kernel"].numpy() if count else np.empty(0, dtype=np.float32)
        return {"kernels": float(count)} if count else {}


METHOD = register(
    __name__,
    summary="clients pull the similarities among public items towards the federation's mean",
    training=Training(lr=0.01, momentum=0.5),
    evaluate_when="post",
    common_feature_dim=False,
    any_task=True,
    task_models=True,
    public_data=True,
    averages=True,
)
