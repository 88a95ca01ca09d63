"""Losses of local training: plain cross entropy, and what each task minimises.

| task | targets | loss |
|---|---|---|
| classification, text | class ids (N,) | cross entropy |
| multilabel | presence (N, C), 255 = ignore | binary cross entropy, mean over N, C |
| segmentation | masks (N, S, S), 255 = ignore | cross entropy a pixel |
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from data.annotated import IGNORE

LossFunction = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""From normalised images (B, C, H, W) and labels (B,) to named loss terms, already weighted."""


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

    return {"multilabel": binary, "segmentation": pixelwise}.get(task, cross_entropy_of(model))
