"""Losses of local training: plain cross entropy, and what each task minimises.

| task | targets | loss |
|---|---|---|
| classification, text | class ids (N,) | cross entropy |
| multilabel | presence (N, C), 255 = ignore | binary cross entropy, mean over N, C |
| segmentation | masks (N, S, S), 255 = ignore | cross entropy a pixel |
| retrieval | tokens (N, L), which are not read | InfoNCE between images and captions, both ways |
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.annotated import IGNORE

LossFunction = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""From normalised images (B, C, H, W) and labels (B,) to named loss terms, already weighted."""

PAIR_TEMPERATURE = 0.07
"""Of the InfoNCE between images and captions; CLIP's first value."""


def cross_entropy_of(model: nn.Module) -> LossFunction:
    """Return the plain local loss: cross entropy of the model's logits, named `loss_ce`."""

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss_ce": F.cross_entropy(model(images), labels)}

    return loss


def task_loss(task: str, model: nn.Module) -> LossFunction:
    """Return a task's loss of a batch of inputs and targets, as one named term."""

    def binary(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        logits, known = model(inputs), targets != IGNORE
        present = (targets == 1).to(logits.dtype)
        each = F.binary_cross_entropy_with_logits(logits, present, reduction="none")
        return {"loss_bce": (each * known).sum() / known.sum().clamp(min=1)}

    def pixelwise(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        logits, wanted = model(inputs), targets.long()
        # The mean over no pixel at all is undefined; here it is 0, with a gradient of 0.
        total = F.cross_entropy(logits, wanted, ignore_index=IGNORE, reduction="sum")
        return {"loss_ce": total / (wanted != IGNORE).sum().clamp(min=1)}

    def contrastive(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"loss_pairs": pair_loss(*model(inputs).chunk(2, dim=1))}

    losses = {"multilabel": binary, "segmentation": pixelwise, "retrieval": contrastive}
    return losses.get(task, cross_entropy_of(model))


def pair_loss(images: Tensor, texts: Tensor, temperature: float = PAIR_TEMPERATURE) -> Tensor:
    """Return InfoNCE between the images and captions of a batch, the mean of both directions.

    Representations (B, d) of unit length; row i of both belongs together, others do not.
    """
    similar = images @ texts.T / temperature
    own = torch.arange(len(similar), device=similar.device)
    return (F.cross_entropy(similar, own) + F.cross_entropy(similar.T, own)) / 2
