"""FedRE's representation mapping RM: raw features ``(N, L)`` to the common width ``(N, d)``.

Source: FedRE (CVPR 2026, arXiv 2511.22265). Published accuracy on CIFAR-100 (practical split): AP
46.36, MP 45.97, FC 44.53.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.base import ModelError

MAPPINGS = ("AP", "MP", "FC", "none")
"""Accepted values of ``mapping``; the first is the default."""


class BinPool(nn.Module):
    """Pool a feature vector into d bins: ``(N, L) -> (N, d)``, without parameters.

    Bin j covers the entries from ``floor(j L / d)`` up to, not including, ``ceil((j + 1) L / d)``:
    bins overlap when d does not divide L, and repeat entries when ``L < d``.

    Parameters
    ----------
    pool : nn.AdaptiveAvgPool1d or nn.AdaptiveMaxPool1d
        Does the arithmetic of the bins.
    """

    def __init__(self, pool: nn.AdaptiveAvgPool1d | nn.AdaptiveMaxPool1d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, v: Tensor) -> Tensor:
        """Raw features ``(N, L)`` to ``(N, d)``."""
        # torch would read (N, L) as N channels of one example and refuse N = 0.
        pooled: Tensor = self.pool(v.unsqueeze(1))
        return pooled.squeeze(1)


def build_mapping(kind: str, raw_dim: int, feature_dim: int) -> nn.Module:
    """Make the mapping between a backbone and the common head.

    Parameters
    ----------
    kind : {"AP", "MP", "FC", "none"}
        Average of each bin; maximum of each bin; a trainable, never shared ``Linear(L, d)``; or
        nothing, for which the two widths must agree.
    raw_dim : int
        Width L of the backbone's output.
    feature_dim : int
        Width d of the head's input.

    Returns
    -------
    nn.Module
        ``(N, L) -> (N, d)``. AP and MP have no parameters and are the identity when ``L == d``.

    Raises
    ------
    ModelError
        Unknown kind, width below 1, or ``"none"`` between unlike widths.
    """
    if kind not in MAPPINGS:
        raise ModelError(f"mapping={kind!r} is unknown; use one of {', '.join(MAPPINGS)}")
    if feature_dim < 1:
        raise ModelError(f"feature-dim={feature_dim!r}, must be 1 or more")
    if kind == "FC":
        return nn.Linear(raw_dim, feature_dim)
    if raw_dim == feature_dim:
        return nn.Identity()
    if kind == "none":
        raise ModelError(
            f"mapping='none' cannot bring {raw_dim} raw features to feature-dim={feature_dim}; "
            "use mapping AP, MP or FC"
        )
    if kind == "AP":
        return BinPool(nn.AdaptiveAvgPool1d(feature_dim))
    return BinPool(nn.AdaptiveMaxPool1d(feature_dim))
