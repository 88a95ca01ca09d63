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


def mean_states(states: Iterable[tuple[StateArrays, int]]) -> dict[str, Tensor]:
    """Average states: sum_k n_k state_k / sum_k n_k; of integer entries, the maximum.

    Parameters
    ----------
    states : iterable of (mapping, int)
        States with equal entries, and their weights n_k >= 1, at least one pair. Read once and
        not kept: the memory needed does not grow with the number of clients.

    Returns
    -------
    dict of str to Tensor
        Entries of the dtype received, sharing no memory with any client's. Sums are in float64
        and in the order of arrival, which is the order of client ids, so that the result does
        not depend on who is fastest. Integers are counters, such as BatchNorm's
        `num_batches_tracked`, of which a mean has no meaning.

    Raises
    ------
    ValueError
        If there is no state.
    """
    totals: dict[str, NDArray[Any]] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    weight = 0
    for state, count in states:
        weight += count
        for name, item in state.items():
            if item.dtype.kind == "f":
                term = np.asarray(np.multiply(item, count, dtype=np.float64))
                totals[name] = totals[name] + term if name in totals else term
            else:
                totals[name] = np.maximum(totals.get(name, item), item)
            dtypes[name] = item.dtype
    if not weight:
        raise ValueError("no state to average")
    return {
        name: torch.tensor(
            (total / weight if dtypes[name].kind == "f" else total).astype(dtypes[name])
        )
        for name, total in totals.items()
    }
