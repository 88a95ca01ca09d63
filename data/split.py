"""Views of a dataset: batches of raw bytes, normalised on the device they end up on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from data.image_dataset import Dataset, ImageDataset
from data.spec import DataError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Values = NDArray[np.uint8] | NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Split:
    """Some rows of a dataset, addressed by position 0..len-1.

    Attributes
    ----------
    dataset : Dataset
        The dataset; an `ImageDataset` but for a `TaskSplit` of sentences.
    indices : NDArray[np.int64]
        (n,) rows of it.
    """

    dataset: Dataset
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

    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the examples at some positions, (n,), as a split of the same kind."""
        return replace(self, indices=self.indices[positions])

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
        DataError
            If the dataset has no images.
        IndexError
            If a position is out of range.
        """
        import torch

        if not isinstance(self.dataset, ImageDataset):
            raise DataError(f"{self.dataset.name} has no images; make a TaskSplit of it.")
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


@dataclass(frozen=True, eq=False)
class TaskSplit(Split):
    """Some rows of a dataset with the inputs and targets of a task; see `data.task_data`.

    Attributes
    ----------
    inputs : NDArray
        (N, C, S, S) uint8 images, (N, L) int64 tokens, or float32 rows (N, F) or windows
        (N, C, T), by row of the dataset.
    targets : NDArray
        (N,) int64 labels or float32 numbers, (N, C) uint8 classes present or (N, S, S) uint8
        masks, by row.
    lookup : NDArray[np.uint8] | None
        (256,) for masks, what each of their values becomes; None for unchanged.
    """

    inputs: Values
    targets: Values
    lookup: NDArray[np.uint8] | None = None

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Labels by position, (n,), where the task has one an example.

        Raises
        ------
        DataError
            If it has several.
        """
        if self.targets.ndim != 1 or self.is_regression:
            raise DataError(
                f"{self.dataset.name}: examples of a multi-label, segmentation or regression task "
                "have no one label; use the targets of a batch."
            )
        return self.targets[self.indices].astype(np.int64, copy=False)

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers to be predicted."""
        return self.targets.dtype.kind == "f"

    @cached_property
    def presence(self) -> NDArray[np.uint8]:
        """Classes in each example of a multi-label or segmentation task, (n, C or 254)."""
        if self.targets.ndim == 3:
            return mask_presence(self.targets, self.indices, self.lookup)
        return self.targets[self.indices].astype(np.uint8, copy=False)

    def class_counts(self) -> dict[int, int]:
        """Count the examples that a class is present in; classes without one are absent.

        Numbers to be predicted count as of one class, 0.
        """
        if self.is_regression:
            return {0: len(self)} if len(self) else {}
        if self.targets.ndim == 1:
            return super().class_counts()
        counts = self.presence.sum(axis=0, dtype=np.int64)
        return {int(label): int(counts[label]) for label in np.flatnonzero(counts)}

    def batch(self, positions: Sequence[int] | NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
        """Gather examples.

        Parameters
        ----------
        positions : Sequence[int] | NDArray[np.int64] | Tensor
            (B,) positions within this split.

        Returns
        -------
        inputs : Tensor
            (B, C, S, S) uint8 images, (B, L) int64 tokens, or float32 rows (B, F) or windows
            (B, C, T), a copy, on the CPU.
        targets : Tensor
            (B,) int64 labels or float32 numbers, (B, C) uint8 classes present, or (B, S, S) uint8
            masks.

        Raises
        ------
        IndexError
            If a position is out of range.
        """
        import torch

        rows = self.indices[np.asarray(positions, dtype=np.int64)]
        targets = self.targets[rows]
        if self.lookup is not None:
            targets = self.lookup[targets]
        return torch.from_numpy(self.inputs[rows]), torch.from_numpy(targets)


@dataclass(frozen=True, eq=False)
class PairSplit(TaskSplit):
    """Some images of a dataset with their captions; `inputs` are images, `targets` tokens (N, L).

    Labels stay those of the dataset, for partitions and counts; nothing is learned of them.
    """

    labels = Split.labels
    class_counts = Split.class_counts

    def batch(self, positions: Sequence[int] | NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
        """Gather pairs.

        Parameters
        ----------
        positions : Sequence[int] | NDArray[np.int64] | Tensor
            (B,) positions within this split.

        Returns
        -------
        pairs : Tensor
            (B, L + C S S) int64, tokens and then pixels, see `models.PairModel`.
        tokens : Tensor
            (B, L) int64.
        """
        import torch

        images, tokens = super().batch(positions)
        return torch.cat([tokens, images.flatten(1).long()], dim=1), tokens


def mask_presence(
    masks: Values,
    rows: NDArray[np.int64],
    lookup: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Find which classes have a pixel in which mask.

    Parameters
    ----------
    masks : NDArray[np.uint8]
        (N, S, S): 0 background, 1 + c class c, 255 ignore.
    rows : NDArray[np.int64]
        (n,) the masks to look at.
    lookup : NDArray[np.uint8] | None
        (256,) what each value becomes first.

    Returns
    -------
    presence : NDArray[np.uint8]
        (n, 254) by class.
    """
    found = np.zeros((len(rows), 256), dtype=np.uint8)
    for start in range(0, len(rows), 512):  # in blocks: each pixel takes 8 bytes here
        block = masks[rows[start : start + 512]].reshape(-1, masks[0].size)
        values = block if lookup is None else lookup[block]
        numbered = values + 256 * np.arange(len(values))[:, None]
        counts = np.bincount(numbered.ravel(), minlength=256 * len(values))
        found[start : start + 512] = counts.reshape(-1, 256) > 0
    return found[:, 1:255]


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
