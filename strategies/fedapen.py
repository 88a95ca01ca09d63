"""FedAPEN: mutual learning with an ensemble whose weight every client learns.

Qin et al., "FedAPEN: Personalized Cross-silo Federated Learning with Adaptability to Statistical
Heterogeneity", KDD 2023. As in FML a private model and a copy of the common shared model theta
train side by side; here also their ensemble o_e = w o_p + (1 - w) o_s is trained, and it predicts.
The weight w of a client follows its own data.

Uplink, per participant and round: theta (924,708 scalars with FedAvgCNN, d = 512 and C = 100 on
3x32x32 images). Downlink, to everyone: the averaged theta, as large. Private: the model and w.

Order of a round on a client: load theta; learn w with both models frozen, on the held-out part of
the training set (`learn_weight`); train both models on the rest with

    L_p = CE(o_p) + KL(p_s || p_p) + CE(w o_p + (1 - w) sg(o_s))
    L_s = CE(o_s) + KL(p_p || p_s) + CE(w sg(o_p) + (1 - w) o_s)

where p are softmax probabilities, sg stops the gradient, and so does the first argument of a KL;
upload theta. Server: theta <- mean of theta_k. Evaluation: the ensemble with the averaged theta
("accuracy"), and both members alone ("accuracy_private", "accuracy_shared").

The authors' values: K = 10, E = 5, T = 100, batch 64, SGD with lr 0.01 x 0.99^(t - 1) in round t,
5 % held out. The decay and the share are defaults here; set local-epochs = 5, batch-size = 64 and
num-rounds = 100 for the others. FedEN, their variant with w = 0.5: weight = "fixed", which holds
nothing out.

Choices where the paper is silent: the held-out examples are drawn once from the run's seed, one
at least and never all; a client with a single training example holds none out and keeps its w. In
round 1 theta is the server's first draw, and w is learned as in any other round. A client that is
evaluated without training also learns w for that theta, from its saved one, and forgets it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data import Split
from models import SplitModel
from models.skeleton import skeleton
from models.small import SMALL_MODEL_OF
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.payload import Template
from strategies.base.run_config import RunConfig
from strategies.common.small_model import (
    SmallModelPayload,
    SmallModelServer,
    imitation,
    small_model,
)
from strategies.common.training import EVALUATION_BATCH, device_batches, precision, train_epochs
from strategies.common.weights import load_arrays, state_arrays, state_template


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedAPEN; defaults are the authors', the shared model is HtFLlib's.

    Attributes
    ----------
    small_model : str
        Architecture of the shared model, see `models.small`; its features are feature-dim wide.
        On sentences the default stands for text-small, on numbers for mlp-small or cnn1d-small.
    weight : str
        w is "learned", or "fixed" at 0.5 (FedEN).
    holdout : float
        Share of the training examples that w is learned on and the models are not.
    weight_lr, weight_epochs
        SGD on w, in batches of batch-size.
    lr_decay : float
        The learning rate in round t is lr x lr_decay^(t - 1).
    clip_norm : float
        Largest gradient norm of each of the two models; 0 does not clip.
    mean : str
        Weights of theta_k on the server: equal ("uniform"), or n_k ("weighted").
    """

    small_model: str = option("fedavgcnn", "cnn5", "cnn1", *SMALL_MODEL_OF.values())
    weight: str = option("learned", "fixed")
    holdout: float = option(0.05, above=0, maximum=0.5)
    weight_lr: float = option(1e-3, above=0)
    weight_epochs: int = option(10, minimum=1)
    lr_decay: float = option(0.99, above=0, maximum=1)
    clip_norm: float = option(0.0, minimum=0)
    mean: str = option("uniform", "weighted")


Uplink = SmallModelPayload
Downlink = SmallModelPayload
"""What travels both ways: the small model's state theta."""


@dataclasses.dataclass
class ClientState:
    """The private model, the shared one as last received or trained, and w in [0, 1]."""

    model: SplitModel
    shared: SplitModel
    weight: float = 0.5


def refuses(run: RunConfig) -> str | None:
    """Refuse a second schedule beside the method's own."""
    own: float = run.method_config.lr_decay
    if run.lr_schedule == "constant" or own == 1:
        return None
    return (
        f"lr-schedule = {run.lr_schedule!r}: fedapen lowers the learning rate itself, by "
        f"fedapen.lr-decay = {own:g} in every round; expected constant, or fedapen.lr-decay = 1"
    )


def ensemble(private: Tensor, shared: Tensor, weight: float) -> Tensor:
    """Return o_e = w o_p + (1 - w) o_s; all are logits (B, C)."""
    return weight * private + (1 - weight) * shared


def ensemble_terms(
    private: Tensor, shared: Tensor, labels: Tensor, weight: float
) -> dict[str, Tensor]:
    """Return the six terms of L_p and L_s from logits (B, C), labels (B,) and w.

    Each term moves the model it is named after and no other.
    """
    ahead = ensemble(private, shared.detach(), weight)
    behind = ensemble(private.detach(), shared, weight)
    return {
        "loss_private_ce": F.cross_entropy(private, labels),
        "loss_private_kl": imitation(shared, private),
        "loss_private_ensemble": F.cross_entropy(ahead, labels),
        "loss_shared_ce": F.cross_entropy(shared, labels),
        "loss_shared_kl": imitation(private, shared),
        "loss_shared_ensemble": F.cross_entropy(behind, labels),
    }


def holdout_size(examples: int, share: float) -> int:
    """Return how many of `examples` are held out: the share, but at least one and never all."""
    return min(max(1, round(share * examples)), examples - 1) if examples > 1 else 0


def hold_out(train: Split, share: float, generator: np.random.Generator) -> tuple[Split, Split]:
    """Return the training examples that the models learn from, and those that w does."""
    order = generator.permutation(len(train))
    held = holdout_size(len(train), share)
    kept, taken = np.sort(order[held:]), np.sort(order[:held])
    return train.take(kept), train.take(taken)


def learn_weight(
    weight: float,
    private: Tensor,
    shared: Tensor,
    labels: Tensor,
    *,
    lr: float,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
) -> float:
    """Return w after SGD on the mean CE(w o_p + (1 - w) o_s, y) of frozen models.

    Parameters
    ----------
    weight : float
        w to start from.
    private, shared, labels : Tensor
        o_p and o_s, (n, C), and y, (n,), n >= 1, on the CPU.
    lr, epochs, batch_size
        Of the SGD; w is clipped to [0, 1] after every step.
    generator : torch.Generator
        Shuffles the examples, anew in every epoch.
    """
    apart = private.double() - shared.double()
    onehot = F.one_hot(labels, private.shape[1])
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(batch_size):
            mixed = shared[rows].double() + weight * apart[rows]
            # dCE/do_e = softmax(o_e) - onehot(y), and do_e/dw = o_p - o_s.
            slope = ((F.softmax(mixed, dim=1) - onehot[rows]) * apart[rows]).sum(dim=1).mean()
            weight = min(max(weight - lr * slope.item(), 0.0), 1.0)
    return weight


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: the ensemble's weight, then mutual learning with the ensemble."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model(), self._small_model(context))

    def templates(self, context: ClientContext) -> Mapping[str, Template]:
        with skeleton():
            return {"theta": state_template(self._small_model(context).state_dict())}

    def receive(self, context: ClientContext, state: ClientState, downlink: Downlink) -> None:
        load_arrays(state.shared.state_dict(), downlink.theta)
        held = self._splits(context)[1]
        if len(held):
            state.weight = learn_weight(
                state.weight,
                *self._logits(context, state, held),
                lr=context.config.weight_lr,
                epochs=context.config.weight_epochs,
                batch_size=context.run.batch_size,
                generator=context.generator("weight"),
            )

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config = context.config

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            private, shared = state.model(images), state.shared(images)
            return ensemble_terms(private, shared, labels, state.weight)

        metrics = train_epochs(
            context,
            [state.model, state.shared],
            loss,
            clip_norm=config.clip_norm or None,
            split=self._splits(context)[0],
            lr_factor=config.lr_decay ** (context.server_round - 1),
        )
        metrics["ensemble_weight"] = state.weight
        return Uplink(state_arrays(state.shared.state_dict())), metrics

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        private, shared = state.model(images), state.shared(images)
        return {
            "accuracy": ensemble(private, shared, state.weight),
            "accuracy_private": private,
            "accuracy_shared": shared,
        }

    def _small_model(self, context: ClientContext) -> SplitModel:
        width = context.run.feature_dim
        return small_model(context.run, context.shape, width)

    def _splits(self, context: ClientContext) -> tuple[Split, Split]:
        """Return what the models train on and what w is learned on, the same in every round."""
        train = context.data.train
        if context.config.weight == "fixed":
            return train, train.take(np.arange(0))
        generator = context.numpy_generator("holdout", server_round=0)
        return hold_out(train, context.config.holdout, generator)

    @torch.no_grad()
    def _logits(
        self, context: ClientContext, state: ClientState, split: Split
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return o_p, o_s, (n, C), and labels (n,) of a split, on the CPU."""
        parts = []
        for images, labels in device_batches(context, split, EVALUATION_BATCH):
            with precision(context):
                pair = state.model(images), state.shared(images)
            parts.append((pair[0].float().cpu(), pair[1].float().cpu(), labels.cpu()))
        private, shared, targets = (torch.cat(column) for column in zip(*parts, strict=True))
        return private, shared, targets


class Server(SmallModelServer):
    """Server half: one shared model, the mean of the round's."""


METHOD = register(
    __name__,
    summary="a private and an averaged shared model predict together, with a learned weight",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    shares_reader=True,
    refuses=refuses,
    averages=True,
)
