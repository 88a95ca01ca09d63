"""Vectors by class: means on a client, running means on a server, loss and nearest neighbour.

Used by the methods that exchange prototypes (mean representations) or mean logits of classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models import SplitModel
from strategies.base.payload import array
from strategies.base.treatments import CLASSES

CHUNK = 4096
"""Rows that are held in float64 at once."""

ClassVectors = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]
"""Class ids (m,) ascending, one vector per class (m, width), and how many are behind it (m,)."""


def held_classes() -> Any:
    """Declare an uplink's field of the class ids (m,) of a client, ascending, at least one."""
    return array(
        "m", dtype="int64", counted=False, minimum=0, below="C", unique=True, nonempty=True,
        protect=CLASSES,
    )  # fmt: skip


class ClassAverage:
    """Means of vectors by class, accumulated so that no vector has to be kept.

    Sums are in float64. They are products with one-hot rows instead of scattered additions, whose
    order, and so whose last digits, a GPU does not fix.

    Parameters
    ----------
    classes, width : int
        C, and the length of a vector.
    device : torch.device, optional
        Where to accumulate; adding never waits for it.
    """

    def __init__(self, classes: int, width: int, device: torch.device | None = None) -> None:
        self.sums = torch.zeros(classes, width, dtype=torch.float64, device=device)
        self.weights = torch.zeros(classes, dtype=torch.float64, device=device)

    def add(self, class_ids: Tensor, vectors: Tensor, weights: Tensor | None = None) -> None:
        """Add vectors (n, width) of classes (n,), with weights (n,) above 0, by default 1."""
        rows = F.one_hot(class_ids, len(self.weights)).double()
        if weights is not None:
            rows = rows * weights.double().unsqueeze(1)
        self.sums += rows.T @ vectors.detach().double()
        self.weights += rows.sum(dim=0)

    def result(self) -> ClassVectors:
        """Return the classes added so far, their means, and their summed weights as integers."""
        weights = self.weights.cpu()
        present = weights.nonzero().flatten()
        means = self.sums.cpu()[present] / weights[present].unsqueeze(1)
        return present.numpy(), means.float().numpy(), weights[present].long().numpy()


def class_means(representations: Tensor, labels: Tensor) -> ClassVectors:
    """Return a client's prototypes: the mean representation of every class it has.

    Parameters
    ----------
    representations, labels : Tensor
        (n, d) and (n,) int64, n at least 1, on the CPU; see `collect_representations`.

    Returns
    -------
    tuple of ndarray
        Class ids (m,) int64, ascending, only classes that are present; prototypes (m, d)
        float32; examples of every class (m,) int64.
    """
    average = ClassAverage(int(labels.max()) + 1, representations.shape[1])
    for start in range(0, len(labels), CHUNK):
        average.add(labels[start : start + CHUNK], representations[start : start + CHUNK])
    return average.result()


def spread_by_class(
    class_ids: NDArray[np.int64],
    vectors: NDArray[np.float32],
    classes: int,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Return a table (C, width) with zeros where a class is missing, and who is known, (C,) bool.

    Parameters
    ----------
    class_ids, vectors : ndarray
        Received classes (m,) and their vectors (m, width); m may be 0.
    classes : int
        C.
    device : torch.device, optional
        Where the tensors go; nothing is aliased.
    """
    table = torch.zeros(classes, vectors.shape[1])
    known = torch.zeros(classes, dtype=torch.bool)
    ids = torch.tensor(class_ids)
    table[ids] = torch.tensor(vectors)
    known[ids] = True
    return table.to(device), known.to(device)


def prototype_loss(features: Tensor, labels: Tensor, table: Tensor, known: Tensor) -> Tensor:
    """Return MSE(r, P_y), the mean over the whole batch and d.

    A sample whose class has no prototype contributes 0 and still counts in the mean.

    Parameters
    ----------
    features, labels : Tensor
        r, (B, d), and y, (B,).
    table, known : Tensor
        P, (C, d), and (C,), from `spread_by_class`.
    """
    gaps = (features.float() - table[labels]) * known[labels].unsqueeze(1)
    return gaps.square().mean()


def nearest_scores(features: Tensor, table: Tensor, known: Tensor) -> Tensor:
    """Return minus the L2 distance to every prototype, (N, C); -inf where there is none.

    Parameters
    ----------
    features : Tensor
        (N, d).
    table, known : Tensor
        (C, d) and (C,), from `spread_by_class`; at least one class is known.
    """
    return (-distances(features.float(), table)).masked_fill(~known, -torch.inf)


def prototype_predictions(
    model: SplitModel,
    images: Tensor,
    class_ids: NDArray[np.int64],
    prototypes: NDArray[np.float32],
    main: str = "prototype",
) -> dict[str, Tensor]:
    """Score images by the nearest prototype and by the head, for `ClientHalf.predict`.

    Parameters
    ----------
    model : SplitModel
        A client's model.
    images : Tensor
        Normalised images, (N, channels, S, S).
    class_ids, prototypes : ndarray
        The classes that have a global prototype, (m,), and these, (m, d).
    main : str
        Which is "accuracy": "prototype" or "head". The other is named after itself, as in
        "accuracy_head". Where m is 0 there is nothing to be near to, and "accuracy" is the head's.

    Returns
    -------
    dict of str to Tensor
        Scores (N, C).
    """
    features = model.features(images)
    scores = {"head": model.head(features)}
    if len(class_ids):
        table, known = spread_by_class(class_ids, prototypes, model.num_classes, images.device)
        scores["prototype"] = nearest_scores(features, table, known)
    others = {f"accuracy_{rule}": score for rule, score in scores.items() if rule != main}
    return {"accuracy": scores.get(main, scores["head"]), **others}


def distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Return L2 distances (n, m) of (n, d) to (m, d), without the cancellation of the product form.

    The gradient is 0 where two points coincide.
    """
    return torch.cdist(rows, columns, compute_mode="donot_use_mm_for_euclid_dist")
