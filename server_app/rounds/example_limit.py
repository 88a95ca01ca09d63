"""How many examples a client may count with in a mean: what a device says of itself has a bound.

The weight of an update is the number of examples that its device claims to have. One that claims
10^12 would alone decide the mean.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np

from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.payload import rules_of

TIMES_MEDIAN = 10


def example_limit(setting: int | str, infos: Iterable[ClientInfo], *, devices: bool) -> int | None:
    """Return the most examples that an update counts with, or None for no limit.

    Parameters
    ----------
    setting : int or str
        `max-examples`. "auto" is `TIMES_MEDIAN` times the median of the clients that train, on
        devices; in a simulation, where one person has made all counts, it is no limit. Half of the
        devices or more can move the median, and so can one of two.
    infos : iterable of ClientInfo
        All clients that are known.
    devices : bool
        Whether clients are devices of their own.
    """
    if not isinstance(setting, str):
        return setting
    counts = [info.train_examples for info in infos if info.train_examples]
    return int(TIMES_MEDIAN * statistics.median(counts)) if counts and devices else None


def limited(update: ClientUpdate, most: int) -> ClientUpdate:
    """Return an update that counts with at most `most` examples, by class as well."""
    if update.num_examples <= most:
        return update
    return dataclasses.replace(update, num_examples=most, uplink=_fewer(update.uplink, most))


def _fewer(uplink: Any, most: int) -> Any:
    """Return a payload whose numbers of examples are smaller in proportion, none of them 0 by it.

    These are integers of degree 0. They sum to `most`, or as many more as there are of them.
    """
    changed = {}
    for name, rule in rules_of(type(uplink)).items():
        if rule.degree == 0 and rule.dtype.startswith("int"):
            counts = getattr(uplink, name)
            total = sum(counts.tolist())  # as Python integers: cannot overflow
            if total > most:
                changed[name] = np.ceil(counts * (most / total)).astype(counts.dtype)
    return dataclasses.replace(uplink, **changed)
