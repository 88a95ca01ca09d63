"""FedL2G: the server learns one vector a class that guides local training to a low loss.

Zhang et al., FedL2G: Learning to Guide Local Training in Heterogeneous Federated Learning (2024);
both forms of HtFLlib: vectors v_c stand beside logits (C of them, `guide = "logits"`) or beside the
head's input (d, "features"). Architectures are free, and with logits so are widths.

Order of a round on a client: E epochs of CE + MSE(output, v_y) on its study examples; then one meta
step on a copy of the model theta,

    theta'  = theta - lr grad_theta mean over study batches of (CE + MSE(output, v_y))
    uplink  = grad_v mean over quiz batches of CE under theta',

the second through the first. The copy is thrown away, BatchNorm's statistics with it. Quiz examples
are drawn once from the run's seed and never train the model. In the first `warmup-rounds` there is
the meta step alone.

Server: by class the mean of the gradients over the clients that sent one, 0 elsewhere, its norm cut
to `clip-norm`, one step of SGD. v starts as N(0, 1).

Uplink, per participant and round: m rows (v's width) with class ids, the classes of its study
batches. Downlink, to everyone: v, (C, width). Private: the model. Evaluated: the personal model.

The authors train with SGD 0.01, batches of 10, a server's rate of 0.1 (logits) or 100 (features),
and 50 rounds of warm-up before the first that they count; here these would count, so there are none
by default. MSE is the mean over all elements.

Where the sources are silent: a client with fewer than two full batches keeps at most half of its
examples for the quiz, and one with a single example trains and sends nothing. A meta step on single
examples has BatchNorm in evaluation mode. Gradients are computed in float32 whatever `amp` is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from data import Split
from models import SplitModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import register
from strategies.base.options import AUTO, ConfigError, option
from strategies.base.payload import PayloadError, array
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext, ServerHalf
from strategies.base.treatments import CLASSES, VALUE
from strategies.common.flops import StepFlops
from strategies.common.optimizers import learning_rate
from strategies.common.robust import class_average
from strategies.common.training import device_batches, train_epochs

Batches = Sequence[tuple[Tensor, Tensor]]
SERVER_LR = {"logits": 0.1, "features": 100.0}
"""The authors' commands, by `guide`."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedL2G; defaults are the authors', but for the warm-up.

    Attributes
    ----------
    guide : str
        What is guided: the model's "logits", or the "features" that its head reads.
    server_lr : float or "auto"
        Of the server's SGD; "auto": 0.1 for logits, 100 for features.
    study_batches, quiz_batches : int
        Batches of the meta step; the second are kept from training.
    warmup_rounds : int
        First rounds without local training; the authors' 50 are not counted as rounds there.
    clip_norm : float
        Largest norm of a gradient of the model, and of the server's; 0 does not clip.
    """

    guide: str = option("logits", "features")
    server_lr: float | str = option(AUTO, kind=float, above=0)
    study_batches: int = option(1, minimum=1)
    quiz_batches: int = option(1, minimum=1)
    warmup_rounds: int = option(0, minimum=0)
    clip_norm: float = option(100.0, minimum=0)


@dataclasses.dataclass
class Uplink:
    """What a participant sends: the gradients of its quiz loss by v_c, of the classes it saw."""

    class_ids: NDArray[np.int64] = array(
        "m", dtype="int64", counted=False, minimum=0, below="C", unique=True, protect=CLASSES
    )
    gradients: NDArray[np.float32] = array("m", "v", protect=VALUE)


@dataclasses.dataclass
class Downlink:
    """What every client receives: the guiding vectors of all classes."""

    vectors: NDArray[np.float32] = array("C", "v")


@dataclasses.dataclass
class ServerState:
    """The guiding vectors, (C, C) or (C, d)."""

    vectors: Tensor


@dataclasses.dataclass
class ClientState:
    """The personal model."""

    model: SplitModel


class Guided(nn.Module):
    """A model that returns its logits (N, C) and what is guided, (N, v).

    Parameters
    ----------
    model : SplitModel
        Not copied.
    guide : str
        See `Config`.
    """

    def __init__(self, model: SplitModel, guide: str) -> None:
        super().__init__()
        self.model, self.guide = model, guide

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, the same tensor twice where logits are guided."""
        features = self.model.features(inputs)
        logits = self.model.head(features)
        return logits, features if self.guide == "features" else logits


def guided_loss(
    outputs: tuple[Tensor, Tensor], labels: Tensor, vectors: Tensor
) -> dict[str, Tensor]:
    """Return CE and MSE(output, v_y) of a batch; the vectors are (C, v)."""
    logits, guided = outputs
    return {
        "loss_ce": F.cross_entropy(logits, labels),
        "loss_guide": F.mse_loss(guided, vectors[labels]),
    }


def meta_gradient(
    model: nn.Module, vectors: Tensor, study: Batches, quiz: Batches, lr: float
) -> tuple[Tensor, float]:
    """Return grad_v of the quiz loss after one step on the study batches, and that loss.

    Parameters
    ----------
    model : Module
        Returns logits and what is guided, as `Guided`; neither it nor its buffers are changed.
    vectors : Tensor
        v, (C, v).
    study, quiz : sequence of tuple
        Inputs and labels, (B, ...) and (B,); at least one batch each.
    lr : float
        Of the step between them.

    Returns
    -------
    tuple of Tensor and float
        (C, v), zeros in the rows of classes that are not studied; and the mean quiz loss.
    """
    guide = vectors.detach().clone().requires_grad_()
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    buffers = {name: item.clone() for name, item in model.named_buffers()}

    def run(held: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor] = functional_call(model, {**held, **buffers}, (inputs,))
        return outputs

    # Of the kernels of attention only this one has second derivatives.
    with sdpa_kernel(SDPBackend.MATH):
        losses = [
            torch.stack(list(guided_loss(run(weights, x), y, guide).values())).sum()
            for x, y in study
        ]
        gradients = torch.autograd.grad(
            torch.stack(losses).mean(), list(weights.values()), create_graph=True, allow_unused=True
        )
        stepped = {
            name: p if gradient is None else p - lr * gradient
            for (name, p), gradient in zip(weights.items(), gradients, strict=True)
        }
        quizzes = [F.cross_entropy(run(stepped, x)[0], y) for x, y in quiz]
        loss = torch.stack(quizzes).mean()
        (found,) = torch.autograd.grad(loss, [guide])
    return found, loss.item()


def stepped_vectors(vectors: Tensor, gradient: Tensor, lr: float, clip_norm: float) -> Tensor:
    """Return v after one step of SGD along a gradient (C, v) cut to a norm; 0 does not cut."""
    norm = float(torch.linalg.vector_norm(gradient))
    shorter = clip_norm / norm if clip_norm and norm > clip_norm else 1.0
    return vectors - lr * shorter * gradient


def quiz_size(examples: int, wanted: int) -> int:
    """Return how many examples are kept for the quiz: what is wanted, but at most half."""
    return min(wanted, examples // 2)


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: guided training, then the meta step."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model())

    def receive(self, context: ClientContext, state: ClientState, downlink: Downlink) -> None:
        wanted, got = guide_width(context.run, context.dims), downlink.vectors.shape[1]
        if got != wanted:
            raise PayloadError(f"vectors: {got} wide, expected {wanted}")

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config = context.config
        metrics: dict[str, float] = {}
        vectors = torch.tensor(downlink.vectors, device=context.device)
        study, quiz = self._splits(context)
        model = Guided(state.model, config.guide)

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return guided_loss(model(images), labels, vectors)

        if context.server_round > config.warmup_rounds:
            metrics = train_epochs(
                context, [model], loss, split=study, clip_norm=config.clip_norm or None
            )
        if not len(quiz):
            return Uplink(np.empty(0, np.int64), downlink.vectors[:0]), metrics
        gradient, measured = self._meta_step(context, model, vectors, study, quiz)
        seen = gradient.abs().sum(dim=1).nonzero().flatten()
        flops = metrics.get("flops", 0.0) + measured.pop("flops")
        return Uplink(seen.numpy(), gradient[seen].numpy()), {**metrics, **measured, "flops": flops}

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images)}

    def _splits(self, context: ClientContext) -> tuple[Split, Split]:
        """Return study and quiz examples, the same in every round."""
        train, run = context.data.train, context.run
        held = quiz_size(len(train), context.config.quiz_batches * run.batch_size)
        order = context.numpy_generator("quiz", server_round=0).permutation(len(train))
        return train.take(np.sort(order[held:])), train.take(np.sort(order[:held]))

    def _meta_step(
        self, context: ClientContext, model: Guided, vectors: Tensor, study: Split, quiz: Split
    ) -> tuple[Tensor, dict[str, float]]:
        """Return grad_v (C, v) on the CPU, and what is recorded."""
        config, size = context.config, context.run.batch_size
        draws = context.generator("meta")

        def drawn(split: Split, count: int) -> Batches:
            return list(islice(device_batches(context, split, size, draws, True), count))

        parts = drawn(study, config.study_batches), drawn(quiz, config.quiz_batches)
        # Batch statistics of one example are undefined.
        model.train(min(size, len(study), len(quiz)) > 1)
        examples = sum(len(labels) for part in parts for _, labels in part)
        flops = StepFlops(context, "meta")
        with flops.counting(examples):
            gradient, loss = meta_gradient(model, vectors, *parts, lr=learning_rate(context))
        model.eval()
        return gradient.cpu(), {"loss_quiz": loss, "flops": flops.total(examples, 1)}


def guide_width(run: RunConfig, dims: Mapping[str, int]) -> int:
    """Return how wide a guiding vector is: C or d."""
    return dims["C" if run.method_config.guide == "logits" else "d"]


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: takes one step on the guiding vectors a round."""

    def check_run(self, run: RunConfig) -> Sequence[str]:
        warmup = run.method_config.warmup_rounds
        if warmup >= run.num_rounds:
            raise ConfigError(
                f"fedl2g.warmup-rounds = {warmup}: no client trains in these rounds, and "
                f"num-rounds = {run.num_rounds} has no others; lower the first or raise the second"
            )
        return ()

    def check(
        self, context: ServerContext, state: ServerState | None, client: ClientInfo
    ) -> str | None:
        """Return how a client's width is unlike the others', which logits do not mind."""
        return None if context.config.guide == "logits" else super().check(context, state, client)

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        wanted, got = state.vectors.shape[1], update.uplink.gradients.shape[1]
        if got != wanted:
            raise PayloadError(f"gradients: {got} wide, expected {wanted}")

    def initial_state(self, context: ServerContext) -> ServerState:
        shape = context.dims["C"], guide_width(context.run, context.dims)
        return ServerState(torch.randn(shape, generator=context.generator("guide")))

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink:
        return Downlink(state.vectors.numpy())

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        config, average = context.config, class_average(context.run, *state.vectors.shape)
        for update in updates:
            sent = update.uplink
            average.add(torch.tensor(sent.class_ids), torch.tensor(sent.gradients))
        class_ids, means, _ = average.result()
        gradient = torch.zeros_like(state.vectors)
        gradient[torch.from_numpy(class_ids)] = torch.from_numpy(means)
        lr = SERVER_LR[config.guide] if config.server_lr == AUTO else config.server_lr
        state.vectors = stepped_vectors(state.vectors, gradient, lr, config.clip_norm)
        return {"classes_received": float(len(class_ids)), "gradient_norm": float(gradient.norm())}


METHOD = register(
    __name__,
    summary="the server learns a vector a class towards which clients train, by their quiz losses",
    averages=True,
)
