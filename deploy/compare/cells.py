"""What stands in a cell of a comparison's table: a number over the seeds, or words."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

NOT_REACHED, NOT_RUN, NOT_COMPARABLE = "not reached", "not run", "not comparable"


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean over seeds and, from two seeds on, their sample standard deviation."""

    mean: float
    std: float | None


def spread(values: Iterable[float]) -> Spread:
    """Return mean and sample standard deviation of at least one value."""
    values = list(values)
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def over_seeds(values: Sequence[float | str]) -> Spread | str:
    """Average over seeds, or say for how many of them there is no number and why."""
    missing = Counter(value for value in values if isinstance(value, str))
    if not missing:
        return spread(value for value in values if not isinstance(value, str))
    if list(missing.values()) == [len(values)]:
        return next(iter(missing))
    return ", ".join(
        f"{words} {'by' if words == NOT_REACHED else 'in'} {count} of {len(values)} seeds"
        for words, count in missing.items()
    )
