"""Whether an attack is ahead of its controls, or of chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

Ahead = tuple[float, float | None]
"""By how much on average, and its standard error; None with a single value."""


def ahead_of(attack: Sequence[float], control: Sequence[float]) -> Ahead:
    """Return by how much an attack's scores are above a control's, pair by pair."""
    differences = [own - other for own, other in zip(attack, control, strict=True)]
    error = (
        statistics.stdev(differences) / math.sqrt(len(differences))
        if len(differences) > 1
        else None
    )
    return statistics.fmean(differences), error


def verdict_on(ahead: Mapping[str, Ahead], what: str) -> str:
    """Say whether an attack is better than what anyone can do without the uplink.

    Parameters
    ----------
    ahead : Mapping of str to Ahead
        By control.
    what : str
        What the controls named here do as well: "come as near to a true image".
    """
    level = [name for name, (mean, error) in ahead.items() if mean <= 2 * (error or 0.0)]
    if level:
        return (
            f"the attack does not beat its controls: {', '.join(level)} {what}, within two "
            "standard errors"
        )
    if any(error is None for _, error in ahead.values()):
        return "with a single value nothing can be said of chance"
    return "the attack beats all controls by more than two standard errors"


def ahead_text(ahead: Ahead | None, digits: int = 2) -> str:
    """Return "+1.20 ± 0.30", or nothing."""
    if ahead is None:
        return ""
    mean, error = ahead
    return f"{mean:+.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
