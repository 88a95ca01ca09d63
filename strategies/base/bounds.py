"""How large what a client sends may be: against what it was sent, and against the other clients.

Finite values pass every other check, and one client that sends 3e38 ruins a mean for all. The size
of a field is the root mean square of its floating-point values, those of all its entries together,
so that networks of unlike width can be compared, and of a field of degree 2, such as a kernel, the
square root of that. Integers and fields of degree 0, such as counts, have no size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.base.payload import PayloadError, rules_of

FEWEST_TO_COMPARE = 3
"""With fewer clients in a round there is no telling which of them is unlike the others."""

Sizes = Mapping[str, float]
"""Size by field."""


def sizes_of(payload: Any) -> dict[str, float]:
    """Return the size of every field that has one."""
    sizes = {}
    for name, rule in rules_of(type(payload)).items():
        value = getattr(payload, name)
        items = [np.asarray(item) for item in (value.values() if rule.mapping else [value])]
        floats = [item for item in items if item.dtype.kind == "f" and item.size]
        if rule.degree and floats:
            total = sum(_sum_of_squares(item) for item in floats)
            mean = total / sum(item.size for item in floats)
            sizes[name] = math.sqrt(mean) ** (1 / rule.degree)
    return sizes


def _sum_of_squares(item: NDArray[Any]) -> float:
    flat = item.reshape(-1)
    if flat.dtype.itemsize < 4:  # the squares of float16 overflow from 256 on
        flat = flat.astype(np.float32)
    with np.errstate(over="ignore"):
        total = float(np.dot(flat, flat))
        return total if math.isfinite(total) else float(np.square(flat, dtype=np.float64).sum())


def refuse_large(sizes: Sizes, received: Sizes, limit: float) -> None:
    """Refuse an uplink of which a field is too large against what its client received.

    Parameters
    ----------
    sizes, received : Sizes
        Of the uplink and of the downlink that it answers. A field that was not received, or of
        zeros alone, counts as of size 1.
    limit : float
        How many times as large it may be; 0 does not limit.

    Raises
    ------
    PayloadError
        Naming the field.
    """
    for name, size in sizes.items():
        if limit and size > limit * (received.get(name) or 1.0):
            against = f"the {received[name]:.3g} of what it received" if received.get(name) else "1"
            raise PayloadError(_said(name, size, limit, against))


def unlike_others(sizes: Mapping[int, Sizes], limit: float) -> dict[int, str]:
    """Return, by client, which of its fields is too large against the median over the clients.

    Parameters
    ----------
    sizes : Mapping of int to Sizes
        Of the uplinks of a round.
    limit : float
        How many times the median a field's size may be; 0 does not limit.
    """
    found: dict[int, str] = {}
    for name in {name: None for own in sizes.values() for name in own}:
        own = {client: fields[name] for client, fields in sizes.items() if name in fields}
        usual = median(own.values())
        for client, size in own.items():
            if limit and usual and len(own) >= FEWEST_TO_COMPARE and size > limit * usual:
                said = _said(name, size, limit, f"the {usual:.3g} of the round's median")
                found.setdefault(client, said)
    return found


def _said(name: str, size: float, limit: float, against: str) -> str:
    return f"{name}: its size is {size:.3g}, more than {limit:g} (max-update) times {against}"
