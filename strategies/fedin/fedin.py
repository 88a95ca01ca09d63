"""FedIN: features of others train the layers between stem and head; weights are averaged by layer.

Federated Intermediate Layers Learning, arXiv 2304.00759. A network is cut into stem w_e, body w_in
and head w_c; only the body's depth differs between clients. Beside weights, every client sends a
few pairs (s_in, s_out) of one example: the stem's output and the head's input. Others train their
bodies to map s_in to s_out (IN training), in every local step:

    G_local = d/dw [ CE + (mu/2) ||w - w_ref||^2 ]        w_ref: the received weights
    G_IN    = d/dw_in MSE(f(s_in; w_in), s_out)           w_in's gradient becomes Z of `alleviate`

Uplink, per participant and round: the model's |w_k| parameters, and for a ResNet and 3x32x32 images
s_in (16, 64, 8, 8) and s_out (16, 512): 73,728 scalars. Downlink: the same, averaged weights and 16
pairs drawn from the round before; none in round 1, which is plain local training. Private: nothing,
but w_ref if `anchor = "own"`, and projections if they are trained.

Order of a round on a client: load the weights, train with Adam, draw 16 examples (all, if it has
fewer), capture their pairs in evaluation mode, send. Server: every tensor becomes its mean over the
round's clients that have it (Eq. 19), or over those of one architecture (Eq. 20, 21); the pool of
pairs is replaced. Evaluated: the aggregated model of every architecture, before training.

Where the sources are silent: the IN pass normalises by its own batch (by the running statistics,
if that is one pair) and leaves BatchNorm's running statistics alone; no client gets its own pairs
while there are others; with `feature-batches` = n, n batches go both ways and take turns over the
steps. +Noise: s + level * sigma(s) * z on s_in and s_out, in training or the sent copy alone.

Unlike stems or feature widths, the paper's outlook, meet in a common space (`projections`):
IN training is MSE(Q f(A'(s_in)), s_out), weights are averaged within each architecture. Trainable
projections learn from the local loss through them, never from G_IN, which a collapse would please.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from data import normalise
from models import SplitModel
from strategies.base.client import ClientContext
from strategies.base.method import Training, register
from strategies.base.options import AUTO, ConfigError, option
from strategies.common.layerwise import LayerwiseClient, LayerwiseConfig, WeightsClientState
from strategies.common.training import precision, train_epochs
from strategies.fedin.feature_pool import FeaturePoolServer, PoolState
from strategies.fedin.features import FeaturesPayload, Noise, own_statistics
from strategies.fedin.projections import projections_for

SMALLEST = 1e-12
"""Squared norm below which `alleviate` takes a local gradient for zero."""


@dataclasses.dataclass(frozen=True)
class Config(LayerwiseConfig):
    """Options of FedIN beside the family's. The paper's runs have `batch-size = 16`, 5 epochs.

    Attributes
    ----------
    mean : str
        "auto": equal weights by layer, n_k within architectures, as the paper's equations.
    mu : float
        Weight of the proximal term; 0 is "w/o Prox".
    anchor : str
        w_ref: the weights "received" this round, or the client's "own" after its last training.
    alleviation, scope : str
        Rule of `alleviate`, "none" being "w/o IN": no features are exchanged; and what its inner
        products are over: each "tensor" of the body, or the whole "body".
    feature_batches, feature_batch_size : int
        How many batches of how many pairs a client sends, and gets.
    pool : str
        What pairs are drawn from: the last "round", or the "latest" of every client.
    draw : str
        A draw for every "recipient", without its own pairs, or one "shared" by all in a round.
    noise, sigma, noise_place
        Level; a standard deviation per "tensor" or "channel" (or feature); "training" or "upload".
    local_width : str
        s_out's width: pooled to "feature-dim", or each architecture's own ("raw").
    projection : str
        Between unlike shapes: "fixed", "trainable", or "none", which refuses them.
    common_channels, common_size, common_width
        The common space; "auto": the most channels, least pixels and largest width of a client.
    """

    mean: str = option(AUTO, "uniform", "weighted")
    mu: float = option(0.1, minimum=0)
    anchor: str = option("received", "own")
    alleviation: str = option("simplified", "exact", "sum", "none")
    scope: str = option("tensor", "body")
    feature_batches: int = option(1, minimum=1)
    feature_batch_size: int = option(16, minimum=1)
    pool: str = option("round", "latest")
    draw: str = option("recipient", "shared")
    noise: float = option(0.0, minimum=0)
    sigma: str = option("tensor", "channel")
    noise_place: str = option("training", "upload")
    local_width: str = option("feature-dim", "raw")
    projection: str = option("fixed", "trainable", "none")
    common_channels: int | str = option(AUTO, kind=int, minimum=1)
    common_size: int | str = option(AUTO, kind=int, minimum=1)
    common_width: int | str = option(AUTO, kind=int, minimum=1)

    def __post_init__(self) -> None:
        spaces = (self.common_channels, self.common_size, self.common_width)
        if self.projection == "none" and spaces != (AUTO, AUTO, AUTO):
            raise ConfigError(
                "fedin.projection = 'none': expected fixed or trainable where a common space "
                "is given by fedin.common-channels, common-size or common-width"
            )

    @property
    def mapping(self) -> str:
        """What brings raw features to the head's width."""
        return "none" if self.local_width == "raw" else "AP"

    @property
    def pairs(self) -> int:
        """The most pairs that a client sends, and gets."""
        exchanged = self.alleviation != "none"
        return self.feature_batches * self.feature_batch_size if exchanged else 0


Uplink = FeaturesPayload
Downlink = FeaturesPayload
"""What travels both ways: weights and buffers of the client's architecture, and pairs."""


@dataclasses.dataclass
class ClientState(WeightsClientState):
    """The model, which every downlink brings; what `anchor` and `projection` keep, else empty."""

    anchor: dict[str, Tensor]
    projections: dict[str, Tensor]


def alleviate(
    local: list[Tensor], foreign: list[Tensor], rule: str, scope: str = "tensor"
) -> tuple[list[Tensor], Tensor]:
    """Reconcile the local gradient with that of IN training.

    With a = <G_local, G_local> and b = <G_local, G_IN>, "exact" (Eq. 12) is the solution of
    min ||G_IN - Z||^2 subject to <Z, G_local> >= 0: Z = G_IN if b >= 0, else G_IN - (b/a) G_local.
    "simplified" (Eq. 13) is G_IN + 0.5 G_local, the optimum's form with lambda = 1; "sum" ("w/o
    Opt") is G_IN + G_local. Exact leaves the local gradient out where the two agree, so that such
    layers hardly learn from labels; the paper measures the simplified rule.

    Parameters
    ----------
    local, foreign : list of Tensor
        G_local and G_IN of every tensor, of equal shapes.
    rule : {"simplified", "exact", "sum"}
        See above.
    scope : {"tensor", "body"}
        Whether a and b are of each tensor, or sums over all.

    Returns
    -------
    tuple of list of Tensor, and Tensor
        Z of every tensor; and the share of b < 0, where the exact rule's constraint is active.
    """
    b = _inner(local, foreign, scope)
    active = (b < 0).float().mean()
    if rule != "exact":
        scale = {"simplified": 0.5, "sum": 1.0}[rule]
        return list(torch._foreach_add(foreign, local, alpha=scale)), active
    a = _inner(local, local, scope)
    step = torch.where((b < 0) & (a >= SMALLEST), -b / a.clamp_min(SMALLEST), 0.0)
    corrections = torch._foreach_mul(local, list(step.expand(len(local)).unbind()))
    return list(torch._foreach_add(foreign, list(corrections))), active


def _inner(one: list[Tensor], other: list[Tensor], scope: str) -> Tensor:
    """Return <one, other> of every tensor, or their sum as the only entry."""
    products = torch.stack([item.sum() for item in torch._foreach_mul(one, other)])
    return products if scope == "tensor" else products.sum(0, keepdim=True)


class LocalTraining:
    """One client's round: a step's loss, its gradient reconciled, and the pairs to send."""

    def __init__(self, context: ClientContext, state: ClientState, downlink: Downlink) -> None:
        self.context, config = context, context.config
        self.model: Any = state.model
        self.norms = [m for m in state.model.modules() if isinstance(m, _BatchNorm)]
        self.parameters = list(state.model.parameters())
        self.anchor = list(state.anchor.values()) or [p.detach().clone() for p in self.parameters]
        self.projections = projections_for(context, state.model, downlink.shape, state.projections)
        self.noise = Noise(config.noise, config.sigma, context.generator("noise"))
        self.noisy = config.noise_place == "training"
        batches = downlink.batches(config.feature_batch_size, context.device)
        self.batches = batches if config.pairs else []
        self.steps = 0

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the terms of the local loss that have a graph."""
        s_in, s_out = self._features(images, self.noisy)
        terms = {"loss_ce": F.cross_entropy(self.model.head(s_out), labels)}
        if self.projections.trainable:
            with own_statistics(self.norms, len(labels)):
                logits = self.projections.detour(self.model, s_in.detach())
            terms["loss_projection"] = F.cross_entropy(logits, labels)
        return terms

    def gradient(self) -> dict[str, Tensor]:
        """Complete G_local by mu (w - w_ref), and make the body's Z: `train_epochs`' hook."""
        config = self.context.config
        observed: dict[str, Tensor] = {}
        if config.mu:
            parameters, local, anchor = self._with_gradients(self.anchor)
            drift = torch._foreach_sub([p.detach() for p in parameters], anchor)
            torch._foreach_add_(local, drift, alpha=config.mu)
            norms = torch.stack(list(torch._foreach_norm(drift)))
            observed["loss_prox"] = config.mu / 2 * norms.square().sum()
        if not self.batches:
            return observed
        s_in, s_out = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        with precision(self.context), own_statistics(self.norms, len(s_in)):
            answer = self.model.body(self.projections.take_maps(s_in))
            loss = F.mse_loss(self.projections.send_features(answer), s_out)
        # The body is what the pairs' way leads through; stem and head get no gradient from it.
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        body, local, foreign = self._with_gradients(found)
        mixed, active = alleviate(local, foreign, config.alleviation, config.scope)
        for parameter, z in zip(body, mixed, strict=True):
            parameter.grad = z
        return {**observed, "loss_in": loss, "constraint_active": active}

    @torch.no_grad()
    def capture(self) -> dict[str, NDArray[Any]]:
        """Return the uplink's fields `s_in` and `s_out`: pairs of random training examples."""
        context, train = self.context, self.context.data.train
        order = torch.randperm(len(train), generator=context.generator("features"))
        pixels = train.batch(order[: context.config.pairs])[0].to(context.device)
        with precision(context):
            images = normalise(pixels).to(memory_format=torch.channels_last)
            s_in, s_out = self._features(images, self.noisy)
            if not self.noisy:
                s_in, s_out = self.noise(s_in), self.noise(s_out)
            s_in, s_out = self.projections.send_maps(s_in), self.projections.send_features(s_out)
        arrays = (item.float().cpu().contiguous().numpy() for item in (s_in, s_out))
        return dict(zip(("s_in", "s_out"), arrays, strict=True))

    def _features(self, images: Tensor, noised: bool) -> tuple[Tensor, Tensor]:
        """Return s_in and s_out of images (N, C, H, W), noised on the way if so."""
        noise = self.noise if noised else nn.Identity()
        s_in = noise(self.model.stem(images))
        return s_in, noise(self.model.body(s_in))

    def _with_gradients(
        self, others: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return parameters, their gradients and their entry in `others`, where there are both."""
        pairs = zip(self.parameters, others, strict=True)
        rows = [(p, p.grad, o) for p, o in pairs if p.grad is not None and o is not None]
        return [p for p, _, _ in rows], [g for _, g, _ in rows], [o for _, _, o in rows]


class Client(LayerwiseClient[ClientState, Downlink, Uplink]):
    """Client half: local and IN training from the received weights."""

    def new_state(self, model: SplitModel, buffers: dict[str, Tensor]) -> ClientState:
        return ClientState(model, buffers, {}, {})

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        work = LocalTraining(context, state, downlink)
        modules = [state.model, work.projections]
        sizes = tuple(len(s_in) for s_in, _ in work.batches)
        metrics = train_epochs(
            context, modules, work.loss, gradient_hook=work.gradient, step_cost=sizes
        )
        if context.config.anchor == "own":
            named = state.model.named_parameters()
            state.anchor = {name: item.detach().clone() for name, item in named}
        if work.projections.trainable:
            state.projections = dict(work.projections.state_dict())
        fields: dict[str, Any] = {**self.outgoing(context, state), **work.capture()}
        return Uplink(**fields), metrics


class Server(FeaturePoolServer[PoolState]):
    """Server half: the mean of every layer, and the pool of pairs, which `base` deals out."""


METHOD = register(
    __name__,
    summary="features of others train the inner layers; weights are averaged, layer by layer",
    training=Training(optimizer="adam", lr=1e-3),
    common_feature_dim=False,
    evaluated_model="global",
    reads=("image",),  # stem and body are cut at feature maps
    averages=True,
)
