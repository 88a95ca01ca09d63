"""What rows of numbers are labelled with: classes, or a quantity to be predicted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.labels import class_names_of, label_key
from data.spec import DataError
from data.table_files import is_number
from data.vectors import LARGEST, Quantity

MOST_CLASSES = 1000
"""Most classes of a table; more are names or numbers in the label's place."""
_BINS = 10
_FEW = 20
"""So many different numbers with a fraction may be classes."""


@dataclass(frozen=True)
class Target:
    """What clients have to agree on: the label's name, and its classes or its scale."""

    name: str
    classes: tuple[str, ...] = ()
    quantity: Quantity | None = None


@dataclass(frozen=True)
class Found:
    """The labels of all rows.

    Attributes
    ----------
    labels : NDArray[np.int64]
        (N,) classes, or tenths of a quantity.
    class_names : tuple of str
        One name per label.
    values : NDArray[np.float64] | None
        (N,) the labels as numbers; None where one is none.
    continuous : bool
        Whether they are a quantity only.
    notes : tuple of str
        What is to be said of them.
    """

    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    values: NDArray[np.float64] | None
    continuous: bool
    notes: tuple[str, ...] = ()


def find_labels(
    owner: str, name: str, texts: Sequence[str], trained: int, given: Target | None = None
) -> Found:
    """Tell classes from quantities.

    Numbers are a quantity if more than 20 differ and some have a fraction, or if they are whole and
    more than a fifth of the rows differ; then `labels` are tenths of the training rows' values.

    Parameters
    ----------
    owner, name : str
        Whose labels, and the label's name, for errors.
    texts : Sequence[str]
        (N,) as written, training rows first, none empty.
    trained : int
        Number of training rows.
    given : Target, optional
        What was agreed on before.

    Raises
    ------
    DataError
        If there is nothing to tell apart, there are too many classes, one is not among the agreed
        ones, or a number is not finite.
    """
    values = _numbers(owner, name, texts)
    if given is not None and not given.classes:
        continuous = True
    else:
        continuous = given is None and values is not None and _is_quantity(values)
    if continuous:
        if values is None:
            odd = next(text for text in texts if not is_number(text))
            raise DataError(f"{owner}: {name!r} is agreed to be a number, and one is {odd!r:.40}.")
        return Found(*_tenths(values, trained), values, continuous)
    names, notes = class_names_of(texts)
    classes = tuple(sorted(set(names.values()))) if given is None else given.classes
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise DataError(
            f"{owner}: the label {name!r} has {len(classes):,} different values, for example "
            f"{classes[0]!r:.40}; expected 2 to {MOST_CLASSES:,} classes, or numbers. Is it the "
            "right label-column?"
        )
    numbers = {label_key(known): number for number, known in enumerate(classes)}
    if odd := next((text for text in texts if label_key(text) not in numbers), ""):
        raise DataError(
            f"{owner}: label {odd!r:.40} is none of the classes agreed on in schema.json: "
            f"{', '.join(classes[:10])}."
        )
    labels = np.array([numbers[label_key(text)] for text in texts], dtype=np.int64)
    return Found(labels, classes, values, continuous, tuple(notes))


def agree_on(owner: str, name: str, found: Found, trained: NDArray[np.int64]) -> Target:
    """Return the classes, or the mean and deviation over the training rows.

    Raises
    ------
    DataError
        If a quantity is the same in all training rows.
    """
    classes = () if found.continuous else found.class_names
    if found.values is None:
        return Target(name, classes)
    values = found.values[trained]
    scale = float(values.std())
    if not scale > 0:
        if not found.continuous:
            return Target(name, classes)
        raise DataError(
            f"{owner}: {name!r} is {values[0]:g} in all training rows; there is nothing to learn."
        )
    return Target(name, classes, Quantity(name, float(values.mean()), scale))


def _numbers(owner: str, name: str, texts: Sequence[str]) -> NDArray[np.float64] | None:
    if not all(map(is_number, texts)):
        return None
    values = np.array([float(text) for text in texts])
    sound = np.abs(values) < LARGEST
    if not sound.all():
        odd = texts[int(np.flatnonzero(~sound)[0])]
        raise DataError(f"{owner}: the label {name!r} is {odd!r} in a row; mend or remove it.")
    return values


def _is_quantity(values: NDArray[np.float64]) -> bool:
    different = len(np.unique(values))
    if different <= _FEW:
        return False
    return bool((values != np.round(values)).any()) or 5 * different > len(values)


def _tenths(values: NDArray[np.float64], trained: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return in which tenth of the training rows' values each value is, and the tenths' names."""
    cuts = np.unique(np.quantile(values[:trained], np.arange(1, _BINS) / _BINS))
    ends = ["", *(f"{cut:.6g}" for cut in cuts), ""]
    names = tuple(f"{low}..{high}" for low, high in itertools.pairwise(ends))
    return np.searchsorted(cuts, values, side="right").astype(np.int64), names
