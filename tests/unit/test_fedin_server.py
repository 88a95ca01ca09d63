"""FedIN's server: the pool of pairs, what is drawn for whom, and means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strategies.base.payload import PayloadError
from strategies.base.state import load_state, save_state
from strategies.fedin.fedin import Uplink
from tests.unit.test_fedin import MAPS, WIDTH
from tests.unit.test_layerwise import a_server, states_of, update

FAMILY = {0: "resnet10-w4", 1: "resnet10-w4", 2: "resnet14-w4"}


def server_of(models: Mapping[int, str] = FAMILY, **config: Any) -> Any:
    return a_server(models, "fedin", **{f"fedin__{key}": value for key, value in config.items()})


def uplink_of(client: int, pairs: int, seed: int = 0, model: str = "resnet10-w4") -> Any:
    """An update whose pairs hold 100 * client + their number in every element."""
    weights, buffers = states_of(model, 10 * seed + client)
    marks = (100 * client + np.arange(pairs, dtype=np.float32)).reshape(-1, 1)
    s_in = np.broadcast_to(marks.reshape(-1, 1, 1, 1), (pairs, *MAPS)).copy()
    s_out = np.broadcast_to(marks, (pairs, WIDTH)).copy()
    return update(client, pairs, Uplink(weights, buffers, s_in, s_out))


def marks_of(downlink: Any) -> list[float]:
    """Return which pairs a downlink holds, after checking that s_in and s_out belong together."""
    marks = [float(row[0]) for row in downlink.s_out]
    assert [float(row.flat[0]) for row in downlink.s_in] == marks
    return marks


# The pool -----------------------------------------------------------------------------------------


def test_first_downlink_has_no_pairs_and_later_ones_come_from_others() -> None:
    server = server_of(feature_batch_size=4)
    first = server.downlink_for(0, 1)
    assert first.s_in.shape == (0, *MAPS)
    assert first.s_out.shape == (0, WIDTH)
    server.aggregate_in(1, iter([uplink_of(0, 3), uplink_of(1, 4), uplink_of(2, 4, 0, FAMILY[2])]))
    assert server.state.sender.tolist() == [0] * 3 + [1] * 4 + [2] * 4
    draws = {}
    for client in FAMILY:
        marks = marks_of(server.downlink_for(client, 2))
        assert len(marks) == len(set(marks)) == 4
        assert client not in {int(mark // 100) for mark in marks}
        draws[client] = marks
        assert marks == marks_of(server.downlink_for(client, 2))
    assert draws[0] != draws[1]
    assert draws[0] != marks_of(server.downlink_for(0, 3))


def test_own_pairs_are_better_than_none() -> None:
    server = server_of(feature_batch_size=4)
    server.aggregate_in(1, iter([uplink_of(1, 3)]))
    assert sorted(marks_of(server.downlink_for(1, 2))) == [100, 101, 102]
    assert sorted(marks_of(server.downlink_for(0, 2))) == [100, 101, 102]


def test_draws_are_uniform_over_others() -> None:
    """1 of 4 pairs in 400 rounds: each about 100 times, standard deviation 8.7."""
    server = server_of(feature_batch_size=1)
    server.state.sender = torch.tensor([0, 0, 1, 1, 1, 1])
    counts = np.zeros(6)
    for server_round in range(400):
        server.server_round = server_round
        counts[server.draw(0)] += 1
    assert counts[:2].sum() == 0
    assert (abs(counts[2:] - 100) < 35).all()


def test_a_shared_draw_is_one_for_all() -> None:
    server = server_of(draw="shared", feature_batch_size=4)
    server.aggregate_in(1, iter([uplink_of(0, 4), uplink_of(1, 4)]))
    draws = [marks_of(server.downlink_for(info.client_id, 2)) for info in server.clients.values()]
    assert draws[0] == draws[1] == draws[2]
    assert len(set(draws[0])) == 4


def test_the_pool_is_of_the_round_or_the_latest_of_every_client() -> None:
    for pool, expected in (("round", [0, 0, 200]), ("latest", [0, 0, 100, 101, 200])):
        server = server_of(pool=pool)
        server.aggregate_in(1, iter([uplink_of(0, 3), uplink_of(1, 2)]))
        server.aggregate_in(2, iter([uplink_of(0, 2, 1), uplink_of(2, 1, 1, FAMILY[2])]))
        held = server.state.s_out[:, 0].tolist()
        assert held == [0.0, 1.0, *expected[2:]]
        assert (server.state.sender == server.state.s_out[:, 0] // 100).all()
        assert (server.state.s_in[:, 0, 0, 0] == server.state.s_out[:, 0]).all()


def test_more_batches_go_both_ways() -> None:
    server = server_of(feature_batch_size=2, feature_batches=3)
    server.aggregate_in(1, iter([uplink_of(0, 6), uplink_of(1, 6), uplink_of(2, 6, 0, FAMILY[2])]))
    assert len(set(marks_of(server.downlink_for(0, 2)))) == 6


@pytest.mark.parametrize(("pairs", "examples"), [(3, 4), (5, 4), (5, 9), (0, 2)])
def test_a_wrong_number_of_pairs_is_refused(pairs: int, examples: int) -> None:
    server = server_of(feature_batch_size=4)
    wrong = dataclasses.replace(uplink_of(0, pairs), num_examples=examples)
    with pytest.raises(PayloadError, match=f"s_in: {pairs} pairs, expected {min(4, examples)}"):
        server.check_uplink(wrong)
    server.check_uplink(dataclasses.replace(uplink_of(0, 3), num_examples=3))


def test_without_in_training_nothing_is_pooled() -> None:
    server = server_of(alleviation="none")
    server.check_uplink(dataclasses.replace(uplink_of(0, 0), num_examples=9))
    server.aggregate_in(1, iter([dataclasses.replace(uplink_of(0, 0), num_examples=9)]))
    assert len(server.downlink_for(1, 2).s_in) == 0


def test_the_pool_survives_a_checkpoint(tmp_path: Path) -> None:
    server = server_of()
    server.aggregate_in(1, iter([uplink_of(0, 3), uplink_of(1, 2)]))
    save_state(tmp_path / "state", server.state, {})
    again = server_of()
    load_state(tmp_path / "state", again.state)
    for field in ("s_in", "s_out", "sender"):
        assert torch.equal(getattr(again.state, field), getattr(server.state, field))
    assert marks_of(again.downlink_for(2, 2)) == marks_of(server.downlink_for(2, 2))


# Means --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "mean", "share"),
    [
        ("layerwise", "auto", 1 / 2), ("architecture", "auto", 1 / 4),
        ("layerwise", "weighted", 1 / 4), ("architecture", "uniform", 1 / 2),
    ],
)  # fmt: skip
def test_means_are_equal_by_layer_and_by_examples_within_architectures(
    aggregation: str, mean: str, share: float
) -> None:
    """Clients 0 and 1, of one architecture, have 1 and 3 examples; Eq. 19 and Eq. 20, 21."""
    server = server_of(aggregation=aggregation, mean=mean)
    sent = [uplink_of(0, 1), uplink_of(1, 3)]
    server.aggregate_in(1, iter(sent))
    name = "backbone.layer3.0.conv2.weight"
    expected = sum(
        part * item.uplink.weights[name]
        for part, item in zip((share, 1 - share), sent, strict=True)
    )
    received = server.weights_for(server.clients[0])["weights"][name]
    np.testing.assert_allclose(received, expected, rtol=1e-6, atol=1e-7)
    deeper = server.weights_for(server.clients[2])["weights"][name]
    assert np.allclose(deeper, expected, atol=1e-6) is (aggregation == "layerwise")
