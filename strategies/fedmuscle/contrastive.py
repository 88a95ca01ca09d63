"""Losses that align one model's representations with those of others, item by item.

Sources: FedMuscle (ICLR 2026, arXiv 2602.01626) for the Muscle loss, InfoNCE (van den Oord 2018),
GRAM (Cicchetti 2025) and SimCLR's NT-Xent (Chen 2020). In all of them ``anchor`` is the own
representations z^n (B, d) and ``others`` those of M other users (M, B, d), all rows of unit length;
row i everywhere belongs to the same public item. Gradients flow through ``anchor`` alone. Half
precision is computed in float32, float64 stays.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Temperature = float | Tensor

LARGEST_BLOCK = 2**25
"""Most tuples that are in memory at once: 134 MB in float32, all of B = 32, M = 5."""

_LARGEST_EXPONENT = 80.0  # exp of it, summed over 2**25 tuples, is within float32
_RIDGE = 1e-6
_SMALLEST_DETERMINANT = 1e-12


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

    Parameters
    ----------
    anchor, others : Tensor
        (B, d) and (M, B, d), see the module's head; M >= 1.
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
