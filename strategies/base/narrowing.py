"""Floating-point arrays in fewer bytes on the wire, with one scale for each array.

`float16` keeps 11 significant bits. The scale is a power of two that brings the largest value just
below 2**15, so that neither huge values overflow nor small arrays vanish, and rounding is all that
is lost. `int8` divides by the largest magnitude and rounds to 127 steps on either side of zero: no
value is off by more than 1/254 of the array's largest. Both round to nearest, without randomness,
element by element: the same bits on every machine.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIRE_DTYPES = ("float32", "float16", "int8")
"""Values of `wire-dtype`; with the first, every array travels as it is."""
NARROW = WIRE_DTYPES[1:]
FLOATS = ("float16", "float32", "float64")
STEPS = 127
TOP_EXPONENT, LEAST_SCALE_EXPONENT = 15, -126
"""Of float16: values end below 2**15; float32 has no scale below 2**-126 at full precision."""


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """What travels in the place of an array: `values` times `scale`, in the array's own dtype.

    Attributes
    ----------
    values : NDArray
        Of dtype float16 or int8, in the array's shape.
    dtype : str
        The array's own.
    scale : float
        Finite and above 0.
    """

    values: NDArray[Any]
    dtype: str
    scale: float

    def widened(self) -> NDArray[Any]:
        """Return the array; what a foreign scale makes of it may be infinite."""
        work = _work(self.dtype)
        with np.errstate(over="ignore"):
            wide: NDArray[Any] = self.values.astype(work) * work.type(self.scale)
        return wide.astype(self.dtype, copy=False)


def narrowed(item: NDArray[Any], dtype: str) -> Narrowed | None:
    """Return a float array as `dtype`, or None where it has to travel as it is.

    It has to if it holds NaN or infinite values, which the receiver is to find and refuse; if
    its range is beyond the scale's; or if nothing is won.
    """
    own = item.dtype.name
    if own not in FLOATS or np.dtype(dtype).itemsize >= item.dtype.itemsize or not item.size:
        return None
    largest = float(max(item.max(), -item.min()))
    if not math.isfinite(largest):
        return None
    work = _work(own)
    scale = float(work.type(_scale(largest, dtype)))
    if not 0 < scale < math.inf:
        return None
    with np.errstate(over="ignore"):
        values = item.astype(work, copy=False) / work.type(scale)
        if dtype == "int8":
            values = np.clip(np.rint(values), -STEPS, STEPS)
        found = Narrowed(values.astype(dtype), own, scale)
        top = Narrowed(np.abs(found.values).max(keepdims=True), own, scale).widened()
    return found if np.isfinite(top).all() else None


def _scale(largest: float, dtype: str) -> float:
    if not largest:
        return 1.0
    if dtype == "int8":
        return largest / STEPS
    return 2.0 ** max(math.frexp(largest)[1] - TOP_EXPONENT, LEAST_SCALE_EXPONENT)


def _work(dtype: str) -> np.dtype[Any]:
    """Return the dtype to compute in: float16 has too few exponents for its own scale."""
    return np.dtype("float64" if dtype == "float64" else "float32")
