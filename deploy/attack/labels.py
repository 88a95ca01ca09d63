"""What an uplink says about labels: which classes a client has, and in which proportions.

Class ids, counts and FedRE's mixed label are in the payload outright. Of weights and heads labels
are inferred from the last layer's bias, whose gradient is sum_i (p_ic - y_ic): it is negative only
for classes that the client has (Zhao et al., iDLG, arXiv 2001.02610). The figures say how exact
that is, beside someone who assumes every class to be equally frequent.
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
    inferred : bool
        Whether it is an attacker's guess from a change of weights, and not in the uplink outright.
    """

    client: int
    classes_exact: bool
    distance: float
    guess: float
    inferred: bool = False


def labels_told(
    client: int,
    uplink: Mapping[str, NDArray[Any]],
    labels: NDArray[np.int64],
    classes: int,
    received: Mapping[str, NDArray[Any]] | None = None,
) -> LabelsTold | None:
    """Return what an uplink tells of a client's labels (n,), or None if it has none in it.

    `received` is what the client was sent before, of which weights are a change.
    """
    told = _proportions(uplink, classes)
    inferred = told is None
    if told is None:
        told = proportions_of_update(uplink, received or {})
    if told is None:
        return None
    true = np.bincount(labels, minlength=classes) / len(labels)
    return LabelsTold(
        client,
        bool(np.array_equal(told > 0, true > 0)),
        _distance(told, true),
        _distance(np.full(classes, 1 / classes), true),
        inferred,
    )


def proportions_of_update(
    uplink: Mapping[str, NDArray[Any]], received: Mapping[str, NDArray[Any]]
) -> NDArray[np.float64] | None:
    """Return the proportions (C,) that the change of the last layer's bias suggests, or None.

    A class has its share of what the biases of all rose by; exact for a single example.
    """
    for name in ("head_bias", "weights/head.bias", "theta/head.bias"):
        if name in uplink and name in received:
            change = uplink[name].astype(np.float64) - received[name].astype(np.float64)
            risen = np.maximum(change, 0.0)
            return risen / risen.sum() if risen.any() else None
    return None


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
