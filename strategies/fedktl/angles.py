"""Classes as directions: the simplex ETF, and cross entropy with ArcFace's margin."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST_COSINE = 1 - 1e-6
"""Beyond it the gradient of the angle, 1 / sin, is not followed: at 1 it is infinite."""


def simplex_etf(classes: int, rng: torch.Generator) -> Tensor:
    """Return sqrt(C / (C - 1)) P (I - 11^T / C), (C, C): one column a class.

    Columns have the length 1 and pairwise the cosine -1 / (C - 1). P is a random orthonormal
    matrix, drawn from `rng`.

    Raises
    ------
    ValueError
        If there are fewer than two classes, which have no simplex.
    """
    if classes < 2:
        raise ValueError(f"classes={classes}: a simplex ETF needs two or more")
    drawn = torch.randn(classes, classes, generator=rng, dtype=torch.float64)
    basis = torch.linalg.qr(drawn).Q
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    etf: Tensor = (classes / (classes - 1)) ** 0.5 * basis @ centred
    return etf.float()


def cosines(outputs: Tensor, etf: Tensor) -> Tensor:
    """Return the cosines (N, C) of outputs (N, C) to the columns of an ETF (C, C), in float32."""
    with torch.autocast(outputs.device.type, enabled=False):
        return F.normalize(outputs.float(), dim=1) @ etf


def arcface_loss(cosine: Tensor, labels: Tensor, margin: float, scale: float) -> Tensor:
    """Return the batch mean of CE(s c', y), c' the cosines with cos(angle + m) at the label.

    Deng et al., ArcFace (CVPR 2019). As in FedKTL's sources the margin is added to any angle,
    also to one that it takes beyond pi.

    Parameters
    ----------
    cosine, labels : Tensor
        (B, C) and (B,).
    margin, scale : float
        m, in radians, and s.
    """
    cosine = cosine.float()  # the largest cosine is 1 in bfloat16, where acos has no slope
    own = F.one_hot(labels, cosine.shape[1]).bool()
    angle = cosine.clamp(-LARGEST_COSINE, LARGEST_COSINE).acos()
    return F.cross_entropy(scale * torch.where(own, (angle + margin).cos(), cosine), labels)
