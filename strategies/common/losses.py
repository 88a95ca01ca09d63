"""Losses: plain cross entropy, what each task minimises, and the Muscle loss on public items.

| task | targets | loss |
|---|---|---|
| classification, text | class ids (N,) | cross entropy |
| multilabel | presence (N, C), 255 = ignore | binary cross entropy, mean over N, C |
| segmentation | masks (N, S, S), 255 = ignore | cross entropy a pixel |
| regression | numbers (N,) | squared error |
| retrieval | tokens (N, L), which are not read | InfoNCE between images and captions, both ways |
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data.annotated import IGNORE

LossFunction = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""From normalised images (B, C, H, W) and labels (B,) to named loss terms, already weighted."""

Temperature = float | Tensor

LARGEST_BLOCK = 2**25
"""Most tuples that are in memory at once: 134 MB in float32, all of B = 32, M = 5."""

_LARGEST_EXPONENT = 80.0  # exp of it, summed over 2**25 tuples, is within float32

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

    def squared(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"loss_mse": F.mse_loss(model(inputs).squeeze(1).float(), targets)}

    losses = {
        "multilabel": binary, "segmentation": pixelwise, "retrieval": contrastive,
        "regression": squared,
    }  # fmt: skip
    return losses.get(task, cross_entropy_of(model))


def pair_loss(images: Tensor, texts: Tensor, temperature: float = PAIR_TEMPERATURE) -> Tensor:
    """Return InfoNCE between the images and captions of a batch, the mean of both directions.

    Representations (B, d) of unit length; row i of both belongs together, others do not.
    """
    similar = images @ texts.T / temperature
    own = torch.arange(len(similar), device=similar.device)
    return (F.cross_entropy(similar, own) + F.cross_entropy(similar.T, own)) / 2


def muscle_loss(
    anchor: Tensor,
    others: Tensor,
    temperature: Temperature = 0.2,
    temperature_others: Temperature = 0.15,
    *,
    largest_block: int = LARGEST_BLOCK,
) -> Tensor:
    """Return the Muscle loss L_Muscle(z_i^n) of every item, (B,), without its B^M tuples.

    With A^m = Z^n (Z^m)^T / tau_2 and W^{mm'} = -gamma Z^m (Z^{m'})^T,

        L_i = log sum_{j_1..j_M} exp(sum_m A^m[i, j_m] + sum_{m<m'} W^{mm'}[j_m, j_m'])
              - sum_m A^m[i, i] - sum_{m<m'} W^{mm'}[i, i],

    where the sum runs over all tuples, the positive one included. It is contracted one user at a
    time, so that the largest tensor has B^M entries, not B^(M+1); beyond `largest_block` entries
    it is made and contracted block by block, and made again for the gradient.

    Source: FedMuscle (ICLR 2026, arXiv 2602.01626). Gradients flow through `anchor` alone. Half
    precision is computed in float32, float64 stays.

    Parameters
    ----------
    anchor, others : Tensor
        The own representations z^n (B, d), and those of M >= 1 others (M, B, d), all rows of unit
        length; row i everywhere belongs to the same public item.
    temperature : float or Tensor
        tau^(N), here tau_2; or one for each pair of the N models, (M+1, M+1), the anchor first.
    temperature_others : float or Tensor
        tau^(N-1), here tau_1, smaller than tau_2; or one for each pair of the others, (M, M).
    largest_block : int
        See above.

    Raises
    ------
    ValueError
        If a gamma = 1/tau_1 - 1/tau_2 is negative; with 0 it is the pairwise loss.
    """
    count, batch = len(others), len(anchor)
    to_anchor, gamma = _temperatures(count, temperature, temperature_others)
    bound = sum(1 / t for t in to_anchor) + sum(gamma.values())
    dtype = torch.promote_types(anchor.dtype, torch.float32)
    if bound > _LARGEST_EXPONENT:
        dtype = torch.float64
    anchor, others = anchor.to(dtype), others.detach().to(dtype)
    with torch.autocast(anchor.device.type, enabled=False):
        similar = [anchor @ z.T / t for z, t in zip(others, to_anchor, strict=True)]
        pairs = {(m, n): -g * others[m] @ others[n].T for (m, n), g in gamma.items()}
        positive = torch.stack([a.diagonal() for a in similar]).sum(dim=0)
        for pair in pairs.values():
            positive = positive + pair.diagonal()
        rows = max(1, largest_block // batch ** (count - 1))
        weights = [a.exp().T for a in similar]  # (tuple member, anchor)
        total = torch.zeros_like(positive)
        for start in range(0, batch, rows):
            part = slice(start, start + rows)
            if rows >= batch:
                total = _contract(part, pairs, *weights)
            else:
                total = total + checkpoint(_contract, part, pairs, *weights, use_reentrant=False)
        return total.log() - positive


def _contract(part: slice, pairs: dict[tuple[int, int], Tensor], *weights: Tensor) -> Tensor:
    """Sum over the tuples whose first member is in `part`; (B,) by anchor."""
    count, batch = len(weights), len(weights[0])
    first = weights[0][part]
    terms = torch.zeros((len(first),) + (batch,) * (count - 1)).to(first)
    for (m, n), pair in pairs.items():
        shape = [1] * count
        shape[m], shape[n] = (len(first) if m == 0 else batch), batch
        terms += (pair[part] if m == 0 else pair).view(shape)
    terms.exp_()
    if count == 1:
        return first.sum(dim=0)
    contracted = terms.view(-1, batch) @ weights[-1]
    for weight in (*reversed(weights[1:-1]), first):
        contracted = (contracted.view(-1, len(weight), batch) * weight).sum(dim=1)
    return contracted.squeeze(0)


def _temperatures(
    count: int, temperature: Temperature, others: Temperature
) -> tuple[list[float], dict[tuple[int, int], float]]:
    """Return tau_2 of the anchor with every other, and gamma of every pair of others."""
    two = torch.as_tensor(temperature, dtype=torch.float64).expand(count + 1, count + 1)
    one = torch.as_tensor(others, dtype=torch.float64).expand(count, count)
    gamma = {
        (m, n): float(1 / one[m, n] - 1 / two[m + 1, n + 1])
        for m, n in combinations(range(count), 2)
    }
    if any(value < 0 for value in gamma.values()):
        raise ValueError(
            f"temperature of the others, {others}: must not be above temperature, {temperature}, "
            "or tuples that agree would be weighed down"
        )
    return two[0, 1:].tolist(), gamma
