"""Some of many, without a choice of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most `count` of the items, evenly over all."""
    taken = min(count, len(items))
    return [items[i * len(items) // taken] for i in range(taken)]
