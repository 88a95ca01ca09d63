"""LG-FedAvg: the weighted mean of heads, by hand, and what it costs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.common.head import HeadPayload as Uplink
from strategies.lg_fedavg import average_heads
from tests.support import run_federation


def head(weight: list[list[float]], bias: list[float]) -> Uplink:
    return Uplink(np.array(weight, dtype=np.float32), np.array(bias, dtype=np.float32))


def test_two_clients_weighted_by_their_examples() -> None:
    """(1 * first + 3 * second) / 4."""
    first, second = head([[4, 0], [0, 8]], [4, 0]), head([[0, 4], [8, 0]], [0, -4])
    weight, bias = average_heads([(first, 1), (second, 3)])
    assert weight.tolist() == [[1.0, 3.0], [6.0, 2.0]]
    assert bias.tolist() == [1.0, -3.0]
    assert weight.dtype == bias.dtype == torch.float32


def test_one_reply_is_kept_as_it_is_and_not_aliased() -> None:
    only = head([[0.1, 0.2]], [0.3])
    weight, bias = average_heads([(only, 7)])
    np.testing.assert_array_equal(weight.numpy(), only.head_weight)
    only.head_weight[:] = 9
    only.head_bias[:] = 9
    assert weight.max() < 1
    assert bias.max() < 1


def test_sums_do_not_lose_small_heads_beside_large_counts() -> None:
    """In float32 a sum of 2^24 examples would swallow the single example of the last client."""
    pairs = [(head([[1.0]], [0.0]), 2**24), (head([[1.0]], [float(2**24)]), 1)]
    _, bias = average_heads(pairs)
    assert bias.item() == pytest.approx(2**24 / (2**24 + 1))


def test_no_head_is_kept_after_it_was_added() -> None:
    sent: list[weakref.ref[Uplink]] = []

    def stream() -> Iterator[tuple[Uplink, int]]:
        for count in (1, 2, 3):
            assert all(reference() is None for reference in sent[:-1])
            sent.append(weakref.ref(uplink := head([[float(count)]], [0.0])))
            yield uplink, count
            del uplink

    weight, _ = average_heads(stream())
    assert weight.item() == pytest.approx((1 + 4 + 9) / 6)


def test_published_traffic() -> None:
    """FedRE's table: 513.00 thousand scalars up and down for ten clients, d = 512, C = 100."""
    arrays = np.zeros((100, 512), np.float32), np.zeros(100, np.float32)
    for payload in (Uplink(*arrays),):
        assert count_scalars(payload) == (51_300, 51_300)
    assert 10 * count_scalars(Uplink(*arrays))[0] == 513_000


def test_a_head_of_another_shape_is_refused_by_name() -> None:
    content = pack(head([[1.0, 2.0]], [0.0]))
    with pytest.raises(PayloadError, match="head_weight: shape"):
        unpack(Uplink, content, {"C": 2, "d": 2})


def test_clients_send_heads_and_nothing_else(tmp_path: Path) -> None:
    run = run_federation(tmp_path, 3, method="lg-fedavg")
    assert {row["scalars"] for row in run.rows("traffic") if row["purpose"] == "train"} == {"5130"}
