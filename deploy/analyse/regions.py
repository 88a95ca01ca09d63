"""Which class a head gives to every point of the plane, where representations are points of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MARGIN = 0.1
"""Of the points' extent, around them."""


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head over d = 2: class scores are ``points @ weights.T + biases``.

    Attributes
    ----------
    weights : NDArray[np.float32]
        (C, 2).
    biases : NDArray[np.float32]
        (C,).
    """

    weights: NDArray[np.float32]
    biases: NDArray[np.float32]

    def classes(self, points: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the class of every point (m, 2), as (m,)."""
        found: NDArray[np.int64] = (points @ self.weights.T + self.biases).argmax(axis=1)
        return found

    def equals(self, other: Head) -> bool:
        """Whether it is the same head, bit for bit."""
        return np.array_equal(self.weights, other.weights) and np.array_equal(
            self.biases, other.biases
        )


@dataclass(frozen=True, eq=False)
class Regions:
    """One head, and the representations that its clients give it.

    Attributes
    ----------
    clients : list of int
        Who has this head.
    head : Head
        What decides.
    points : NDArray[np.float32]
        (m, 2) representations of common test examples, by the clients' own models.
    labels : NDArray[np.int64]
        (m,) true classes.
    """

    clients: list[int]
    head: Head
    points: NDArray[np.float32]
    labels: NDArray[np.int64]

    @property
    def right(self) -> float:
        """Share of the points that lie in the region of their class."""
        return float((self.head.classes(self.points) == self.labels).mean())

    def grid(self, side: int) -> tuple[NDArray[np.int64], tuple[float, float, float, float]]:
        """Return the classes of a grid over the points, (side, side) from below, and its extent.

        The extent is left, right, bottom, top, as matplotlib takes it; classes are of the middles
        of cells.
        """
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        margin = np.maximum((high - low) * MARGIN, 1e-6)
        low, high = low - margin, high + margin
        middles = (np.arange(side) + 0.5) / side
        across, up = np.meshgrid(*(low[i] + middles * (high[i] - low[i]) for i in (0, 1)))
        classes = self.head.classes(np.column_stack([across.ravel(), up.ravel()]))
        left, bottom, right, top = map(float, (*low, *high))
        return classes.reshape(side, side), (left, right, bottom, top)


def regions(
    heads: Mapping[int, Head],
    vectors: Mapping[int, NDArray[np.float32]],
    labels: NDArray[np.int64],
) -> list[Regions]:
    """Put clients with one head together; none where representations are no points of a plane.

    Parameters
    ----------
    heads : mapping of int to Head
        By client, of those whose head reads the representation.
    vectors : mapping of int to ndarray
        (m, d) representations of the same examples, by client.
    labels : NDArray[np.int64]
        (m,) their classes.
    """
    if any(rows.shape[1] != 2 for rows in vectors.values()):
        return []
    groups: list[list[int]] = []
    for client, head in heads.items():
        for group in groups:
            if heads[group[0]].equals(head):
                group.append(client)
                break
        else:
            groups.append([client])
    return [
        Regions(
            group, heads[group[0]], np.concatenate([vectors[client] for client in group]),
            np.tile(labels, len(group)),
        )
        for group in groups
    ]  # fmt: skip
