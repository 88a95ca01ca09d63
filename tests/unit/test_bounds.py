"""Finite values that would ruin a mean: refused against what was received, and what others send."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from numpy.typing import NDArray

from strategies.base.bounds import refuse_large, sizes_of, unlike_others
from strategies.base.messages import METRICS, MetricRow, metrics_record
from strategies.base.method import get_method, method_names
from strategies.base.payload import PayloadError, array, arrays, pack, rules_of
from tests.unit.test_exchange import a_round


@dataclasses.dataclass
class Payload:
    """One field of each kind."""

    weights: Any = arrays()
    vector: NDArray[Any] = array("d")
    counts: NDArray[Any] = array("m", degree=0)
    ids: NDArray[Any] = array("m", dtype="int64")
    kernel: NDArray[Any] = array("m", "m", degree=2)


def a_payload(**changes: Any) -> Payload:
    values: dict[str, Any] = {
        "weights": {"a": np.array([3.0, 4.0], np.float32), "n": np.array([10**9])},
        "vector": np.array([[1.0, -1.0]], np.float32),
        "counts": np.array([1e30], np.float32),
        "ids": np.array([10**12]),
        "kernel": np.array([[9.0]], np.float32),
    }
    return Payload(**{**values, **changes})


def test_sizes_are_root_mean_squares_of_floats() -> None:
    assert sizes_of(a_payload()) == {
        "weights": pytest.approx(12.5**0.5),
        "vector": 1.0,
        "kernel": 3.0,
    }
    both = {"a": np.array([3.0], np.float32), "b": np.array([4.0, 0.0], np.float64)}
    assert sizes_of(a_payload(weights=both))["weights"] == pytest.approx((25 / 3) ** 0.5)
    half = np.full(4, 300.0, np.float16)  # its square is beyond float16
    assert sizes_of(a_payload(vector=half))["vector"] == pytest.approx(300)
    huge = np.full(2, 3e38, np.float32)  # as are these squares beyond float32
    assert sizes_of(a_payload(vector=huge))["vector"] == pytest.approx(3e38)
    assert "vector" not in sizes_of(a_payload(vector=np.zeros(0, np.float32)))


def test_a_field_is_held_against_what_was_received_under_its_name() -> None:
    refuse_large({"weights": 5.0, "vector": 10.0}, {"weights": 0.5}, 10)
    with pytest.raises(
        PayloadError, match=r"^weights: .* is 5\.1, more than 10 \(max-update\) tim"
    ):
        refuse_large({"weights": 5.1}, {"weights": 0.5}, 10)
    for nothing in ({}, {"vector": 0.0}):
        with pytest.raises(PayloadError, match=r"^vector: .* is 10\.1, more than 10 .* times 1$"):
            refuse_large({"vector": 10.1}, nothing, 10)
    refuse_large({"vector": 1e30}, {}, 0)


def test_a_field_is_held_against_the_median_of_the_round() -> None:
    sizes = {0: {"v": 1.0}, 1: {"v": 2.0}, 2: {"v": 21.0}, 3: {"v": 1.5, "w": 9.0}}
    assert list(unlike_others(sizes, 12)) == []  # the median is 1.75
    found = unlike_others(sizes, 11)
    assert list(found) == [2]
    assert found[2].startswith("v: its size is 21, more than 11 (max-update) times")
    assert unlike_others(sizes, 0) == {}
    assert unlike_others({0: {"v": 1.0}, 1: {"v": 1e30}}, 10) == {}  # which of the two is it?
    assert unlike_others({k: {"v": 0.0} for k in range(3)} | {3: {"v": 9.0}}, 10) == {}


def with_rep(content: RecordDict, value: float) -> RecordDict:
    label = np.zeros(10, np.float32)
    label[0] = 1
    content.update(pack(get_method("fedre").uplink(np.full(512, value, np.float32), label)))
    return content


def poisoned(value: float, client: int = 1) -> Any:
    """Return what makes one client's reply finite and enormous."""

    def change(number: int, content: RecordDict) -> RecordDict:
        content[METRICS] = metrics_record([MetricRow("pre", "accuracy", 1.0, 2)])
        return with_rep(content, value) if number == client else content

    return change


@pytest.mark.parametrize(("value", "client"), [(3e38, 1), (3e38, 0), (1e32, 2), (-3e38, 1)])
def test_a_poisoned_update_is_refused_by_name(value: float, client: int) -> None:
    """3e38 passed every check before, and what a mean makes of it is not finite."""
    result, seen = a_round(poisoned(value, client))
    assert [update.client_id for update in seen] == [c for c in (0, 1, 2) if c != client]
    (failure,) = result.failures
    assert failure.client_id == client
    assert failure.reason.startswith("refused payload: entangled_rep: its size is ")
    assert client not in {number for number, _ in result.rows}


@pytest.mark.parametrize("client", [0, 1, 2])
def test_one_that_is_unlike_the_others_is_refused(client: int) -> None:
    """15 is within 20 times what a field may have alone, and 150 times what the others send."""

    def change(number: int, content: RecordDict) -> RecordDict:
        return with_rep(content, 15.0 if number == client else 0.1) if number < 3 else content

    result, seen = a_round(change, max_update=20.0)
    assert [update.client_id for update in seen] == [c for c in (0, 1, 2) if c != client]
    (failure,) = result.failures
    assert (failure.client_id, "the 0.1 of the round's median" in failure.reason) == (client, True)
    assert client not in {number for number, _ in result.rows}


def test_the_bound_can_be_taken_away() -> None:
    result, seen = a_round(poisoned(1e32), max_update=0.0)
    assert [update.client_id for update in seen] == [0, 1, 2]
    assert result.failures == []


@pytest.mark.parametrize("name", method_names())
def test_every_float_that_a_method_sends_is_bounded_or_a_count(name: str) -> None:
    for field, rule in rules_of(get_method(name).uplink).items():
        if not rule.degree:
            assert rule.minimum is not None, (name, field)  # a count, whose own range is declared
