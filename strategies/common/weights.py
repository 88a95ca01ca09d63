"""States of modules as payloads: what is sent, what is expected, and the server's mean.

For methods in which clients exchange a whole module or a part of one as an `arrays()` field. All
functions take a state, which is `module.state_dict()` or a selection of its entries. Buffers
such as BatchNorm's running statistics travel and are averaged like weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strategies.base.payload import Template

State = Mapping[str, Tensor]
StateArrays = Mapping[str, NDArray[Any]]


def copied(state: State) -> dict[str, Tensor]:
    """Return copies of all entries, where they are and without gradients."""
    return {name: item.detach().clone() for name, item in state.items()}


def state_template(state: State) -> Template:
    """Return the shape and dtype of every entry; the module may live on the meta device."""
    return {
        name: (tuple(item.shape), str(item.dtype).removeprefix("torch."))
        for name, item in state.items()
    }


def state_arrays(state: State) -> dict[str, NDArray[Any]]:
    """Return copies of all entries, to be sent; training on does not change them."""
    return {
        name: item.detach().cpu().clone(memory_format=torch.contiguous_format).numpy()
        for name, item in state.items()
    }


def load_arrays(state: State, received: StateArrays) -> None:
    """Copy received entries into the tensors of a state, in place; nothing is aliased.

    Entries of the state that were not received stay as they are. Received ones that the state
    lacks cannot come from a payload checked with `state_template`, and raise a KeyError.
    """
    with torch.no_grad():
        for name, item in received.items():
            state[name].copy_(torch.tensor(item))


def state_views(state: State) -> dict[str, NDArray[Any]]:
    """Return all entries without copying where they are on the CPU and contiguous.

    For what is packed at once: packing copies.
    """
    return {name: item.detach().cpu().contiguous().numpy() for name, item in state.items()}


class RunningMean:
    """Weighted means by entry, of states that need not have the same entries, read once.

    Sums are in float64 and in the order of `add`, which methods call in the order of client ids,
    so that a mean does not depend on who is fastest. Integers are counters, such as BatchNorm's
    `num_batches_tracked`, of which a mean has no meaning: their maximum is kept. Memory does not
    grow with the number of states.
    """

    def __init__(self) -> None:
        self._totals: dict[str, NDArray[Any]] = {}
        self._weights: dict[str, float] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def add(self, state: StateArrays, weight: float) -> None:
        """Add a state with weight > 0; nothing of it is kept."""
        for name, item in state.items():
            known = name in self._totals
            if item.dtype.kind != "f":
                self._totals[name] = np.maximum(self._totals.get(name, item), item)
            elif known:
                self._totals[name] += np.multiply(item, weight, dtype=np.float64)
            else:
                self._totals[name] = np.array(np.multiply(item, weight, dtype=np.float64))
            self._weights[name] = self._weights.get(name, 0.0) + weight
            self._dtypes[name] = item.dtype

    @property
    def weights(self) -> dict[str, float]:
        """The sum of the weights of the states that had an entry, by entry."""
        return dict(self._weights)

    def means(self) -> dict[str, Tensor]:
        """Return the mean of every entry that was added, in the dtype received."""
        return {
            name: mean_tensor(total / self._weights[name] if dtype.kind == "f" else total, dtype)
            for (name, total), dtype in zip(
                self._totals.items(), self._dtypes.values(), strict=True
            )
        }


def mean_tensor(mean: NDArray[Any], dtype: np.dtype[Any]) -> Tensor:
    """Return a mean as a tensor of the dtype that clients sent, sharing no memory."""
    return torch.tensor(mean.astype(dtype))


def mean_states(
    states: Iterable[tuple[StateArrays, float]], mean: RunningMean | None = None
) -> dict[str, Tensor]:
    """Average states: sum_k n_k state_k / sum_k n_k for every entry, over those that have it.

    Parameters
    ----------
    states : iterable of (mapping, float)
        States and their weights n_k > 0, at least one pair; see `RunningMean`.
    mean : RunningMean, optional
        An empty one of another kind, see `common.robust`.

    Returns
    -------
    dict of str to Tensor
        Entries of the dtype received, sharing no memory with any client's.

    Raises
    ------
    ValueError
        If there is no state.
    """
    mean = mean or RunningMean()
    for state, weight in states:
        mean.add(state, weight)
    if not mean.weights:
        raise ValueError("no state to average")
    return mean.means()
