"""The measures: linear CKA, class confusion, and the expected calibration error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 15


def centred_gram(representations: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the Gram matrix of column-centred representations, (n, n), scaled to norm 1.

    What CKA needs of representations (n, d) whatever their width; for wide ones it is smaller than
    they are. Representations that do not vary have a matrix of zeros.
    """
    rows = representations.astype(np.float64).reshape(len(representations), -1)
    rows = rows - rows.mean(axis=0)
    gram: NDArray[np.float64] = rows @ rows.T
    norm = np.linalg.norm(gram)
    return gram / norm if norm > 0 else gram


def linear_cka(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Return the linear CKA of two representations from their `centred_gram` matrices (n, n).

    With centred X (n, p) and Y (n, q) it is ||Y^T X||_F^2 / (||X^T X||_F ||Y^T Y||_F) (Kornblith et
    al., arXiv 1905.00414), which is the inner product of their scaled Gram matrices: 1 for what is
    equal but for rotation and scale, 0 for what has nothing linear in common. None where a
    representation does not vary over the examples, of which nothing can be said.
    """
    if not one.any() or not other.any():
        return None
    return float(np.vdot(one, other))


def confusion(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """Count examples (n,) by true class, the rows, and predicted class, the columns: (C, C)."""
    counts = np.bincount(labels * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often a model is right when it is so sure.

    Attributes
    ----------
    counts : NDArray[np.int64]
        (B,) examples whose confidence lies in the b-th of B equal parts of (0, 1].
    confidence, accuracy : NDArray[np.float64]
        (B,) their mean confidence, and the share of right predictions; NaN where there are none.
    """

    counts: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap between the two, weighted by examples."""
        gaps = np.abs(self.confidence - self.accuracy)
        return float(np.nansum(gaps * self.counts) / self.counts.sum())


def calibration(
    confidence: NDArray[np.floating], right: NDArray[np.bool_], bins: int = BINS
) -> Calibration:
    """Sort predictions into bins of equal width by confidence (Guo et al., arXiv 1706.04599).

    Parameters
    ----------
    confidence : ndarray
        (n,) the largest class probability of every example, in (0, 1]; n >= 1.
    right : ndarray
        (n,) whether the prediction was right.
    bins : int
        B; a value on an edge belongs to the lower bin.
    """
    values = confidence.astype(np.float64)
    places = np.clip(np.ceil(values * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(places, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = np.bincount(places, weights=values, minlength=bins) / counts
        accuracy = np.bincount(places, weights=right.astype(np.float64), minlength=bins) / counts
    return Calibration(counts, means, accuracy)
