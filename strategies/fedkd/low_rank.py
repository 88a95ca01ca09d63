"""States of modules as truncated singular value decompositions, for FedKD's exchange.

A tensor with more than one dimension is seen as a matrix (rows, cols), a convolution's kernel
(out, in, k, k) as (out, in * k * k), and becomes factors U (rows, q), sigma (q,) and V (q, cols):
q (rows + cols + 1) scalars. It is sent as it is where the factors are not fewer scalars; tensors
of one dimension, such as biases and buffers, always are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strategies.base.payload import PayloadError, array
from strategies.common.weights import State, StateArrays

Floats = NDArray[np.float32]
Layout = Mapping[str, tuple[int, ...]]
"""Names and shapes of the tensors of a state, in its order."""


@dataclasses.dataclass
class LowRank:
    """Payload: tensors in the order of a `Layout`, each as factors or as it is.

    `factors` joins U, sigma and V of the tensors that `is_factored` marks, whose `ranks` are their
    q >= 1. `raw` joins the others, whose rank is written as 0.
    """

    is_factored: NDArray[np.bool_] = array("n", dtype="bool", counted=False)
    ranks: NDArray[np.int64] = array("n", dtype="int64", counted=False, minimum=0)
    factors: Floats = array("p")
    raw: Floats = array("r")


def layout_of(state: State) -> Layout:
    """Return the layout of a state."""
    return {name: tuple(item.shape) for name, item in state.items()}


def smallest_rank(sigma: Floats, energy: float) -> int:
    """Return the least q >= 1 whose q largest singular values hold the share of the energy.

    Parameters
    ----------
    sigma : ndarray
        Singular values, descending, at least one.
    energy : float
        Wanted share T in (0, 1]: sum_{i<=q} sigma_i^2 >= T sum_i sigma_i^2.
    """
    kept = np.cumsum(np.square(sigma, dtype=np.float64))
    # The last sum is the total itself, so that the search ends inside, also where T = 1.
    return int(np.searchsorted(kept, energy * kept[-1])) + 1


def factorise(matrix: Floats, energy: float) -> tuple[Floats, Floats, Floats]:
    """Return U (rows, q), sigma (q,) and V (q, cols) of the smallest rank that keeps `energy`."""
    parts = torch.linalg.svd(torch.tensor(matrix), full_matrices=False)
    u, sigma, v = (part.numpy() for part in parts)
    rank = smallest_rank(sigma, energy)
    return u[:, :rank], sigma[:rank], v[:rank]


def compress(tensors: StateArrays, energy: float | None) -> dict[str, NDArray[Any]]:
    """Return the fields of `LowRank` for float32 tensors; None leaves all of them as they are.

    Raises
    ------
    PayloadError
        If a tensor is not finite, naming it.
    """
    ranks: list[int] = []
    factors: list[Floats] = [np.zeros(0, np.float32)]
    raw: list[Floats] = [np.zeros(0, np.float32)]
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise PayloadError(f"{name}: NaN or infinite values cannot be sent; lower lr")
        ranks.append(0)
        parts = [tensor]
        if tensor.ndim > 1 and energy is not None:
            found = factorise(tensor.reshape(len(tensor), -1), energy)
            if sum(part.size for part in found) < tensor.size:
                parts, ranks[-1] = list(found), len(found[1])
        (factors if ranks[-1] else raw).extend(part.ravel() for part in parts)
    return {
        "is_factored": np.array(ranks) > 0,
        "ranks": np.array(ranks, np.int64),
        "factors": np.concatenate(factors),
        "raw": np.concatenate(raw),
    }


def pieces(sent: LowRank, layout: Layout) -> Iterator[tuple[str, list[Floats]]]:
    """Yield for every tensor its name and [U, sigma, V], or [tensor]; nothing is copied.

    Raises
    ------
    PayloadError
        Naming what contradicts the layout, and factors whose product is not finite.
    """
    if len(sent.ranks) != len(layout):
        raise PayloadError(f"ranks: {len(sent.ranks)} tensors, expected {len(layout)}")
    factors, raw = _Reader("factors", sent.factors), _Reader("raw", sent.raw)
    kinds = zip(sent.is_factored.tolist(), sent.ranks.tolist(), strict=True)
    for (name, shape), (factored, rank) in zip(layout.items(), kinds, strict=True):
        rows, cols = _matrix_shape(shape)
        if factored != (rank > 0) or rank > (min(rows, cols) if len(shape) > 1 else 0):
            raise PayloadError(f"ranks: {rank} of {name} {shape}, is_factored = {factored}")
        if not factored:
            yield name, [raw.take(name, *shape)]
            continue
        parts = [factors.take(name, *part) for part in ((rows, rank), (rank,), (rank, cols))]
        # Bounds every partial product and sum, so that none overflows on the way either.
        largest = [float(max(1, np.abs(part).max())) for part in parts]
        if rank * math.prod(largest) >= float(np.finfo(np.float32).max):
            raise PayloadError(f"factors: the product for {name} is not finite")
        yield name, parts
    factors.close()
    raw.close()


def decompress(sent: LowRank, layout: Layout) -> dict[str, Floats]:
    """Return the tensors, U diag(sigma) V where they were factored, as copies.

    Products are sums of separate float32 operations in the order of the ranks, and not left to a
    matrix routine, so that all machines get the same bits from the same payload.
    """
    tensors = {}
    for name, parts in pieces(sent, layout):
        tensor = _product(*parts) if len(parts) == 3 else parts[0].copy()
        tensors[name] = tensor.reshape(layout[name])
    return tensors


def _product(u: Floats, sigma: Floats, v: Floats) -> Floats:
    total = np.zeros((len(u), v.shape[1]), np.float32)
    term = np.empty_like(total)
    columns = (u * sigma).T
    for column, row in zip(columns, v, strict=True):
        np.multiply(column[:, None], row, out=term)
        total += term
    return total


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


class _Reader:
    """Cuts a flat received array up."""

    def __init__(self, key: str, flat: Floats) -> None:
        self.key, self.left = key, flat

    def take(self, name: str, *shape: int) -> Floats:
        size = math.prod(shape)
        if size > self.left.size:
            raise PayloadError(f"{self.key}: {name} needs {size} values, {self.left.size} are left")
        piece, self.left = self.left[:size], self.left[size:]
        return piece.reshape(shape)

    def close(self) -> None:
        if self.left.size:
            raise PayloadError(f"{self.key}: {self.left.size} values belong to no tensor")
