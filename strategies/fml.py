"""FML: federated mutual learning between a private model and a shared small one, the meme.

Shen et al., "Federated Mutual Learning", arXiv 2006.16765. Every client trains its private model,
of any architecture, and a copy of the common small model theta side by side on the same batches;
each imitates the other's predictions. Only theta is exchanged and averaged.

Uplink, per participant and round: theta (924,708 scalars with FedAvgCNN, d = 512 and C = 100 on
3x32x32 images). Downlink, to everyone: the averaged theta, as large. Private: the whole model.

Order of a round on a client: load theta; train both models on

    L_private = alpha CE(o_p, y) + (1 - alpha) KL(softmax(o_m) || softmax(o_p))
    L_meme    = beta  CE(o_m, y) + (1 - beta)  KL(softmax(o_p) || softmax(o_m))

with o_p, o_m the logits of the private model and the meme; upload theta. The first argument of a
KL is a constant, so each loss moves one model, and one SGD over both is the same as two. Server:
theta <- sum_k (n_k / n) theta_k. Evaluation: the private model ("accuracy"), which is the same
before and after theta arrives; the averaged meme is recorded beside it ("accuracy_meme").

Where sources disagree or this departs from them: HtFLlib averages uniformly (option `mean`),
takes the KL's mean over all elements, which makes it C times smaller, and its alpha = beta = 1
switch imitation off; here the KL is averaged over the batch and alpha = beta = 0.5. As in its
benchmark the gradient of each model is clipped to 10.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from models import SplitModel
from models.skeleton import skeleton
from models.small import SMALL_MODEL_OF
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.payload import Template
from strategies.common.small_model import (
    SmallModelPayload,
    SmallModelServer,
    imitation,
    small_model,
)
from strategies.common.training import train_epochs
from strategies.common.weights import load_arrays, state_arrays, state_template


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FML; defaults are those of HtFLlib's benchmark.

    Attributes
    ----------
    small_model : str
        Architecture of the meme, see `models.small`; its features are feature-dim wide.
        On sentences the default stands for text-small, on numbers for mlp-small or cnn1d-small.
    alpha, beta : float
        Weight of cross entropy against imitation, for the private model and for the meme.
    clip_norm : float
        Largest gradient norm of each of the two models; 0 does not clip.
    mean : str
        Weights of theta_k on the server: n_k ("weighted"), or equal ("uniform").
    """

    small_model: str = option("fedavgcnn", "cnn5", "cnn1", *SMALL_MODEL_OF.values())
    alpha: float = option(0.5, minimum=0, maximum=1)
    beta: float = option(0.5, minimum=0, maximum=1)
    clip_norm: float = option(10.0, minimum=0)
    mean: str = option("weighted", "uniform")


Uplink = SmallModelPayload
Downlink = SmallModelPayload
"""What travels both ways: the small model's state theta."""


@dataclasses.dataclass
class ClientState:
    """The private model, and the meme as last received or trained."""

    model: SplitModel
    meme: SplitModel


def mutual_terms(
    private: Tensor, meme: Tensor, labels: Tensor, alpha: float, beta: float
) -> dict[str, Tensor]:
    """Return the weighted terms of L_private and L_meme from logits (B, C) and labels (B,)."""
    return {
        "loss_private_ce": alpha * F.cross_entropy(private, labels),
        "loss_private_kl": (1 - alpha) * imitation(meme, private),
        "loss_meme_ce": beta * F.cross_entropy(meme, labels),
        "loss_meme_kl": (1 - beta) * imitation(private, meme),
    }


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: mutual learning of the private model and the meme."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model(), self._small_model(context))

    def templates(self, context: ClientContext) -> Mapping[str, Template]:
        with skeleton():
            return {"theta": state_template(self._small_model(context).state_dict())}

    def receive(self, context: ClientContext, state: ClientState, downlink: Downlink) -> None:
        load_arrays(state.meme.state_dict(), downlink.theta)

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config = context.config

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            private, meme = state.model(images), state.meme(images)
            return mutual_terms(private, meme, labels, config.alpha, config.beta)

        modules = [state.model, state.meme]
        metrics = train_epochs(context, modules, loss, clip_norm=config.clip_norm or None)
        return Uplink(state_arrays(state.meme.state_dict())), metrics

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images), "accuracy_meme": state.meme(images)}

    def _small_model(self, context: ClientContext) -> SplitModel:
        width = context.run.feature_dim
        return small_model(context.run, context.shape, width)


class Server(SmallModelServer):
    """Server half: one meme, the mean of the round's memes."""


METHOD = register(
    __name__,
    summary="a private model and an averaged small one learn from each other",
    training=Training(optimizer="sgd", lr=0.01),
    common_feature_dim=False,
    shares_reader=True,
    averages=True,
)
