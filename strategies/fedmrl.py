"""FedMRL: federated Matryoshka representations, a small shared model beside a private large one.

NeurIPS 2024, arXiv 2406.00488. Every client k trains, with its private model F_k of any
architecture, a small model G of one architecture, which alone is exchanged. A private projector
P_k fuses the features of both. The fused vector is nested: its first d1 entries are read by the
small (global) head, all its d2_k entries by the large (local) head, and both losses train
everything.

    R_G = G_ex(x) in R^d1      R_F = F_ex(x) in R^d2      R~ = P([R_G ; R_F]) in R^d2
    loss = m_G CE(G_hd(R~[:d1]), y) + m_F CE(F_hd(R~), y)

Uplink, per participant and round: the small model theta, float32; for 3x32x32 images and the
CNN-5 type 414,548 + 501 d1 + C (d1 + 1) scalars. Downlink, to everyone: the same entries,
averaged. Private: F_k (omega) and P_k (phi), (d1 + d2) d2 + d2 parameters, kept from one
participation to the next.

Order of a round on a client: load theta; train F_k, G and P_k in one SGD, each with its gradient
clipped to norm 50, each extractor run once a batch; upload theta. Server: theta <- sum_k (n_k/n)
theta_k, n_k training examples, n their sum over the clients that answered. Evaluation follows
training (`post`): a participant with its own theta, everyone else with the downlink's. Of the
four models, mix-large F_hd(R~) is "accuracy"; mix-small G_hd(R~[:d1]), single-small G_hd(R_G) and
single-large F_hd(R_F) stand beside it. The single ones never saw unfused features in training.

Options: `tie-heads` (the paper's outlook MRL-E) takes W_G = W_F[:, :d1], b_G = b_F; `without-mrl`
(its ablation) trains with the large head's loss alone; theta_ex is still averaged. In both, the
head of G is not used and not sent: fewer scalars. The ablation has no small-head models to report.

Defects of the public codes, not copied: one small model's state, stored without a copy, stands
for all clients, so that the "average" is the last client's; optimisers with momentum are shared
across clients; n_k counts validation and test examples; each network runs twice a batch; the
homogeneous script ties the heads in every step, the heterogeneous one has d1 = d2, no nesting.
HtFLlib never stores the trained projector, and averages uniformly (option `mean`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import SplitModel
from models.skeleton import skeleton
from models.small import ALL_SMALL_MODELS
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo
from strategies.base.method import Training, register
from strategies.base.options import ConfigError, option
from strategies.base.payload import Template
from strategies.base.server import ServerContext
from strategies.common.small_model import (
    SmallModelPayload,
    SmallModelServer,
    SmallModelState,
    small_model,
)
from strategies.common.training import train_epochs
from strategies.common.weights import load_arrays, state_arrays, state_template


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedMRL; defaults are the paper's.

    Attributes
    ----------
    small_model : str
        Architecture of G: CNN-5 (the paper's, between unlike clients), CNN-1 (between equal
        ones), or HtFLlib's FedAvgCNN, whose 512 features are average-pooled to d1.
        On sentences the default stands for text-small, on numbers for mlp-small or cnn1d-small.
    d1 : int
        Width of the small model's features, at most every client's d2.
    local_width : str
        d2 of a client: "raw", its architecture's own width (500 for CNN-k), which may differ
        between clients; or "feature-dim", that key's, to which features are average-pooled.
    weight_small, weight_large : float
        m_G and m_F, weights of the two losses.
    clip_norm : float
        Largest gradient norm of each of F_k, G and P_k; 0 does not clip.
    mean : str
        Weights of theta_k on the server: n_k ("weighted"), or equal ("uniform").
    without_mrl, tie_heads : bool
        The ablation and the variant of the module's head; not both.
    """

    small_model: str = option(*ALL_SMALL_MODELS)
    d1: int = option(100, minimum=16)
    local_width: str = option("raw", "feature-dim")
    weight_small: float = option(1.0, minimum=0)
    weight_large: float = option(1.0, minimum=0)
    clip_norm: float = option(50.0, minimum=0)
    mean: str = option("weighted", "uniform")
    without_mrl: bool = option(False)
    tie_heads: bool = option(False)

    def __post_init__(self) -> None:
        if self.without_mrl and self.tie_heads:
            raise ConfigError(
                "fedmrl.tie-heads = True: expected false where fedmrl.without-mrl = True, "
                "which has no small head to tie"
            )

    @property
    def small_head(self) -> str:
        """Where the small head's weights come from: "own", "tied" or "none"."""
        return "none" if self.without_mrl else "tied" if self.tie_heads else "own"


Uplink = SmallModelPayload
Downlink = SmallModelPayload
"""What travels both ways: the small model's state theta."""


@dataclasses.dataclass
class ClientState:
    """Private model F_k and projector P_k, the last G, and the run's `small_head`.

    Every downlink overwrites `small`. It is here for the evaluation after training.
    """

    model: SplitModel
    projector: nn.Linear
    small: SplitModel
    small_head: str


def exchanged(small: SplitModel, small_head: str) -> dict[str, Tensor]:
    """Return the entries of G that are exchanged: all, or all but a head that is not used."""
    entries: dict[str, Tensor] = small.state_dict()
    if small_head == "own":
        return entries
    return {name: item for name, item in entries.items() if not name.startswith("head.")}


def small_logits(state: ClientState, features: Tensor) -> Tensor:
    """Apply the small head, G's own or the tied one: (N, d1) to (N, C).

    Tied, its weight is W_F[:, :d1], (C, d1), a view: gradients reach the large head.
    """
    if state.small_head == "tied":
        large = state.model.head
        return F.linear(features, large.weight[:, : features.shape[1]], large.bias)
    logits: Tensor = state.small.head(features)
    return logits


def fused_features(state: ClientState, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run both extractors once and fuse their features.

    Parameters
    ----------
    state : ClientState
        The three modules.
    images : Tensor
        (N, channels, S, S).

    Returns
    -------
    tuple of Tensor
        R_G (N, d1), R_F (N, d2) and R~ = P([R_G ; R_F]) (N, d2), the small part first, without
        an activation after P.
    """
    small, large = state.small.features(images), state.model.features(images)
    return small, large, state.projector(torch.cat([small, large], dim=1))


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: both models and the projector trained by the two nested losses."""

    def build(self, context: ClientContext) -> ClientState:
        config = context.config
        model = context.build_model(mapping="none" if config.local_width == "raw" else "AP")
        d1, d2 = config.d1, model.feature_dim
        small = small_model(context.run, context.shape, d1)
        return ClientState(model, nn.Linear(d1 + d2, d2), small, config.small_head)

    def templates(self, context: ClientContext) -> Mapping[str, Template]:
        config = context.config
        with skeleton():
            small = small_model(context.run, context.shape, config.d1)
        return {"theta": state_template(exchanged(small, config.small_head))}

    def receive(self, context: ClientContext, state: ClientState, downlink: Downlink) -> None:
        load_arrays(state.small.state_dict(), downlink.theta)

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config = context.config

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            _, _, fused = fused_features(state, images)
            large = F.cross_entropy(state.model.head(fused), labels)
            if config.without_mrl:
                return {"loss_large": config.weight_large * large}
            nested = small_logits(state, fused[:, : config.d1])
            return {
                "loss_small": config.weight_small * F.cross_entropy(nested, labels),
                "loss_large": config.weight_large * large,
            }

        modules = [state.model, state.small, state.projector]
        metrics = train_epochs(context, modules, loss, clip_norm=config.clip_norm or None)
        return Uplink(state_arrays(exchanged(state.small, state.small_head))), metrics

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        small, large, fused = fused_features(state, images)
        scores = {"accuracy": state.model.head(fused)}
        if state.small_head != "none":
            scores["accuracy_mix_small"] = small_logits(state, fused[:, : small.shape[1]])
            scores["accuracy_single_small"] = small_logits(state, small)
        scores["accuracy_single_large"] = state.model.head(large)
        return scores


class Server(SmallModelServer):
    """Server half: one small model, the mean of the round's."""

    def check(
        self, context: ServerContext, state: SmallModelState | None, client: ClientInfo
    ) -> str | None:
        d1 = context.config.d1
        if client.feature_dim < d1:
            return (
                f"client {client.client_id}: model {client.model} has representation width "
                f"{client.feature_dim}, fedmrl.d1 = {d1} must not exceed it; lower "
                "fedmrl.d1, or give the client a wider model"
            )
        return super().check(context, state, client)

    def small_width(self, context: ServerContext) -> int:
        return int(context.config.d1)

    def exchanged(self, context: ServerContext, small: SplitModel) -> dict[str, Tensor]:
        return exchanged(small, context.config.small_head)


METHOD = register(
    __name__,
    summary="a shared small model, fused with the private one into nested representations",
    training=Training(optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=1e-3),
    evaluate_when="post",
    common_feature_dim=False,
    shares_reader=True,
    averages=True,
)
