"""Floating-point operations of training, counted by PyTorch's own counter.

Counting slows a step down, so one step is counted for every kind of client and the result is
scaled: convolutions and matrix products, all that the counter counts, are linear in the batch.
What a gradient hook computes does not depend on the batch; it is counted apart, per step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from strategies.base.client import ClientContext

T = TypeVar("T")

_PER_EXAMPLE: dict[Hashable, float] = {}
_PER_STEP: dict[Hashable, float] = {}


class StepFlops:
    """Operations of one training step per example, forward and backward.

    Parameters
    ----------
    context : ClientContext
        The client; clients of one method, architecture and image shape share a count. Round 1 is
        counted apart, because many methods have nothing to work with in it yet.
    extra : Hashable
        Whatever else the cost of a step depends on.
    """

    def __init__(self, context: ClientContext, extra: Hashable = None) -> None:
        run = context.run
        self._key = (
            run.method, context.config, context.model_name, context.shape, run.feature_dim,
            context.server_round > 1, extra,
        )  # fmt: skip
        self._apart = 0.0

    @contextmanager
    def counting(self, examples: int) -> Iterator[None]:
        """Count what runs inside the block, a step on `examples` examples, if that is new."""
        counter: Any = nullcontext()
        if self._key not in _PER_EXAMPLE:
            from torch.utils.flop_counter import FlopCounterMode

            counter = FlopCounterMode(display=False)
        with counter:
            yield
        if self._key not in _PER_EXAMPLE:
            _PER_STEP[self._key] = self._apart
            _PER_EXAMPLE[self._key] = (counter.get_total_flops() - self._apart) / examples

    def apart(self, hook: Callable[[], T]) -> Callable[[], T]:
        """Return a hook to be called in every step, its operations counted per step."""

        def counted() -> T:
            if self._key in _PER_EXAMPLE:
                return hook()
            from torch.utils.flop_counter import FlopCounterMode

            with FlopCounterMode(display=False) as counter:
                result = hook()
            self._apart = float(counter.get_total_flops())
            return result

        return counted

    def total(self, examples: int, steps: int) -> float:
        """Return the operations of so many steps on so many examples; 0 if there was none."""
        per_example = _PER_EXAMPLE.get(self._key, 0.0)
        return per_example * examples + _PER_STEP.get(self._key, 0.0) * steps
