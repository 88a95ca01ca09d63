"""What to say of a user's own split into training, validation and test examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_SHOWN = 5


def part_notes(
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    trained: int,
    contents: Iterable[bytes],
) -> list[str]:
    """Say where the parts of a user's own split do not fit together.

    What is said is of the parts as they were given: with `test_split="personal"` simulated clients
    pool them and cut them anew, and with "global" or on a device they are used as they are.

    Parameters
    ----------
    labels : NDArray[np.int64]
        (N,), training rows first, then validation and test rows in any order.
    class_names : sequence of str
        One name per label.
    trained : int
        Number of training rows, validation rows not counted.
    contents : iterable of bytes
        (N,), what an example is made of, in the same order.

    Returns
    -------
    notes : list of str
        Of classes that only one of the two sides has, and of examples that are on both. Empty
        where there is nothing to say.
    """
    learned, measured = (
        np.bincount(part, minlength=len(class_names)) for part in np.split(labels, [trained])
    )
    notes = []
    lost = (learned == 0) & (measured > 0)
    if lost.any():
        notes.append(
            f"only the test or validation part has {_listed(class_names, lost)} "
            f"({measured[lost].sum():,} examples)"
        )
    unseen = (learned > 0) & (measured == 0)
    if unseen.any() and measured.any():
        notes.append(f"only the training part has {_listed(class_names, unseen)}")
    digests = [hashlib.blake2b(content, digest_size=16).digest() for content in contents]
    known = set(digests[:trained])
    if again := sum(digest in known for digest in digests[trained:]):
        notes.append(
            f"{again:,} of {len(digests) - trained:,} examples of the test and validation parts "
            "are in the training part, too, which may raise accuracy; remove repeated ones"
        )
    return notes


def _listed(class_names: Sequence[str], chosen: NDArray[np.bool_]) -> str:
    names = [class_names[int(label)] for label in np.flatnonzero(chosen)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
