"""What the framework keeps of a client beside its method's own state, in the same file.

It is there for every method, so none has to declare it.
"""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor

DIVERGED = 1000.0
"""A loss this many times its first value says that training diverged."""

GROWTH = "loss_growth"
"""The training metric that a client reports where that is so: the loss over its first value."""


@dataclasses.dataclass
class Kept:
    """One client's, from one message to the next.

    Attributes
    ----------
    first_loss : float, optional
        The loss of the first step that the client made in this run; None before it.
    optimizers : dict of str to Tensor
        State of the optimisers of local training, with `keep-optimizer`; see
        `strategies.common.optimizers`.
    trained : dict of str to int
        How often each set of modules was trained in this message. Not saved.
    """

    first_loss: float | None = None
    optimizers: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    trained: dict[str, int] = dataclasses.field(default_factory=dict)


def loss_growth(loss: float, first: float, classes: int) -> float | None:
    """Return how many times its first value a loss is, if that says that training diverged.

    Parameters
    ----------
    loss, first : float
        The mean loss of a round, and the first loss of the run.
    classes : int
        C. A guess without knowledge costs log C: a first loss below it, of a model that came
        trained, does not make a later guess a divergence. Nor does a first loss so large that
        training had diverged before it was seen hide what follows.

    Returns
    -------
    float or None
        None below `DIVERGED`.
    """
    guess = math.log(max(classes, 2))
    reference = max(first, guess) if first < DIVERGED * guess else guess
    growth = loss / reference
    return growth if growth >= DIVERGED else None
