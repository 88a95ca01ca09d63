"""What an uplink holds that an image can be sought for, and which images it was made of.

Uplinks are told apart by the names of their fields, so a method of one's own whose fields are named
alike is attacked as well: `representations` with `labels` (FedAllRep), `prototypes` with
`class_ids` (FedProto, FedTGP, FedGH), `entangled_rep` (FedRE), `logits` with `class_ids` (FD).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.base.options import ConfigError

REPRESENTATION, LOGITS = "representation", "logits"
"""What of the client's model a vector is compared with: its features, or its scores."""


@dataclass(frozen=True, eq=False)
class Target:
    """One vector that a client sent.

    Attributes
    ----------
    name : str
        What it is, unique in the uplink: "prototype of class 3".
    output : str
        `REPRESENTATION` or `LOGITS`.
    vector : NDArray[np.float32]
        u, (d,) or (C,).
    truth : NDArray[np.int64]
        Positions, in the client's training set, of the images it was made of.
    """

    name: str
    output: str
    vector: NDArray[np.float32]
    truth: NDArray[np.int64]


def targets_of(uplink: Mapping[str, NDArray[Any]], labels: NDArray[np.int64]) -> list[Target]:
    """Return the vectors in an uplink.

    Parameters
    ----------
    uplink : Mapping of str to ndarray
        Its arrays by the name of the field.
    labels : NDArray[np.int64]
        (n,) classes of the client's training set, in its fixed order.

    Raises
    ------
    ConfigError
        Nothing in it is of a kind that is attacked here.
    """
    if "entangled_rep" in uplink:
        everyone = np.arange(len(labels))
        return [Target("entangled", REPRESENTATION, uplink["entangled_rep"], everyone)]
    if "representations" in uplink:
        rows = uplink["representations"]
        return [
            Target(f"representation of example {i}", REPRESENTATION, row, np.array([i]))
            for i, row in enumerate(rows)
        ]
    for field, output, what in (
        ("prototypes", REPRESENTATION, "prototype"),
        ("logits", LOGITS, "mean logits"),
    ):
        if field in uplink and "class_ids" in uplink:
            pairs = zip(uplink["class_ids"].tolist(), uplink[field], strict=True)
            return [
                Target(f"{what} of class {c}", output, row, np.flatnonzero(labels == c))
                for c, row in pairs
                if (labels == c).any()  # under noise a client sends classes that it does not have
            ]
    found = ", ".join(sorted({key.partition("/")[0] for key in uplink})) or "nothing"
    raise ConfigError(
        f"the uplink has {found}: there is no attack on these yet; it needs representations, "
        "prototypes, entangled_rep or logits by class"
    )
