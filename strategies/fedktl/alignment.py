"""What FedKTL's server learns: to bring prototypes to where its generator's latents are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strategies.base.server import LOSS_AFTER, LOSS_BEFORE
from strategies.common.optimizers import make_adam, take_step
from strategies.common.prototypes import class_means, distances

if TYPE_CHECKING:
    from strategies.fedktl.fedktl import Config

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
"""a of the kernels exp(-|x - y|^2 / (2 a)) of the authors' code."""
LOSS_ROWS = 512
"""Prototypes at most on which the loss before and after training is measured."""

Draw = Callable[[int], Tensor]
"""From a number to that many latents (n, w), on the CPU."""


class FeatureTransformer(nn.Module):
    """F: Linear(C, C), BatchNorm, ReLU, Linear(C, w)."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(classes, classes)
        self.norm = nn.BatchNorm1d(classes)
        self.output = nn.Linear(classes, width)

    def forward(self, prototypes: Tensor) -> Tensor:
        """Prototypes (N, C) to latents (N, w)."""
        latents: Tensor = self.output(F.relu(self.norm(self.hidden(prototypes))))
        return latents


def kernel_mean(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean over pairs of (n, w) and (m, w) of the kernels' sum; 4 where all agree."""
    squared = distances(x, y).square()
    return torch.stack([(-squared / (2 * a)).exp().mean() for a in BANDWIDTHS]).sum()


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of two sets (n, w) and (m, w), own pairs too."""
    return kernel_mean(x, x) + kernel_mean(y, y) - 2 * kernel_mean(x, y)


def terms(found: Tensor, latents: Tensor, centroids: Tensor, weight: float) -> Tensor:
    """Return MMD(F(P), latents) and weight MSE(F(P), centroids), (2,); all are (B, w)."""
    return torch.stack([mmd(found, latents), weight * F.mse_loss(found, centroids)])


@torch.no_grad()
def with_class_means(
    transformer: FeatureTransformer, centroids: Tensor, prototypes: Tensor, labels: Tensor
) -> Tensor:
    """Return centroids (C, w) in which the received classes' are the means of their F(P).

    F is in evaluation mode; others keep what they have. Prototypes are (N, C), labels (N,).
    """
    class_ids, means, _ = class_means(transformer(prototypes), labels)
    moved = centroids.clone()
    moved[torch.from_numpy(class_ids)] = torch.from_numpy(means)
    return moved


def align(
    transformer: FeatureTransformer,
    centroids: Tensor,
    prototypes: Tensor,
    labels: Tensor,
    draw: Draw,
    config: Config,
    rng: torch.Generator,
) -> dict[str, float]:
    """Train F, and copies of the centroids, by Adam; return what is measured.

    As in the authors' code the centroids move with F in between, so that the second term does not
    hold F back. A batch of one is left out, of which BatchNorm has no statistics; so a single
    prototype trains nothing.

    Parameters
    ----------
    transformer : FeatureTransformer
        F, trained in place and in evaluation mode at the end.
    centroids : Tensor
        (C, w), not changed.
    prototypes, labels : Tensor
        The round's prototypes of all clients, (N, C), and their classes (N,).
    draw : callable
        Draws latents.
    config : Config
        Of the method.
    rng : torch.Generator
        Shuffles.
    """
    chosen = torch.randperm(len(labels), generator=rng)[:LOSS_ROWS]
    compared = draw(len(chosen))

    @torch.no_grad()
    def measured(goals: Tensor) -> Tensor:
        found = transformer(prototypes[chosen])
        return terms(found, compared, goals[labels[chosen]], config.centroid_weight)

    goals = nn.Parameter(centroids.clone())
    before = measured(goals)
    trained = [list(transformer.parameters()), [goals]]
    optimizer = make_adam(torch.optim.Adam, [*trained[0], goals], lr=config.server_lr)
    transformer.train()
    for _ in range(config.server_epochs):
        order = torch.randperm(len(labels), generator=rng)
        for rows in order.split(config.server_batch_size):
            if len(rows) < 2:
                continue
            found = transformer(prototypes[rows])
            loss = terms(found, draw(len(rows)), goals[labels[rows]], config.centroid_weight).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for parameters in trained if config.clip_norm else ():
                nn.utils.clip_grad_norm_(parameters, config.clip_norm)
            take_step(optimizer)
    transformer.eval()
    after = measured(goals.detach())
    return {
        LOSS_BEFORE: before.sum().item(),
        LOSS_AFTER: after.sum().item(),
        "server_loss_mmd": after[0].item(),
        "server_loss_centroid": after[1].item(),
    }


def latents_apart(latents: Tensor) -> bool:
    """Return whether latents (n, w) are so far apart that no kernel tells anything of them.

    Where the kernels of all pairs of unlike latents together are below a hundredth of a pair's of
    equal ones, the gradient of the MMD is lost.
    """
    count = len(latents)
    others = kernel_mean(latents, latents).item() * count - len(BANDWIDTHS)
    return others / (count - 1) < len(BANDWIDTHS) / 100
