"""Floating-point operations of training, counted by PyTorch's own counter.

Counting slows a step down, so one step is counted for every kind of client and the result is
scaled: convolutions and matrix products, all that the counter counts, are linear in the batch.
What a gradient hook computes does not depend on the batch; it is counted apart, per step.

On a device every message is answered by a new process, so counts are kept in a file beside the
private state: the counter's imports and its slow step take seconds of a core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from strategies.base.client import ClientContext
from strategies.base.files import replacing
from strategies.common.optimizers import decline_compiler

T = TypeVar("T")

_PER_EXAMPLE: dict[str, float] = {}
_PER_STEP: dict[str, float] = {}


@contextmanager
def remembered(path: Path) -> Iterator[None]:
    """Take the counts that a file holds into the block, and write it if there were new ones.

    Parameters
    ----------
    path : Path
        The file; it belongs to one client in one run, whose model never changes. One that is
        missing or cannot be read is written anew.
    """
    with suppress(OSError, ValueError, TypeError, AttributeError):
        known = json.loads(path.read_text(encoding="utf-8"))
        for key, (per_example, per_step) in known.items():
            _PER_EXAMPLE[key], _PER_STEP[key] = float(per_example), float(per_step)
    before = set(_PER_EXAMPLE)
    yield
    if not path.is_file() or set(_PER_EXAMPLE) != before:
        counts = {key: (count, _PER_STEP.get(key, 0.0)) for key, count in _PER_EXAMPLE.items()}
        with replacing(path) as partial:
            partial.write_text(json.dumps(counts, indent=1), encoding="utf-8")


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
        run, data = context.run, context.data
        self._key = repr((
            run.method, context.config, context.model_name, run.feature_dim, data.task,
            data.channels, data.image_size, data.num_classes, context.server_round > 1, extra,
            *((data.features, data.steps) if data.features else ()),
        ))  # fmt: skip
        self._apart = 0.0

    @contextmanager
    def counting(self, examples: int) -> Iterator[None]:
        """Count what runs inside the block, a step on `examples` examples, if that is new."""
        counter: Any = nullcontext()
        if self._key not in _PER_EXAMPLE:
            counter = _new_counter()
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
            with _new_counter() as counter:
                result = hook()
            self._apart = float(counter.get_total_flops())
            return result

        return counted

    def total(self, examples: int, steps: int) -> float:
        """Return the operations of so many steps on so many examples; 0 if there was none."""
        per_example = _PER_EXAMPLE.get(self._key, 0.0)
        return per_example * examples + _PER_STEP.get(self._key, 0.0) * steps


def _new_counter() -> Any:
    """Make torch's counter, by which no compiler is imported."""
    from torch.utils import flop_counter

    mode = getattr(flop_counter, "_FlopCounterMode", None)
    if mode is not None:
        decline_compiler(mode.__torch_dispatch__)
    return flop_counter.FlopCounterMode(display=False)
