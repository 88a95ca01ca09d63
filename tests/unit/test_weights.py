"""States of modules: templates, copies, and the streaming weighted mean by hand."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from strategies.base.payload import PayloadError, arrays, pack, unpack
from strategies.common.weights import load_arrays, mean_states, state_arrays, state_template


@dataclasses.dataclass
class Sent:
    theta: dict[str, NDArray[Any]] = arrays()


class Arrays(dict[str, NDArray[Any]]):
    """A dictionary that weak references can point to."""


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def entry(*values: float) -> dict[str, NDArray[Any]]:
    return {"w": np.array(values, np.float32)}


def test_two_clients_weighted_by_their_examples() -> None:
    """(1 * first + 3 * second) / 4."""
    mean = mean_states([(entry(4, 0), 1), (entry(0, 8), 3)])
    assert mean["w"].tolist() == [1.0, 6.0]
    assert mean["w"].dtype == torch.float32


def test_integer_counters_stay_integers() -> None:
    counters = [({"n": np.array(count, np.int64)}, 5) for count in (3, 10, 7)]
    mean = mean_states(counters)
    assert mean["n"].item() == 10
    assert mean["n"].dtype == torch.int64
    assert mean["n"].shape == ()


def test_one_state_is_kept_bit_for_bit_and_not_aliased() -> None:
    only = {**entry(0.1, 1e-38, -3.3e38), "n": np.array([2], np.int64)}
    mean = mean_states([(only, 7)])
    np.testing.assert_array_equal(mean["w"].numpy(), only["w"])
    before = mean["w"].clone()
    only["w"][:] = 9
    only["n"][:] = 9
    assert torch.equal(mean["w"], before)
    assert mean["n"].item() == 2


def test_the_mean_of_unlike_clients_is_none_of_theirs() -> None:
    """The released FedMRL code stores one model's state for all, and averages the last one."""
    module = nn.Linear(3, 2)
    states = []
    for _ in range(2):
        states.append(state_arrays(module.state_dict()))
        with torch.no_grad():
            module.weight.add_(1.0)
    mean = mean_states([(state, 1) for state in states])
    for state in states:
        assert not np.array_equal(mean["weight"].numpy(), state["weight"])
    np.testing.assert_allclose(
        mean["weight"].numpy(), states[0]["weight"] + 0.5, rtol=1e-6, atol=1e-6
    )


def test_sums_do_not_lose_small_values_beside_large_counts() -> None:
    mean = mean_states([(entry(0.0), 2**24), (entry(float(2**24)), 1)])
    assert mean["w"].item() == pytest.approx(2**24 / (2**24 + 1))


def test_no_state_is_an_error() -> None:
    with pytest.raises(ValueError, match="no state"):
        mean_states([])


def test_no_state_is_kept_after_it_was_added() -> None:
    seen: list[weakref.ref[Arrays]] = []

    def stream() -> Iterator[tuple[Arrays, int]]:
        for count in (1, 2, 3):
            assert all(reference() is None for reference in seen[:-1])
            state = Arrays(entry(float(count)))
            seen.append(weakref.ref(state))
            yield state, count
            del state

    assert mean_states(stream())["w"].item() == pytest.approx((1 + 4 + 9) / 6)


def test_a_state_crosses_the_wire_and_fills_a_twin() -> None:
    """Also channels-last weights, and against a template from the meta device."""
    module, twin = net(), net()
    module.to(memory_format=torch.channels_last)
    with torch.device("meta"):
        template = state_template(net().state_dict())
    assert template["1.num_batches_tracked"] == ((), "int64")
    content = pack(Sent(state_arrays(module.state_dict())))
    received = unpack(Sent, content, {}, {"theta": template})
    load_arrays(twin.state_dict(), received.theta)
    for name, item in module.state_dict().items():
        assert torch.equal(item, twin.state_dict()[name]), name


def test_a_selection_leaves_the_rest_alone() -> None:
    module = nn.Linear(3, 2)
    weight = module.weight.detach().clone()
    load_arrays(module.state_dict(), {"bias": np.zeros(2, np.float32)})
    assert torch.equal(module.weight, weight)
    assert not module.bias.any()


def test_another_shape_is_refused_by_name() -> None:
    content = pack(Sent(state_arrays(nn.Linear(3, 2).state_dict())))
    template = state_template(nn.Linear(4, 2).state_dict())
    with pytest.raises(PayloadError, match="theta/weight: shape"):
        unpack(Sent, content, {}, {"theta": template})
