"""Views of a dataset: batches of raw bytes, normalised on the device they end up on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.dataset import ImageDataset
from data.spec import DataError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Some rows of a dataset, addressed by position 0..len-1.

    Attributes
    ----------
    dataset : ImageDataset
        The dataset.
    indices : NDArray[np.int64]
        (n,) rows of it.
    """

    dataset: ImageDataset
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Labels by position, (n,)."""
        return self.dataset.labels[self.indices]

    def class_counts(self) -> dict[int, int]:
        """Count examples by label; labels without an example are absent."""
        labels, counts = np.unique(self.labels, return_counts=True)
        return {int(label): int(count) for label, count in zip(labels, counts, strict=True)}

    def batch(self, positions: Sequence[int] | NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
        """Gather examples.

        Parameters
        ----------
        positions : Sequence[int] | NDArray[np.int64] | Tensor
            (B,) positions within this split.

        Returns
        -------
        images : Tensor
            (B, C, H, W) uint8, a copy, on the CPU. See `normalise`.
        labels : Tensor
            (B,) int64.

        Raises
        ------
        IndexError
            If a position is out of range.
        """
        import torch

        chosen = np.asarray(positions, dtype=np.int64)
        images = self.dataset.images[self.indices[chosen]]
        return torch.from_numpy(images), torch.from_numpy(self.labels[chosen])

    def batches(
        self,
        batch_size: int,
        generator: torch.Generator | None = None,
        drop_singletons: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Go once through the split.

        Parameters
        ----------
        batch_size : int
            Examples in a batch; the last one may be smaller.
        generator : torch.Generator | None (default: None)
            CPU generator that shuffles, a new order on each call; None keeps the order.
        drop_singletons : bool (default: False)
            Leave out a last batch of one example, which BatchNorm cannot train on, unless it is
            the only batch.

        Returns
        -------
        batches : Iterator[tuple[Tensor, Tensor]]
            Pairs as `batch` returns; none for an empty split.

        Raises
        ------
        DataError
            If `batch_size` is below 1.
        """
        if batch_size < 1:
            raise DataError(f"batch-size={batch_size} is not accepted; give a whole number from 1.")
        return self._batches(batch_size, generator, drop_singletons)

    def _batches(
        self, batch_size: int, generator: torch.Generator | None, drop_singletons: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        import torch

        count = len(self)
        if generator is None:
            order = np.arange(count)
        else:
            order = torch.randperm(count, generator=generator).numpy()
        for start in range(0, count, batch_size):
            positions = order[start : start + batch_size]
            if drop_singletons and len(positions) == 1 and start > 0:
                return
            yield self.batch(positions)


def normalise(images: Tensor) -> Tensor:
    """Map bytes to floats with mean 0.5 and deviation 0.5, where the images are.

    Parameters
    ----------
    images : Tensor
        (B, C, H, W) uint8, values 0..255.

    Returns
    -------
    normalised : Tensor
        (B, C, H, W) float32 in [-1, 1], on the same device.
    """
    return images.float().mul(1 / 127.5).sub_(1.0)
