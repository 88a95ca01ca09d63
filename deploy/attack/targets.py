"""What an uplink holds that an image can be sought for, and which images it was made of.

Uplinks are told apart by the names of their fields, so a method of one's own whose fields are named
alike is attacked as well: `representations` with `labels` (FedAllRep), `prototypes` with
`class_ids` (FedProto, FedTGP, FedGH), `entangled_rep` (FedRE), `logits` with `class_ids` (FD),
`s_in` (FedIN), `head_weight` with `head_bias` (LG-FedAvg).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deploy.attack.victims import Victim
from models import Splittable
from strategies.base.options import ConfigError

REPRESENTATION, LOGITS, STEM = "representation", "logits", "stem"
"""What of the client's model a vector is compared with: its features, its scores, or the feature
maps of its stem."""


@dataclass(frozen=True, eq=False)
class Target:
    """One vector that a client sent.

    Attributes
    ----------
    name : str
        What it is, unique in the uplink: "prototype of class 3".
    output : str
        `REPRESENTATION`, `LOGITS` or `STEM`; or what an attacker of its own makes of a vector.
    vector : NDArray[np.float32]
        u, (d,) or (C,), or the maps (c, s, s) of a stem.
    truth : NDArray[np.int64]
        Positions, in the client's training set, of the images it was made of.
    """

    name: str
    output: str
    vector: NDArray[np.float32]
    truth: NDArray[np.int64]


def vectors_of(victim: Victim) -> list[Target]:
    """Return the vectors in a client's uplink, and those that follow from it at once.

    Raises
    ------
    ConfigError
        Nothing in it is of a kind that is attacked here.
    """
    uplink, received = victim.uplink, victim.received
    if "s_in" in uplink:
        return _stem_maps(victim)
    if "head_weight" in uplink and "head_weight" in received:
        weights = uplink["head_weight"] - received["head_weight"]
        biases = uplink["head_bias"] - received["head_bias"]
        return head_means(weights, biases, victim.labels)
    return targets_of(uplink, victim.labels)


def head_means(
    weights: NDArray[np.float32], biases: NDArray[np.float32], labels: NDArray[np.int64]
) -> list[Target]:
    """Return the mean representation of every class, as the change of a head tells it.

    Row c of the weight's gradient is sum_i (p_ic - y_ic) r_i, that of the bias the same sum without
    r_i: their quotient is a weighted mean of the representations r_i. Of one example it is exactly
    r, whatever the number of steps of SGD, as long as r does not change. A class whose bias rose is
    taken as present; there, its own examples weigh most.

    Parameters
    ----------
    weights, biases : NDArray[np.float32]
        (C, d) and (C,) what was sent less what was received.
    labels : NDArray[np.int64]
        (n,) the true classes; one that only seems to be present has no images to compare with.
    """
    return [
        Target(
            f"head of class {c}", REPRESENTATION, weights[c] / biases[c],
            np.flatnonzero(labels == c),
        )
        for c in np.flatnonzero(biases > 0).tolist()
        if (labels == c).any()
    ]  # fmt: skip


def _stem_maps(victim: Victim) -> list[Target]:
    """Return FedIN's stem maps; which examples they are of is drawn as FedIN draws it."""
    model, maps = victim.model, victim.uplink["s_in"]
    if not isinstance(model, Splittable):
        raise ConfigError(f"model {model.name} has no stem whose maps s_in could be")
    with torch.no_grad():
        first = torch.zeros(1, *victim.images.shape[1:], device=victim.context.device)
        own = tuple(model.stem(first).shape[1:])
    if own != maps.shape[1:]:
        raise ConfigError(
            f"client {victim.context.client_id}: it sent maps {maps.shape[1:]} of a common space, "
            f"its own stem gives {own}; there is no attack on projected maps yet"
        )
    order = torch.randperm(
        len(victim.labels), generator=victim.context.generator("features")
    ).numpy()
    rows = zip(maps, order, strict=False)  # fewer are sent than there are examples
    return [Target(f"maps of example {i}", STEM, row, np.array([i])) for row, i in rows]


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
        "prototypes, entangled_rep, logits by class, s_in or a head; --attacker update seeks "
        "images in weights"
    )
