"""SCAFFOLD: two clients of a linear model against NumPy, what c is the mean of, what stays home."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from strategies.base.payload import count_scalars
from strategies.common.weights import RunningMean
from strategies.scaffold import Correction, Uplink
from tests.support import run_federation
from tests.unit.layerwise_support import (
    LINEAR,
    LR,
    NESTED,
    a_server,
    batches_of,
    card_of,
    gradient,
    joined,
    linear_contexts,
    linear_server,
    play,
    server_for,
    states_of,
    update,
)
from tests.unit.test_training import a_context


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_two_clients_of_a_linear_model_against_numpy(server_lr: float) -> None:
    """Three rounds of the published formulas in float64; the second one has one client only."""
    contexts = linear_contexts(8, 14)
    server = linear_server(contexts, scaffold__server_lr=server_lr)
    states: dict[int, Any] = {}
    w = joined(server.state.weights)
    c, own = np.zeros((3, 17)), [np.zeros((3, 17)), np.zeros((3, 17))]
    for number, participants in ((1, [0, 1]), (2, [1]), (3, [0, 1])):
        play(server, contexts, states, number, participants)
        moves, drifts = [], []
        for k in participants:
            local, batches = w.copy(), batches_of(contexts[k], number)
            assert len(batches) == (2, 4)[k]
            for batch in batches:
                local = local - LR * (gradient(local, batch) - own[k] + c)
            new = own[k] - c + (w - local) / (len(batches) * LR)
            moves.append(local - w)
            drifts.append(new - own[k])
            own[k] = new
        w = w + server_lr * np.mean(moves, axis=0)
        c = c + len(participants) / 2 * np.mean(drifts, axis=0)
        np.testing.assert_allclose(joined(server.state.weights), w, rtol=1e-5, atol=1e-6)
        found = server.downlink_for(0, number + 1)
        np.testing.assert_allclose(joined(found.controls), c, rtol=1e-5, atol=2e-5)
        for k, state in states.items():
            np.testing.assert_allclose(joined(state.controls), own[k], rtol=1e-5, atol=2e-5)
    assert np.abs(c).max() > 0.01


def test_with_zero_controls_a_round_is_fedavg_with_equal_weights() -> None:
    """Clients train the same weights bit for bit; the means agree to the last bit of float32.

    FedAvg averages w_k, SCAFFOLD adds the mean of w_k - w: they round differently, by at most
    7.5e-8 of a tensor's largest entry, in 0.4 % of the entries.
    """
    config = {"feature_dim": 8, "batch_size": 4, "lr": LR}
    contexts = {k: dataclasses.replace(a_context(n), client_id=k) for k, n in enumerate((6, 11))}
    scaffold = server_for(contexts, "scaffold", **config)
    fedavg = server_for(contexts, "fedavg", fedavg__mean="uniform", **config)
    start = {name: item.clone() for name, item in scaffold.state.weights.items()}
    for name, item in start.items():
        assert torch.equal(item, fedavg.state.weights[name])
    sent = [play(server, contexts, {}, 1, (0, 1)) for server in (scaffold, fedavg)]
    for k in (0, 1):
        for name, item in sent[1][k].uplink.weights.items():
            np.testing.assert_array_equal(
                sent[0][k].uplink.weights[name], item - start[name].numpy()
            )
    for name, item in fedavg.state.weights.items():
        found = scaffold.state.weights[name]
        assert found.dtype == item.dtype
        if name in sent[0][0].uplink.weights:
            assert not torch.equal(item, start[name])
            assert (found - item).abs().max() <= 1.2e-7 * item.abs().max()
        else:
            assert torch.equal(found, item)


def test_c_is_the_mean_of_all_controls() -> None:
    """With everyone in every round, over three nested depths: of an entry, over its owners."""
    config = {"feature_dim": 8, "batch_size": 4, "lr": LR}
    contexts = {
        k: dataclasses.replace(a_context(5 + 3 * k), client_id=k, model_name=model)
        for k, model in enumerate(NESTED)
    }
    server = server_for(contexts, "scaffold", **config)
    states: dict[int, Any] = {}
    for number in (1, 2):
        play(server, contexts, states, number, contexts)
        down = server.downlink_for(2, number + 1).controls
        counts = set()
        for name, item in down.items():
            owned = [s.controls[name] for s in states.values() if name in s.controls]
            counts.add(len(owned))
            expected = torch.stack(owned).double().mean(0).numpy()
            np.testing.assert_allclose(item, expected, rtol=1e-4, atol=1e-5, err_msg=name)
        assert counts == {1, 2, 3}
        assert any(np.abs(item).max() > 1e-3 for item in down.values())


def test_sums_of_two_clients_by_hand() -> None:
    """c <- c + (|P_t| / K) mean(delta c): K = 3, two answer; then K = 4, exact for what joined."""
    server = a_server(dict.fromkeys(range(3), NESTED[0]), "scaffold")
    weights, buffers = states_of(NESTED[0], 0)
    ones = {name: np.ones_like(item) for name, item in weights.items()}
    start = server.state.weights["head.bias"].clone()
    uplinks = [
        Uplink({n: v * move for n, v in ones.items()}, buffers, {n: v * c for n, v in ones.items()})
        for move, c in ((1.0, 6.0), (2.0, 3.0))
    ]
    server.aggregate_in(1, (update(k, 1 + k, uplink) for k, uplink in enumerate(uplinks)))
    torch.testing.assert_close(server.state.weights["head.bias"], start + 1.5)
    bias = server.downlink_for(0, 2).controls["head.bias"]
    np.testing.assert_allclose(bias, 2 / 3 * 4.5)
    server.admit([card_of(3, NESTED[1])])
    down = server.downlink_for(3, 2).controls
    np.testing.assert_allclose(down["head.bias"], 9 / 4)
    assert not down["backbone.layer3.1.conv1.weight"].any()


def test_mean_of_changes_may_be_weighted_that_of_controls_is_not() -> None:
    server = a_server({0: NESTED[0], 1: NESTED[0]}, "scaffold", scaffold__mean="weighted")
    weights, buffers = states_of(NESTED[0], 0)
    start = server.state.weights["head.bias"].clone()
    fill = {k: {n: np.full_like(v, k) for n, v in weights.items()} for k in (0, 1)}
    server.aggregate_in(
        1, (update(k, 1 + 2 * k, Uplink(fill[k], buffers, fill[k])) for k in (0, 1))
    )
    torch.testing.assert_close(server.state.weights["head.bias"], start + 0.75)
    down = server.downlink_for(0, 2).controls["head.bias"]
    np.testing.assert_allclose(down, 0.5)


def test_a_client_never_seen_has_zero_controls() -> None:
    """Its step is w - eta (grad + c), its first control -c + (w_ref - w) / (S eta) = grad."""
    contexts = linear_contexts(8, 4)
    server = linear_server(contexts)
    states: dict[int, Any] = {}
    play(server, contexts, states, 1, [0])
    half = server.method.client()
    assert half.build(contexts[1]).controls == {}
    w, down = joined(server.state.weights), server.downlink_for(1, 2)
    c = joined(down.controls)
    assert np.abs(c).max() > 0.01
    play(server, contexts, states, 2, [1])
    (batch,) = batches_of(contexts[1], 2)
    first = gradient(w, batch)
    np.testing.assert_allclose(joined(server.state.weights), w - LR * (first + c), atol=1e-6)
    np.testing.assert_allclose(joined(states[1].controls), first, atol=2e-5)


def test_the_correction_moves_weights_and_counts() -> None:
    layer = nn.Linear(2, 1)
    before = layer.bias.item()
    layer.weight.data = torch.tensor([[1.0, 2.0]])
    common = {"weight": np.array([[10.0, 0.0]], np.float32), "bias": np.zeros(1, np.float32)}
    hook = Correction(layer, common, {"weight": torch.tensor([[4.0, 1.0]])}, 0.5)
    assert hook() == hook() == {}
    assert layer.weight.tolist() == [[1 - 2 * 0.5 * 6, 2 + 2 * 0.5 * 1]]
    assert layer.bias.item() == before
    assert hook.steps == 2


def test_scalars_are_twice_the_parameters_both_ways() -> None:
    contexts = {0: a_context(4)}
    server = server_for(contexts, "scaffold", feature_dim=8)
    down = server.downlink_for(0, 1)
    sent = play(server, contexts, {}, 1, [0])[0].uplink
    parameters = server.clients[0].parameters
    buffers = sum(item.size for item in down.buffers.values())
    for payload in (down, sent):
        assert count_scalars(payload) == (2 * parameters, 2 * parameters + buffers)


def test_no_controls_of_buffers_which_are_averaged() -> None:
    contexts = {k: dataclasses.replace(a_context(n), client_id=k) for k, n in ((0, 4), (1, 9))}
    server = server_for(contexts, "scaffold", feature_dim=8, batch_size=4)
    states: dict[int, Any] = {}
    sent = play(server, contexts, states, 1, (0, 1))
    assert not any("running" in name for name in states[0].controls)
    mean = RunningMean()
    for reply in sent.values():
        mean.add(reply.uplink.buffers, 1)
    for name, item in mean.means().items():
        assert torch.equal(server.state.weights[name], item), name


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({}, None),
        ({"optimizer": "adam"}, "with optimizer = 'adam'"),
        ({"momentum": 0.9}, "with momentum = 0.9"),
    ],
)
def test_other_optimisers_are_flagged_at_the_start(
    options: dict[str, Any], warning: str | None
) -> None:
    text = " ".join(a_server({0: NESTED[0]}, "scaffold", **options).remarks)
    assert ("scaffold is defined for plain SGD" in text) is (warning is not None)
    assert (warning or "") in text


def test_with_momentum_controls_are_means_of_steps() -> None:
    """One client alone: c_k^+ = (w_ref - w) / (S eta), whatever the optimiser."""
    contexts = linear_contexts(12)
    server = linear_server(contexts, momentum=0.9)
    states: dict[int, Any] = {}
    before = joined(server.state.weights)
    play(server, contexts, states, 1, [0])
    moved = before - joined(server.state.weights)
    np.testing.assert_allclose(joined(states[0].controls), moved / (3 * LR), rtol=1e-4, atol=1e-5)
    plain = linear_server(contexts)
    play(plain, contexts, {}, 1, [0])
    assert np.abs(moved).sum() > 1.3 * np.abs(before - joined(plain.state.weights)).sum()


def test_controls_of_who_is_not_sampled_are_untouched(tmp_path: Path) -> None:
    """Byte for byte: a client has one file for every round it trained in, and none changes."""
    settings = {"method": "scaffold", "sample_fraction": 0.5, "keep_checkpoints": 9}
    digests: list[dict[str, str]] = []
    for rounds in (1, 3):
        resume = {"resume": "run"} if rounds == 3 else {}
        run = run_federation(
            tmp_path, 4, models=LINEAR, subset=0.1, num_rounds=rounds, **settings, **resume
        )
        files = sorted((run.path / "clients").rglob("*.safetensors"))
        digests.append(
            {
                str(f.relative_to(run.path)): hashlib.sha256(f.read_bytes()).hexdigest()
                for f in files
            }
        )
    sampled = {
        f"clients/client-{int(row['client']):05d}/round-{int(row['round']):05d}.safetensors"
        for row in run.metrics(phase="train", metric="loss")
    }
    assert digests[0].items() < digests[1].items()
    assert set(digests[1]) == sampled
    assert len(sampled) == 6
