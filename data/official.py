"""The official parts of a data set, thinned, and what is taken out of them for validation."""

from __future__ import annotations

import hashlib

import numpy as np

from data.image_dataset import Dataset
from data.partitioners import Rows
from data.spec import DataSpec


def official_rows(spec: DataSpec, dataset: Dataset) -> tuple[Rows, Rows, Rows]:
    """Return the official training, validation and test rows, thinned class by class.

    Parameters
    ----------
    spec : DataSpec
        Gives `subset` and the seed.
    dataset : Dataset
        The dataset.

    Returns
    -------
    train, validation, test : NDArray[np.int64]
        Ascending rows; every class that occurs in a part keeps at least one example there. No
        validation rows where the data set brings none.
    """
    rows = np.arange(len(dataset), dtype=np.int64)
    trained = dataset.train_size - dataset.validation_size
    parts = np.split(rows, [trained, dataset.train_size])
    if spec.subset == 1:
        return parts[0], parts[1], parts[2]
    generator = np.random.default_rng(purpose_seed(spec, "subset"))
    kept = []
    for part in parts:
        labels = dataset.labels[part]
        by_class = [np.empty(0, np.int64)]
        for label in np.unique(labels):
            mine = part[labels == label]
            count = max(1, round(spec.subset * len(mine)))
            by_class.append(generator.choice(mine, size=count, replace=False))
        kept.append(np.sort(np.concatenate(by_class)))
    return kept[0], kept[1], kept[2]


def take_out(rows: Rows, fraction: float, generator: np.random.Generator) -> tuple[Rows, Rows]:
    """Cut a random `fraction` of rows, rounded down, out of them.

    Parameters
    ----------
    rows : NDArray[np.int64]
        (n,).
    fraction : float
        Share to take, in [0, 1).
    generator : np.random.Generator
        Source of the draw.

    Returns
    -------
    rest, taken : NDArray[np.int64]
        (n - floor(fraction n),) and (floor(fraction n),), in random order.
    """
    # The margin keeps 0.1 * 30 = 3.0000000000000004 and its like from changing a count.
    count = int(fraction * len(rows) + 1e-9)
    shuffled = generator.permutation(rows)
    return shuffled[count:], shuffled[:count]


def apart(rows: Rows, held: Rows) -> tuple[Rows, Rows]:
    """Separate the rows of the data set's own validation set; the order of the others stays."""
    if not len(held):
        return rows, held
    flags = np.isin(rows, held)
    return rows[~flags], rows[flags]


def validation_of(
    spec: DataSpec, rows: Rows, given: Rows, held: Rows, generator: np.random.Generator
) -> tuple[Rows, Rows]:
    """Return a client's training and validation rows.

    Parameters
    ----------
    spec : DataSpec
        Gives `validation_fraction`.
    rows : NDArray[np.int64]
        The client's training rows, without those of the data set's own validation set.
    given, held : NDArray[np.int64]
        The client's rows of that set, and all of it; where there is none, `validation_fraction`
        of `rows` is taken out at random.
    generator : np.random.Generator
        Source of the draw.
    """
    return (rows, given) if len(held) else take_out(rows, spec.validation_fraction, generator)


def purpose_seed(spec: DataSpec, purpose: str) -> int:
    """Derive the seed of one purpose, so that draws for one never shift those for another."""
    digest = hashlib.sha256(f"{spec.partition_seed}|{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
