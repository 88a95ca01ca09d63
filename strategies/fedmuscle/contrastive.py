"""Losses that align one model's representations with those of others, item by item.

The alternatives to the Muscle loss, which is in `strategies.common.losses`: InfoNCE (van den Oord
2018), GRAM (Cicchetti 2025) and SimCLR's NT-Xent (Chen 2020). In all of them ``anchor`` is the own
representations z^n (B, d) and ``others`` those of M other users (M, B, d), all rows of unit length;
row i everywhere belongs to the same public item. Gradients flow through ``anchor`` alone. Half
precision is computed in float32, float64 stays.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_RIDGE = 1e-6
_SMALLEST_DETERMINANT = 1e-12


def information_bound(loss: float, users: int, batch: int) -> float:
    """Return the lower bound M log B - E[L] of I(z^n; {z^m}), in nats."""
    return users * math.log(batch) - loss


def pairwise_loss(anchor: Tensor, others: Tensor, temperature: float = 0.2) -> Tensor:
    """Return the sum over users of InfoNCE(anchor, user) for every item, (B,)."""
    anchor = anchor.float() if anchor.dtype != torch.float64 else anchor
    target = torch.arange(len(anchor), device=anchor.device)
    with torch.autocast(anchor.device.type, enabled=False):
        losses = [
            F.cross_entropy(anchor @ z.to(anchor).T / temperature, target, reduction="none")
            for z in others.detach()
        ]
        return torch.stack(losses).sum(dim=0)


def gramian_loss(
    anchor: Tensor, others: Tensor, temperature: float = 0.07, label_smoothing: float = 0.0
) -> Tensor:
    """Return GRAM's contrastive loss of every item, (B,), with B candidates.

    The volume of anchor i with item j of all others is sqrt(|det G|), G the Gram matrix of the
    M + 1 vectors; small volumes mean agreement. Half the cross entropy of -volume / tau over j at
    j = i, half that over i. 1e-6 is added to G's diagonal, and determinants below 1e-12, where a
    square root has no useful gradient, count as that.
    """
    anchor = anchor.float() if anchor.dtype != torch.float64 else anchor
    others = others.detach().to(anchor)
    count, batch, _ = others.shape
    with torch.autocast(anchor.device.type, enabled=False):
        cross = torch.einsum("id,mjd->ijm", anchor, others)
        gram = anchor.new_ones(batch, batch, count + 1, count + 1)
        gram[:, :, 1:, 1:] = torch.einsum("mjd,njd->jmn", others, others)
        gram[:, :, 0, 1:] = gram[:, :, 1:, 0] = cross
        gram[:, :, 0, 0] = (anchor * anchor).sum(dim=1)[:, None]
        gram = gram + _RIDGE * torch.eye(count + 1).to(gram)
        volume = torch.linalg.det(gram).abs().clamp_min(_SMALLEST_DETERMINANT).sqrt()
        logits = -volume / temperature
        target = torch.arange(batch, device=anchor.device)
        both = [
            F.cross_entropy(x, target, reduction="none", label_smoothing=label_smoothing)
            for x in (logits, logits.T)
        ]
        return (both[0] + both[1]) / 2


def nt_xent(first: Tensor, second: Tensor, temperature: float = 0.5) -> Tensor:
    """Return SimCLR's loss of every view, (2B,), for two views (B, d) of B items.

    A view's positive is the other view of its item; its negatives are the 2B - 2 views of others.
    """
    views = torch.cat([first, second]).float()
    batch = len(first)
    with torch.autocast(views.device.type, enabled=False):
        similar = views @ views.T / temperature
        similar = similar.masked_fill(
            torch.eye(2 * batch, dtype=torch.bool, device=views.device), -torch.inf
        )
        target = torch.arange(2 * batch, device=views.device).roll(batch)
        return F.cross_entropy(similar, target, reduction="none")
