"""The layer-wise base: means against brute force, who nests with whom, buffers (U42)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models import build_model
from strategies.base.payload import count_scalars
from strategies.base.server import RegistrationError
from strategies.common.layerwise import WeightsPayload, split_state
from tests.unit.layerwise_support import (
    NESTED,
    SHAPE,
    State,
    a_server,
    card_of,
    play,
    server_for,
    states_of,
    update,
)
from tests.unit.test_training import a_context


def brute_force(
    before: State, sent: Mapping[int, State], weights: Mapping[int, float]
) -> dict[str, NDArray[Any]]:
    """For every entry: the mean over who sent it, as plain loops over clients."""
    after = {}
    for name, old in before.items():
        owners = [client for client in sent if name in sent[client]]
        if not owners:
            after[name] = old
        elif old.dtype.kind == "i":
            after[name] = max((sent[client][name] for client in owners), key=int)
        else:
            total = sum(weights[client] for client in owners)
            parts = [weights[c] / total * sent[c][name].astype(np.float64) for c in owners]
            after[name] = np.sum(parts, axis=0)
    return after


def numpy_of(state: Mapping[str, torch.Tensor]) -> State:
    return {name: item.clone().numpy() for name, item in state.items()}


def test_key_sets_nest() -> None:
    """Every entry of a shallower network exists in every deeper one, with the same shape."""
    names = [states_of(model, 0) for model in NESTED]
    for part in (0, 1):
        shapes = [{k: v.shape for k, v in state[part].items()} for state in names]
        assert shapes[0].items() < shapes[1].items() < shapes[2].items()


@pytest.mark.parametrize(
    ("mean", "weights"), [("weighted", {0: 3, 1: 1, 2: 6}), ("uniform", {0: 1, 1: 1, 2: 1})]
)
def test_mean_by_layer_equals_brute_force(mean: str, weights: dict[int, float]) -> None:
    """Each entry has its own weights: those of the clients that have it, rescaled to sum 1."""
    server = a_server(dict(enumerate(NESTED)), fedavg__mean=mean)
    before = numpy_of(server.state.weights)
    parts = {client: states_of(model, client) for client, model in enumerate(NESTED)}
    server.aggregate_in(
        1,
        (update(k, n, WeightsPayload(*parts[k])) for k, n in ((0, 3), (1, 1), (2, 6))),
    )
    expected = brute_force(before, {k: {**w, **b} for k, (w, b) in parts.items()}, weights)
    after = numpy_of(server.state.weights)
    assert after.keys() == expected.keys() == {**parts[2][0], **parts[2][1]}.keys()
    for name, item in after.items():
        np.testing.assert_allclose(item, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
        assert item.dtype == before[name].dtype


def test_what_nobody_sent_is_unchanged() -> None:
    server = a_server(dict(enumerate(NESTED)))
    before = numpy_of(server.state.weights)
    weights, buffers = states_of(NESTED[0], 7)
    server.aggregate_in(1, iter([update(0, 5, WeightsPayload(weights, buffers))]))
    after = numpy_of(server.state.weights)
    sent = {**weights, **buffers}
    assert set(before) - set(sent)
    for name, item in after.items():
        np.testing.assert_array_equal(item, sent.get(name, before[name]))


def test_identical_architectures_only() -> None:
    """Two of a kind are averaged together; the third, though it nests with them, is not."""
    models = {0: NESTED[0], 1: NESTED[1], 2: NESTED[0]}
    server = a_server(models, fedavg__aggregation="architecture")
    parts = {client: states_of(model, client) for client, model in models.items()}
    server.aggregate_in(
        1, (update(k, n, WeightsPayload(*parts[k])) for k, n in ((0, 1), (1, 9), (2, 3)))
    )
    for client, (weights, buffers) in parts.items():
        down = server.downlink_for(client, 2)
        if client == 1:
            expected = {**weights, **buffers}
        else:
            twins = {k: {**parts[k][0], **parts[k][1]} for k in (0, 2)}
            expected = brute_force(twins[0], twins, {0: 1, 2: 3})
        for name, item in {**down.weights, **down.buffers}.items():
            np.testing.assert_allclose(item, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    ("models", "layerwise"),
    [(("resnet10-w4", "resnet18-w4"), True), (("cnn1", "cnn2"), False)],
)
def test_auto_goes_by_layer_where_architectures_nest(
    models: tuple[str, ...], layerwise: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Heads have one shape under one name; one clash elsewhere keeps even those apart."""
    server = a_server(dict(enumerate(models)))
    assert server.state.layerwise is layerwise
    assert ("head.bias" in server.state.weights) is layerwise
    assert (f"{models[0]}/head.bias" in server.state.weights) is not layerwise
    how = "by layer" if layerwise else "within each architecture"
    assert f"weights are averaged {how}: " in capsys.readouterr().out


def test_a_clash_at_the_roll_call_names_entry_models_and_remedy() -> None:
    """CNN-1 and CNN-2 differ first in conv2; by layer they are refused, alone they are not."""
    with pytest.raises(RegistrationError) as error:
        a_server({0: "cnn1", 1: "cnn2"}, fedavg__aggregation="layerwise")
    text = str(error.value)
    assert "backbone." in text
    assert "cnn1" in text
    assert "cnn2" in text
    assert "resnet10 to resnet26" in text
    assert "fedavg.aggregation = 'architecture'" in text
    assert a_server({0: "cnn1", 1: "cnn2"}, fedavg__aggregation="architecture").state.weights


def test_a_late_joiner_brings_a_new_architecture() -> None:
    """The layers it shares are the means so far; the others are drawn from the run's seed."""
    late = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        server = a_server({0: NESTED[0]})
        weights, buffers = states_of(NESTED[0], 3)
        server.aggregate_in(1, iter([update(0, 5, WeightsPayload(weights, buffers))]))
        server.admit([card_of(1, NESTED[2])])
        down = server.downlink_for(1, 2)
        for name, item in weights.items():
            np.testing.assert_array_equal(down.weights[name], item)
        late.append(down.weights)
        assert set(down.weights) - set(weights)
        # From now on the new layers are part of the means.
        theirs = states_of(NESTED[2], 4)
        server.aggregate_in(2, iter([update(1, 5, WeightsPayload(*theirs))]))
        np.testing.assert_array_equal(
            server.state.weights["backbone.layer1.1.conv1.weight"].numpy(),
            theirs[0]["backbone.layer1.1.conv1.weight"],
        )
    for name, item in late[0].items():
        np.testing.assert_array_equal(item, late[1][name])


def test_a_late_joiner_that_clashes_is_refused() -> None:
    server = a_server({0: NESTED[0], 1: NESTED[1]})
    with pytest.raises(
        RegistrationError, match=r"backbone.* is .* so clients cannot be averaged by"
    ):
        server.admit([card_of(2, "resnet10")])
    assert set(server.clients) == {0, 1}


# Who measures a common test set -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "buffers", "expected"),
    [
        ("global", "average", {1, 2, 5}),
        ("global", "local", {1, 2, 3, 4, 5}),
        ("personal", "average", {1, 2, 3, 4, 5}),
    ],
)
def test_one_client_of_each_architecture_measures_a_common_test_set(
    split: str, buffers: str, expected: set[int]
) -> None:
    models = {1: NESTED[1], 2: NESTED[0], 3: NESTED[1], 4: NESTED[0], 5: NESTED[2]}
    server = a_server(models, test_split=split, fedavg__buffers=buffers)
    assert server.evaluates_test([5, 4, 3, 2, 1]) == expected
    if len(expected) == 3:
        assert server.evaluates_test([3, 4]) == {3, 4}


def test_owners_are_clients_with_examples() -> None:
    server = a_server({0: NESTED[0], 1: NESTED[2], 2: NESTED[2]})
    server.admit([dataclasses.replace(card_of(3, NESTED[2]), train_examples=0)])
    owners = server.owners()
    assert owners["head.bias"] == 3
    assert owners["backbone.layer1.1.conv1.weight"] == 2


# Buffers (U42) ----------------------------------------------------------------------------------


def test_averaged_buffers_are_the_mean_by_hand_and_counters_stay_integers() -> None:
    """Running statistics are weighted by n_k; the counter is the maximum, int64 both ways."""
    contexts = {0: a_context(8, batch_size=4), 1: a_context(16, batch_size=4)}
    server = server_for(contexts, "fedavg", feature_dim=8, batch_size=4, lr=0.05)
    updates = play(server, contexts, {}, 1, (0, 1))
    first, second = (updates[k].uplink.buffers for k in (0, 1))
    down = server.downlink_for(0, 2).buffers
    assert down.keys() == first.keys() == second.keys()
    assert any(name.endswith("running_var") for name in down)
    for name, item in down.items():
        if name.endswith("num_batches_tracked"):
            assert (first[name], second[name], item) == (2, 4, 4)
            assert first[name].dtype == item.dtype == np.int64
        else:
            assert not np.array_equal(first[name], second[name])
            expected = (8 * first[name].astype(float) + 16 * second[name]) / 24
            np.testing.assert_allclose(item, expected, rtol=1e-6, atol=1e-7)


def test_local_buffers_never_travel_and_a_download_leaves_them_alone() -> None:
    contexts = {0: a_context(8, batch_size=4), 1: a_context(16, batch_size=4)}
    config = {"feature_dim": 8, "batch_size": 4, "lr": 0.05, "fedavg__buffers": "local"}
    server = server_for(contexts, "fedavg", **config)
    states: dict[int, Any] = {}
    updates = play(server, contexts, states, 1, (0, 1))
    assert not any("running" in name for name in server.state.weights)
    for client, sent in updates.items():
        assert sent.uplink.buffers == {}
        own = {k: v.clone() for k, v in states[client].buffers.items()}
        assert own["backbone.bn1.num_batches_tracked"] == (2 if client == 0 else 4)
        context = dataclasses.replace(contexts[client], server_round=2, run=server.run)
        down = server.downlink_for(client, 2)
        assert down.buffers == {}
        server.method.client().receive(context, states[client], down)
        parameters, buffers = split_state(states[client].model)
        assert buffers.keys() == own.keys()
        for name, item in buffers.items():
            assert torch.equal(item, own[name]), name
        # The weights, though, are the new means and not the client's own.
        for name, item in parameters.items():
            np.testing.assert_array_equal(item.detach().numpy(), down.weights[name])
    left, right = (states[k].buffers["backbone.bn1.running_mean"] for k in (0, 1))
    assert not torch.equal(left, right)


def test_papers_count_parameters_only() -> None:
    server = a_server({0: NESTED[0]})
    down = server.downlink_for(0, 1)
    model = build_model(NESTED[0], SHAPE, 8)
    parameters = sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() for b in model.buffers())
    assert buffers > 0
    assert count_scalars(down) == (parameters, parameters + buffers)
