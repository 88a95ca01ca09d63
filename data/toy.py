"""The data set `toy`: points of a plane, for pictures of what a head tells apart.

FedRE's toy experiment leaves its data unspecified; this is a mixture of the same kind. Five
classes are normal distributions around a circle, each stretched along its own direction, so that
neighbours overlap: who knows the distributions is right about 71 times of 100.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.vectors import Vectors

CLASSES = 5
TRAIN, TEST = 400, 100
"""Points of every class."""
RADIUS = 1.8
LONG, SHORT = 1.5, 0.8
"""Deviations along a class's own direction and across it."""
TURN = np.pi / 5
"""Between the direction from the centre to a class and the one that it is stretched along."""
_SEED = 20_251_128


def toy(data_dir: Path | None = None, label_column: str = "", group_column: str = "") -> Vectors:
    """Draw the points, always the same ones.

    Parameters
    ----------
    data_dir, label_column, group_column
        Not read; what builders of numbers take.

    Returns
    -------
    vectors : Vectors
        (2,500, 2) points, standardised by the 2,000 training ones, classes in turn.
    """
    labels = np.tile(np.arange(CLASSES), TRAIN + TEST)
    steps = np.random.default_rng(_SEED).standard_normal((len(labels), 2))
    points = means()[labels] + np.einsum("nij,nj->ni", roots()[labels], steps)
    train = points[: CLASSES * TRAIN]
    inputs = (points - train.mean(axis=0)) / train.std(axis=0)
    return Vectors(
        inputs.astype(np.float32), labels, len(train), tuple("ABCDE"),
        hashlib.sha256(b"toy").hexdigest()[:16],
        notes=(f"toy: {len(train):,} training points of {CLASSES} overlapping classes",),
    )  # fmt: skip


def means() -> NDArray[np.float64]:
    """Return where the classes lie, (5, 2), before points are standardised."""
    return RADIUS * _direction(_angles())


def roots() -> NDArray[np.float64]:
    """Return a square root of every class's covariance, (5, 2, 2): A with A A^T the covariance."""
    along = _direction(_angles() + TURN)
    across = np.stack([-along[:, 1], along[:, 0]], axis=1)
    return np.stack([LONG * along, SHORT * across], axis=2)


def _angles() -> NDArray[np.float64]:
    return 2 * np.pi * np.arange(CLASSES) / CLASSES


def _direction(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)
