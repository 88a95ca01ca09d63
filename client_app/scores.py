"""The score that a client of each task reports: accuracy, mean AP, mean IoU, R@1 or R2.

| task | targets | score |
|---|---|---|
| classification, text | class ids (N,) | accuracy |
| multilabel | presence (N, C), 255 = ignore | mean AP |
| segmentation | masks (N, S, S), 255 = ignore | mean IoU |
| regression | standardised numbers (N,) | R2, and beside it the mean absolute error, "mae" |
| retrieval | tokens of captions (N, L) | mean of R@1 both ways |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from data import ClientData
from data.annotated import IGNORE
from models import recalls


class Score(Protocol):
    """Gathers outputs batch by batch."""

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch."""

    def value(self) -> float | None:
        """Return the score, or None where it is undefined."""


class Accuracy:
    """Share of examples whose largest score is the right class."""

    def __init__(self) -> None:
        self._hits: Tensor | None = None
        self._count = 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in class scores (N, C) and class ids (N,)."""
        hits = (outputs.argmax(dim=1) == targets).sum()
        self._hits = hits if self._hits is None else self._hits + hits
        self._count += len(targets)

    def value(self) -> float | None:
        """Return the accuracy; None without an example."""
        return int(self._hits) / self._count if self._hits is not None else None


class _OfAll:
    """A score that needs all outputs and targets at once."""

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch."""
        self._outputs.append(outputs.float().cpu())
        self._targets.append(targets.cpu())

    def value(self) -> float | None:
        """Return the score; None without an example, or where it is undefined."""
        if not self._outputs:
            return None
        return self._score(torch.cat(self._outputs), torch.cat(self._targets))

    def _score(self, outputs: Tensor, targets: Tensor) -> float | None:
        raise NotImplementedError


class MeanAveragePrecision(_OfAll):
    """Mean over classes of the average precision, of classes that have a positive example.

    The average precision of a class is the sum over its ranked examples of precision times the
    gain in recall, without interpolation. Of class scores (N, C) and presence (N, C); undefined if
    no class has a positive example.
    """

    def _score(self, outputs: Tensor, targets: Tensor) -> float | None:
        from sklearn.metrics import average_precision_score

        scores, present = outputs.numpy(), targets.numpy()
        values = []
        for c in np.flatnonzero((present == 1).any(axis=0)):
            known = present[:, c] != IGNORE
            values.append(average_precision_score(present[known, c] == 1, scores[known, c]))
        return float(np.mean(values)) if values else None


class MeanIoU:
    """Mean over classes of intersection over union of pixels, the background being a class.

    Counted over all examples at once, as Pascal VOC does; a class that is neither in the masks nor
    predicted has no union and is left out.
    """

    def __init__(self) -> None:
        self._confusion: Tensor | None = None

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in class scores (N, C, S, S) and masks (N, S, S)."""
        classes = outputs.shape[1]
        known = targets != IGNORE
        pairs = targets[known].long() * classes + outputs.argmax(dim=1)[known]
        found = torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
        self._confusion = found if self._confusion is None else self._confusion + found

    def value(self) -> float | None:
        """Return the mean; None if every pixel is ignored or there is none."""
        if self._confusion is None:
            return None
        table = self._confusion.double().cpu()
        both = table.diagonal()
        union = table.sum(dim=0) + table.sum(dim=1) - both
        present = union > 0
        return float((both[present] / union[present]).mean()) if present.any() else None


class Recall(_OfAll):
    """Mean of R@1 from image to text and from text to image, among all pairs at once.

    Of the representations of images and texts side by side (N, 2d), and tokens of captions (N, L);
    see `models.recalls`.
    """

    def _score(self, outputs: Tensor, targets: Tensor) -> float:
        images, texts = outputs.chunk(2, dim=1)
        return sum(recalls(images, texts, targets)) / 2


class ExplainedVariance(_OfAll):
    """R2: 1 - sum of squared errors / sum of squared distances to the examples' own mean.

    1 is perfect, 0 as good as that mean, and worse predictions are below 0. Of predictions (N, 1)
    and numbers (N,); undefined for one example, or if all numbers are the same.
    """

    def _score(self, outputs: Tensor, targets: Tensor) -> float | None:
        predicted, numbers = outputs.squeeze(1).double(), targets.double()
        spread = (numbers - numbers.mean()).square().sum()
        if len(numbers) < 2 or not spread > 0:
            return None
        return float(1 - (predicted - numbers).square().sum() / spread)


class AbsoluteError:
    """The mean absolute error, in the numbers' own unit.

    Parameters
    ----------
    scale : float
        The unit of the standardised numbers, see `data.vectors.Quantity`.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._total = 0.0
        self._count = 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in predictions (N, 1) and numbers (N,)."""
        self._total += float((outputs.squeeze(1).double() - targets.double()).abs().sum())
        self._count += len(targets)

    def value(self) -> float | None:
        """Return the error; None without an example."""
        return self._scale * self._total / self._count if self._count else None


def new_score(task: str) -> Score:
    """Return an empty main score of a task."""
    kinds: dict[str, Callable[[], Score]] = {
        "multilabel": MeanAveragePrecision, "segmentation": MeanIoU, "retrieval": Recall,
        "regression": ExplainedVariance,
    }  # fmt: skip
    return kinds.get(task, Accuracy)()


def new_scores(data: ClientData) -> dict[str, Score]:
    """Return empty scores of a client's task by their names, the main one first."""
    scores = {data.metric: new_score(data.task)}
    if data.quantity is not None:
        scores["mae"] = AbsoluteError(data.quantity.scale)
    return scores
