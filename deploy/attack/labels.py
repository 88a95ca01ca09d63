"""What an uplink says about labels outright: which classes a client has, and in which proportions.

Nothing is inferred here: class ids, counts and FedRE's mixed label are in the payload. The figures
say how exact that is, beside someone who assumes every class to be equally frequent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LabelsTold:
    """What one client's uplink tells of its labels.

    Attributes
    ----------
    client : int
        Whose it is.
    classes_exact : bool
        Whether the classes told are exactly those of its training set.
    distance : float
        Total variation distance between the proportions told and the true ones: 0 exact, 1 nothing
        in common. Classes without proportions are taken as equally frequent.
    guess : float
        The same of equal proportions of all classes: what is known without the uplink.
    """

    client: int
    classes_exact: bool
    distance: float
    guess: float


def labels_told(
    client: int, uplink: Mapping[str, NDArray[Any]], labels: NDArray[np.int64], classes: int
) -> LabelsTold | None:
    """Return what an uplink tells of a client's labels (n,), or None if it has none in it."""
    told = _proportions(uplink, classes)
    if told is None:
        return None
    true = np.bincount(labels, minlength=classes) / len(labels)
    return LabelsTold(
        client,
        bool(np.array_equal(told > 0, true > 0)),
        _distance(told, true),
        _distance(np.full(classes, 1 / classes), true),
    )


def _proportions(uplink: Mapping[str, NDArray[Any]], classes: int) -> NDArray[np.float64] | None:
    """Return the proportions of the classes, (C,), that an uplink tells, or None."""
    if "entangled_label" in uplink:
        weights = uplink["entangled_label"].astype(np.float64)
    elif "labels" in uplink:
        weights = np.bincount(uplink["labels"], minlength=classes).astype(np.float64)
    elif "class_ids" in uplink:
        weights = np.zeros(classes)
        counts = uplink.get("counts", np.empty(0))  # sent only where the server uses them
        weights[uplink["class_ids"]] = counts if counts.size else 1
    else:
        return None
    proportions: NDArray[np.float64] = weights / weights.sum()
    return proportions


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.abs(one - other).sum() / 2)
