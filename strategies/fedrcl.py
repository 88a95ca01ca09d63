"""FedRCL: FedAvg whose clients draw unlike examples of a class together, but never to one point.

Seo et al., Relaxed Contrastive Learning for Federated Learning (CVPR 2024, arXiv 2401.04928). With
s(i, j) the cosine similarity of the features of two examples of a batch,

    SCL_i     = -log( e^{s+/tau} / (e^{s+/tau} + sum_{the 2 nearest} e^{s-/tau}) )
    penalty_i = -log( e^{1/tau} / (e^{1/tau} + e^{s+/tau}) )                  where s+ > threshold
    loss      = CE + weight * mean over levels of (mean_i SCL_i + mean_i penalty_i)

s+ is the least similar example of i's class, s- those of other classes that are most similar. The
penalty keeps the features of a class from collapsing: where even the least similar one is near, it
is pushed away; elsewhere s+ counts as -1 in it, which is next to nothing. Means are over the
examples that have another of their class in the batch; a batch without any adds 0.

Levels are the maps of the model's stem and stages, averaged over pixels, and what its head reads
(`Backbone.feature_levels`); of a network that names none, the latter alone.

The server averages as FedAvg, within architectures. Clients may have unlike tasks, and are then
averaged within a task too. The paper classifies; for the others, as for FedMuscle's comparison,
which does not say how: two examples are of one class if they share a label that is present, and
pictures to be segmented if they share a class other than the background.

Scalars: |w_k| up and down. Evaluated: every architecture's model, before local training. The
authors train with SGD 0.1, times 0.998 a round, decay 0.001, batches of 50.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.annotated import IGNORE
from models import SplitModel, TaskModel
from strategies.base.client import ClientContext
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.common.groups import (
    AveragingServer,
    GroupClient,
    GroupClientState,
    GroupServerState,
)
from strategies.common.layerwise import WeightsPayload
from strategies.common.losses import task_loss
from strategies.common.training import train_epochs


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedRCL; defaults are the authors'.

    Attributes
    ----------
    mean : str
        Weights of clients in the mean of their weights: n_k ("weighted") or equal ("uniform").
    weight : float
        Weight of the contrastive terms; 0 is FedAvg.
    tau : float
        Temperature of the similarities.
    negatives : int
        How many examples of other classes stand against an example of the own one.
    threshold : float
        Similarity of an example's least similar one of its class above which it is pushed away.
    levels : str
        "all": features of all levels; "last": only what the head reads.
    """

    mean: str = option("weighted", "uniform")
    weight: float = option(1.0, minimum=0)
    tau: float = option(0.05, above=0)
    negatives: int = option(2, minimum=1)
    threshold: float = option(0.7, minimum=-1, maximum=1)
    levels: str = option("all", "last")


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ClientState = GroupClientState
ServerState = GroupServerState


def same_class(task: str, targets: Tensor, classes: int) -> Tensor:
    """Return which examples of a batch count as of one class, (B, B) bool.

    Parameters
    ----------
    task : str
        The client's task.
    targets : Tensor
        Class ids (B,), presence (B, C), or masks (B, S, S) with 0 for the background.
    classes : int
        C, which only masks need.
    """
    if task not in ("multilabel", "segmentation"):
        return targets[:, None] == targets[None, :]
    present = targets == 1
    if task == "segmentation":
        ids = targets.long().flatten(1)
        seen = torch.zeros(len(ids), IGNORE + 1, device=ids.device).scatter_(1, ids, 1.0)
        present = seen[:, 1 : classes + 1] > 0  # neither background nor what is ignored
    return present.float() @ present.float().T > 0


def relaxed_contrast(
    features: Tensor, same: Tensor, tau: float, negatives: int, threshold: float
) -> tuple[Tensor, Tensor]:
    """Return the means of SCL and of the penalty over a batch, two scalars.

    Parameters
    ----------
    features : Tensor
        (B, d), of any length; computed in float32.
    same : Tensor
        Which are of one class, (B, B) bool; the diagonal does not matter.
    tau, negatives, threshold
        See `Config`.
    """
    with torch.autocast(features.device.type, enabled=False):
        unit = F.normalize(features.float(), dim=1, eps=1e-6)
        similar = unit @ unit.T
        own = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        of_class = same & ~own
        far = similar.masked_fill(~of_class, torch.inf).amin(dim=1)
        near = similar.masked_fill(same | own, -torch.inf)
        near = near.topk(min(negatives, len(unit)), dim=1).values
        anchors = of_class.any(dim=1)
        count = anchors.sum().clamp(min=1)
        # What is no anchor has no s+: any finite number, and no part in the sums.
        far = torch.where(anchors, far, 0.0)
        # The quotient is 1 / (1 + sum e^{(s- - s+)/tau}); absent negatives are e^-inf = 0.
        gaps = F.pad((near - far[:, None]) / tau, (1, 0))
        scl = torch.where(anchors, gaps.logsumexp(dim=1), 0.0).sum() / count
        pushed = torch.where(far > threshold, far, -1.0)
        penalty = torch.where(anchors, F.softplus((pushed - 1) / tau), 0.0).sum() / count
        return scl, penalty


@contextmanager
def watched(model: SplitModel | TaskModel, levels: str) -> Iterator[list[Tensor]]:
    """Yield a list that a forward pass appends its levels' features to, each (B, c).

    Maps (B, c, h, w) are averaged over their pixels. Whoever reads the list empties it.
    """
    seen: list[Tensor] = []

    def keep(features: Tensor) -> None:
        seen.append(features.flatten(2).mean(dim=2) if features.dim() > 2 else features)

    encoder = model.encoder if isinstance(model, TaskModel) else model.backbone
    named = getattr(encoder, "feature_levels", list) if levels == "all" else list
    modules: list[nn.Module] = named()
    hooks = [m.register_forward_hook(lambda _m, _i, out: keep(out)) for m in modules]
    hooks.append(model.head.register_forward_pre_hook(lambda _m, inputs: keep(inputs[0])))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


class Client(GroupClient):
    """Client half: the task's loss and the relaxed contrast, from the received weights."""

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config, data, model = context.config, context.data, state.model
        own_task = task_loss(data.task, model)

        def loss(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            levels.clear()
            terms = own_task(inputs, targets)
            same = same_class(data.task, targets, data.num_classes)
            pairs = [
                relaxed_contrast(z, same, config.tau, config.negatives, config.threshold)
                for z in levels
            ]
            scl, penalty = (torch.stack(part).mean() for part in zip(*pairs, strict=True))
            return {
                **terms,
                "loss_scl": config.weight * scl,
                "loss_penalty": config.weight * penalty,
            }

        with watched(model, config.levels) as levels:
            metrics = train_epochs(context, [model], loss)
        return self.outgoing(state), metrics


class Server(AveragingServer):
    """Server half: means by architecture, and by task where there are several."""


METHOD = register(
    __name__,
    summary="FedAvg, with features of a class drawn together where far apart, pushed where near",
    training=Training(optimizer="sgd", lr=0.1, weight_decay=1e-3),
    common_feature_dim=False,
    evaluated_model="global",
    any_task=True,
    averages=True,
)
