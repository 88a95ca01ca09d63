"""Images that an attacker may have: of the same data set, and none that the client trains on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data.image_dataset import ImageDataset
from strategies.base.client import ClientContext


class Auxiliary:
    """Images of the same data set that a client does not train on.

    Attributes
    ----------
    mean : NDArray[np.uint8]
        (C, H, W) their mean.
    """

    def __init__(self, context: ClientContext) -> None:
        data = context.data
        assert isinstance(data.dataset, ImageDataset)  # a victim has images
        self._images, self._labels = data.dataset.images, data.dataset.labels
        self._rows = np.setdiff1d(np.arange(len(self._labels)), data.train.indices)
        total = np.zeros(self._images.shape[1:])
        for start in range(0, len(self._rows), 1024):
            block = self._images[self._rows[start : start + 1024]]
            total += block.sum(axis=0, dtype=np.float64)
        self.mean: NDArray[np.uint8] = np.rint(total / len(self._rows)).astype(np.uint8)

    def image_of(self, label: int, generator: np.random.Generator) -> NDArray[np.uint8]:
        """Draw an image of a class; of any class where there is none of it."""
        alike = self._rows[self._labels[self._rows] == label]
        image: NDArray[np.uint8] = self._images[
            generator.choice(alike if len(alike) else self._rows)
        ]
        return image

    def draw(self, count: int, generator: np.random.Generator) -> NDArray[np.uint8]:
        """Draw `count` different images, (count, C, H, W), or all there are if those are fewer."""
        rows = generator.permutation(self._rows)[:count]
        images: NDArray[np.uint8] = self._images[np.sort(rows)]
        return images
