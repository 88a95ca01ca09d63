"""FedNova: unequal steps by hand and against NumPy, equal steps are FedAvg, momentum's weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.common.layerwise import WeightsPayload
from strategies.common.weights import mean_states
from strategies.fednova import Uplink, effort_of
from tests.unit.layerwise_support import (
    LR,
    NESTED,
    a_server,
    batches_of,
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


def uplink(seed: int, effort: float, model: str = NESTED[0]) -> Uplink:
    return Uplink(*states_of(model, seed), np.array([effort], np.float32))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 7, 60])
def test_effort_is_the_sum_of_the_weights_of_all_gradients(steps: int, momentum: float) -> None:
    """Brute force: gradient i is in steps i, i + 1, ... with 1, rho, rho^2, ...; and closed."""
    brute = sum(momentum ** (later - i) for i in range(steps) for later in range(i, steps))
    assert effort_of(steps, momentum) == pytest.approx(brute, rel=1e-12)
    rest = momentum * (1 - momentum**steps) / (1 - momentum)
    assert effort_of(steps, momentum) == pytest.approx((steps - rest) / (1 - momentum), rel=1e-9)


def test_effort_at_its_ends() -> None:
    assert effort_of(5, 0.0) == 5
    assert effort_of(4, 1.0) == 1 + 2 + 3 + 4


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_effort_is_how_far_torch_goes_with_a_constant_gradient(momentum: float) -> None:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
    for _ in range(7):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert -weight.item() / 0.1 == pytest.approx(effort_of(7, momentum))


@pytest.mark.parametrize("mean", ["weighted", "uniform"])
def test_equal_steps_are_fedavg(mean: str) -> None:
    """Over nested depths, to the last bits of float32."""
    models = dict(enumerate(NESTED))
    fednova = a_server(models, "fednova", fednova__mean=mean)
    fedavg = a_server(models, "fedavg", fedavg__mean=mean)
    sent = {k: uplink(k, 5, model) for k, model in models.items()}
    sizes = {0: 3, 1: 1, 2: 4}
    fednova.aggregate_in(1, (update(k, sizes[k], sent[k]) for k in sent))
    plain = {k: WeightsPayload(v.weights, v.buffers) for k, v in sent.items()}
    fedavg.aggregate_in(1, (update(k, sizes[k], plain[k]) for k in plain))
    for name, item in fedavg.state.weights.items():
        torch.testing.assert_close(fednova.state.weights[name], item, rtol=2.5e-7, atol=1e-7)


def test_unequal_steps_by_hand() -> None:
    """w = 1; client 0: n = 1, a = 2, w_k = 3; client 1: n = 3, a = 4, w_k = -7.

    p = (1/4, 3/4), sum p a = 3.5, sum p (w - w_k) / a = 1/4 (-2 / 2) + 3/4 (8 / 4) = 1.25, so
    w <- 1 - 3.5 * 1.25 = -3.375. The plain mean is -4.5.
    """
    server = a_server({0: NESTED[0], 1: NESTED[0]}, "fednova")
    server.state.weights["head.bias"].fill_(1.0)
    sent = [uplink(0, 2), uplink(1, 4)]
    for item, value in zip(sent, (3.0, -7.0), strict=True):
        item.weights["head.bias"][:] = value
    server.aggregate_in(1, (update(k, n, sent[k]) for k, n in ((0, 1), (1, 3))))
    np.testing.assert_allclose(server.state.weights["head.bias"].numpy(), -3.375, rtol=1e-6)


def test_every_entry_over_its_owners_against_brute_force() -> None:
    """The published formula as loops over clients, p_k rescaled over those that have the entry."""
    models, sizes, efforts = dict(enumerate(NESTED)), {0: 2, 1: 5, 2: 3}, {0: 1, 1: 6, 2: 9.5}
    server = a_server(models, "fednova")
    before = {k: v.clone().numpy().astype(float) for k, v in server.state.weights.items()}
    sent = {k: uplink(k, efforts[k], model) for k, model in models.items()}
    server.aggregate_in(1, (update(k, sizes[k], sent[k]) for k in sent))
    for name, item in server.state.weights.items():
        owners = [k for k in sent if name in sent[k].weights]
        total = sum(sizes[k] for k in owners)
        if owners:
            tau = sum(sizes[k] / total * efforts[k] for k in owners)
            steps = [
                sizes[k] / total * (before[name] - sent[k].weights[name]) / efforts[k]
                for k in owners
            ]
            expected = before[name] - tau * np.sum(steps, axis=0)
        else:
            pairs = [(sent[k].buffers, sizes[k]) for k in sent if name in sent[k].buffers]
            expected = mean_states(pairs)[name].numpy()
        np.testing.assert_allclose(item.numpy(), expected, rtol=2e-6, atol=2e-6, err_msg=name)
    assert server.state.weights["backbone.bn1.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_round_of_a_linear_model_against_numpy(momentum: float) -> None:
    """2 and 4 local steps: the whole round in float64, a_k by brute force."""
    contexts = linear_contexts(8, 14)
    server = linear_server(contexts, "fednova", momentum=momentum)
    w = joined(server.state.weights)
    sent = play(server, contexts, {}, 1, (0, 1))
    normalised, efforts, shares = [], [], (8 / 22, 14 / 22)
    for k in (0, 1):
        local, velocity = w.copy(), np.zeros_like(w)
        batches = batches_of(contexts[k], 1)
        for batch in batches:
            velocity = momentum * velocity + gradient(local, batch)
            local = local - LR * velocity
        s = len(batches)
        efforts.append(sum(momentum ** (j - i) for i in range(s) for j in range(i, s)))
        normalised.append((w - local) / efforts[k])
        assert sent[k].uplink.effort.tolist() == pytest.approx([efforts[k]])
    tau = sum(p * a for p, a in zip(shares, efforts, strict=True))
    expected = w - tau * sum(p * d for p, d in zip(shares, normalised, strict=True))
    np.testing.assert_allclose(joined(server.state.weights), expected, rtol=1e-5, atol=1e-6)
    plain = sum(p * joined(sent[k].uplink.weights) for k, p in enumerate(shares))
    assert np.abs(expected - plain).max() > 1e-4


def test_the_uplink_is_the_weights_and_one_number() -> None:
    contexts = {0: a_context(4)}
    server = server_for(contexts, "fednova", feature_dim=8)
    sent = play(server, contexts, {}, 1, [0])[0].uplink
    parameters = server.clients[0].parameters
    assert count_scalars(sent)[0] == parameters + 1
    assert count_scalars(server.downlink_for(0, 1))[0] == parameters


@pytest.mark.parametrize(
    ("effort", "message"),
    [
        (0.5, "effort: value 0.5 is below 1"),
        (3.01, "effort: 3.01 is above 3, that of the 3 local steps which 5 examples give"),
    ],
)
def test_an_effort_that_examples_do_not_allow_is_refused(effort: float, message: str) -> None:
    """It would scale everybody's update."""
    server = a_server({0: NESTED[0]}, "fednova", batch_size=2)
    templates = server.templates(server.clients[0])

    def receive(value: float) -> None:
        sent = unpack(Uplink, pack(uplink(0, value)), server.context.dims, templates)
        server.check_uplink(update(0, 5, sent))

    with pytest.raises(PayloadError, match=message):
        receive(effort)
    receive(3)


@pytest.mark.parametrize(
    "options", [{"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"}]
)
def test_adam_counts_steps_and_is_flagged(
    options: dict[str, Any],
) -> None:
    contexts = {0: dataclasses.replace(a_context(7), client_id=0)}
    config = {"feature_dim": 8, "batch_size": 4, "lr": 0.001, "local_epochs": 2, **options}
    server = server_for(contexts, "fednova", **config)
    adam = options["optimizer"] == "adam"
    said = "with optimizer = 'adam' updates are divided by" in " ".join(server.remarks)
    assert said is adam
    (sent,) = play(server, contexts, {}, 1, [0]).values()
    expected = effort_of(4, options.get("momentum", 0.0))
    assert sent.uplink.effort.tolist() == pytest.approx([expected])
