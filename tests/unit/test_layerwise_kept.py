"""The layer-wise base: what is kept in memory, and what in files."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strategies.base.messages import ClientUpdate
from strategies.base.state import load_state, save_state
from strategies.common.layerwise import WeightsPayload
from strategies.common.weights import RunningMean
from tests.support import run_federation
from tests.unit.layerwise_support import (
    NESTED,
    a_server,
    states_of,
    update,
)
from tests.unit.test_training import a_context


class Arrays(dict[str, NDArray[Any]]):
    """A dictionary that weak references can point to."""


def test_a_round_holds_one_client_at_a_time() -> None:
    """What was aggregated is let go of, with all its arrays, before the next one is asked for."""
    server = a_server(dict.fromkeys(range(4), NESTED[0]))
    seen: list[weakref.ref[Any]] = []

    def stream() -> Iterator[ClientUpdate]:
        for client in range(4):
            # The loop that reads still names the update before this one.
            assert all(reference() is None for reference in seen[:-2])
            weights, buffers = states_of(NESTED[0], client)
            seen.extend(weakref.ref(weights[name]) for name in ("head.bias",))
            item = update(client, 1, WeightsPayload(Arrays(weights), Arrays(buffers)))
            seen.append(weakref.ref(item.uplink.weights))
            del weights, buffers
            yield item
            del item

    server.aggregate_in(1, stream())
    assert len(seen) == 8
    assert all(reference() is None for reference in seen)


def test_a_running_mean_keeps_nothing_of_what_it_is_given() -> None:
    mean = RunningMean()
    state = {"w": np.ones(3, np.float32), "n": np.array([4], np.int64)}
    seen = [weakref.ref(item) for item in state.values()]
    mean.add(state, 2)
    del state
    assert [reference() for reference in seen] == [None, None]
    assert mean.means()["n"].tolist() == [4]
    # An integer that is the largest so far is not aliased either.
    larger = np.array([9], np.int64)
    mean.add({"n": larger}, 1)
    larger[:] = 0
    assert mean.means()["n"].tolist() == [9]


def test_weights_of_the_mean_are_kept_by_entry() -> None:
    mean = RunningMean()
    mean.add({"a": np.array([1.0]), "b": np.array([10.0])}, 3)
    mean.add({"a": np.array([5.0])}, 1)
    assert mean.weights == {"a": 4, "b": 3}
    assert {name: item.item() for name, item in mean.means().items()} == {"a": 2, "b": 10}


def test_the_model_that_arrives_anew_is_not_stored_and_is_not_missed(tmp_path: Path) -> None:
    """A file of a client's state is small; a restart from it goes on as if nothing had been."""
    run = run_federation(
        tmp_path, 2, models="resnet10-w4", subset=0.1, method="fedavg", num_rounds=1
    )
    files = sorted((run.path / "clients").glob("*/*.safetensors"))
    assert len(files) == 2
    parameters = int(run.rows("clients")[0]["parameters"])
    assert parameters > 300_000
    for file in files:
        assert file.stat().st_size < 2_000
    context, server = a_context(8), a_server({0: NESTED[0]})
    context = dataclasses.replace(context, run=server.run)
    half, down = server.method.client(), server.downlink_for(0, 1)
    state = half.build(context)
    half.receive(context, state, down)
    half.train(context, state, down)
    save_state(tmp_path / "s.safetensors", state, {})
    with torch.device("meta"):
        restarted = load_state(tmp_path / "s.safetensors", half.build(context))
    sent = []
    for one in (state, restarted):
        half.receive(context, one, down)
        sent.append(half.train(context, one, down)[0].weights)
    for name, item in sent[0].items():
        np.testing.assert_array_equal(item, sent[1][name])
