"""FedIN's local training: gradients by a solver and by autograd, anchors, BatchNorm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from strategies.base.client import ClientContext
from strategies.base.method import get_method
from strategies.common.layerwise import WeightsPayload, split_state
from strategies.common.training import device_batches
from strategies.common.weights import state_arrays
from strategies.fedin.features import own_statistics
from strategies.fedin.fedin import Client, ClientState, Downlink, Uplink, alleviate
from tests.unit.test_training import a_context

MAPS, WIDTH = (16, 4, 4), 8  # resnet10-w4 on 16x16 images, feature-dim = 8


def context_of(examples: int = 12, *, server_round: int = 2, **config: Any) -> ClientContext:
    """One epoch of one batch, unless told otherwise."""
    keys = {k.replace("__", "."): v for k, v in {"batch_size": examples, **config}.items()}
    return a_context(examples, server_round=server_round, method="fedin", **keys)


def model_of(context: ClientContext, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return context.build_model()


def some_pairs(count: int, seed: int = 1) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {
        "s_in": generator.random((count, *MAPS), dtype=np.float32),
        "s_out": generator.random((count, WIDTH), dtype=np.float32),
    }


def a_downlink(context: ClientContext, pairs: int = 0, seed: int = 0) -> Downlink:
    weights, buffers = map(state_arrays, split_state(model_of(context, seed)))
    return Downlink(weights, buffers, **some_pairs(pairs))


def trained(
    context: ClientContext, downlink: Downlink, state: ClientState | None = None
) -> tuple[Uplink, dict[str, float], ClientState]:
    half = Client()
    state = half.build(context) if state is None else state
    half.receive(context, state, downlink)
    uplink, metrics = half.train(context, state, downlink)
    return uplink, metrics, state


def copy_of(uplink: WeightsPayload, context: ClientContext) -> Any:
    """Return a model with the weights of a payload, in evaluation mode."""
    model = model_of(context)
    entries = {**uplink.weights, **uplink.buffers}
    model.load_state_dict({name: torch.tensor(item) for name, item in entries.items()})
    return model.eval()


# Gradient alleviation -----------------------------------------------------------------------------


def random_gradients(seed: int, scale: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 2), (4,), (2, 2, 2)]
    local = [torch.randn(shape, generator=generator) for shape in shapes]
    foreign = [scale * torch.randn(shape, generator=generator) for shape in shapes]
    return local, foreign


def solve(g_in: np.ndarray, g_local: np.ndarray) -> np.ndarray:
    """Return argmin ||g_in - z||^2 subject to <z, g_local> >= 0, by a generic solver."""
    found = minimize(
        lambda z: float(np.sum((g_in - z) ** 2)), np.zeros_like(g_in), method="SLSQP",
        jac=lambda z: 2 * (z - g_in), options={"ftol": 1e-10, "maxiter": 500},
        constraints={"type": "ineq", "fun": lambda z: z @ g_local, "jac": lambda z: g_local},
    )  # fmt: skip
    assert found.success
    return np.asarray(found.x)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("scope", ["tensor", "body"])
def test_exact_is_the_solution_of_the_quadratic_programme(scope: str, seed: int) -> None:
    local, foreign = random_gradients(seed, scale=1 + seed)
    z, active = alleviate(local, foreign, "exact", scope)
    if scope == "body":
        local, foreign, z = ([torch.cat([i.flatten() for i in x])] for x in (local, foreign, z))
    conflicts = []
    for g_local, g_in, got in zip(local, foreign, z, strict=True):
        a, b = g_local.double().flatten().numpy(), g_in.double().flatten().numpy()
        np.testing.assert_allclose(got.flatten().numpy(), solve(b, a), atol=1e-4)
        inner = float((got * g_local).sum())
        assert inner >= -1e-5
        conflicts.append(a @ b < 0)
        if conflicts[-1]:
            assert inner == pytest.approx(0, abs=1e-5)
        else:
            assert torch.equal(got, g_in)
    assert active.item() == pytest.approx(np.mean(conflicts))


def test_exact_by_hand() -> None:
    """G_local = (1, 0), G_IN = (-2, 3): the part against it goes, (0, 3) is left."""
    z, active = alleviate([torch.tensor([1.0, 0.0])], [torch.tensor([-2.0, 3.0])], "exact")
    assert z[0].tolist() == [0.0, 3.0]
    assert active.item() == 1


def test_scopes_differ_where_one_tensor_disagrees_and_the_body_does_not() -> None:
    local = [torch.tensor([1.0]), torch.tensor([1.0])]
    foreign = [torch.tensor([-1.0]), torch.tensor([5.0])]
    by_tensor, share = alleviate(local, foreign, "exact", "tensor")
    assert [z.item() for z in by_tensor] == [0.0, 5.0]
    assert share.item() == 0.5
    whole, share = alleviate(local, foreign, "exact", "body")
    assert [z.item() for z in whole] == [-1.0, 5.0]
    assert share.item() == 0.0


def test_exact_leaves_a_vanishing_local_gradient_alone() -> None:
    local, foreign = [torch.full((2,), 1e-7)], [torch.full((2,), -3.0)]  # a = 2e-14
    z, _ = alleviate(local, foreign, "exact")
    assert torch.equal(z[0], foreign[0])


@pytest.mark.parametrize(("rule", "factor"), [("simplified", 0.5), ("sum", 1.0)])
def test_simplified_and_sum(rule: str, factor: float) -> None:
    local, foreign = random_gradients(3)
    kept = [item.clone() for item in local + foreign]
    z, _ = alleviate(local, foreign, rule)
    for got, g_local, g_in in zip(z, local, foreign, strict=True):
        torch.testing.assert_close(got, g_in + factor * g_local)
    assert all(torch.equal(a, b) for a, b in zip(local + foreign, kept, strict=True))


# A step of training -------------------------------------------------------------------------------


def gradients_by_autograd(
    model: Any, images: Tensor, labels: Tensor, reference: list[Tensor], mu: float
) -> dict[str, Tensor]:
    """The gradient of CE + mu/2 ||w - w_ref||^2, all of it in the graph."""
    squares = [(p - r).square().sum() for p, r in zip(model.parameters(), reference, strict=True)]
    loss = F.cross_entropy(model(images), labels) + mu / 2 * torch.stack(squares).sum()
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip((n for n, _ in model.named_parameters()), found, strict=True))


@pytest.mark.parametrize("rule", ["simplified", "exact", "sum", "none"])
@pytest.mark.parametrize("anchor", ["received", "own"])
def test_one_step_equals_autograd(rule: str, anchor: str) -> None:
    """SGD on one batch: every weight against w - lr Z (body) or w - lr G_local (stem, head)."""
    keys = {"fedin__alleviation": rule, "fedin__anchor": anchor, "fedin__mu": 3.0}
    context = context_of(12, lr=0.02, **keys)
    downlink = a_downlink(context, pairs=6)
    state = Client().build(context)
    brute = model_of(context).train()
    reference = [p.detach().clone() for p in brute.parameters()]
    if anchor == "own":
        names = [name for name, _ in brute.named_parameters()]
        state.anchor = {n: r + 0.1 for n, r in zip(names, reference, strict=True)}
        reference = list(state.anchor.values())
    uplink, metrics, state = trained(context, downlink, state)

    images, labels = next(
        device_batches(context, context.data.train, 12, context.generator("batches"))
    )
    before = {name: p.detach().clone() for name, p in brute.named_parameters()}
    local = gradients_by_autograd(brute, images, labels, reference, 3.0)
    pairs = [torch.tensor(downlink.s_in), torch.tensor(downlink.s_out)]
    loss_in = F.mse_loss(brute.body(pairs[0]), pairs[1])
    loss_in.backward()
    body = [n for n in before if n.startswith("backbone.layer")]
    assert body == [n for n, p in brute.named_parameters() if p.grad is not None]
    z = dict(local)
    if rule != "none":
        foreign = [brute.get_parameter(name).grad for name in body]
        mixed, _ = alleviate([local[n] for n in body], foreign, rule)
        z |= dict(zip(body, mixed, strict=True))
        assert metrics["loss_in"] == pytest.approx(loss_in.item(), rel=1e-4)
        assert 0 <= metrics["constraint_active"] <= 1
    else:
        assert "loss_in" not in metrics
    for name, start in before.items():
        torch.testing.assert_close(
            torch.tensor(uplink.weights[name]), start - 0.02 * z[name], rtol=1e-4, atol=2e-6
        )
    squares = [(b - r).square().sum() for b, r in zip(before.values(), reference, strict=True)]
    assert metrics["loss_prox"] == pytest.approx(1.5 * torch.stack(squares).sum().item(), rel=1e-4)
    assert metrics["loss"] == metrics["loss_ce"]
    kept = {n: torch.tensor(item) for n, item in uplink.weights.items()} if anchor == "own" else {}
    assert state.anchor.keys() == kept.keys()
    assert all(torch.equal(state.anchor[name], item) for name, item in kept.items())


def test_the_own_anchor_is_the_received_one_at_first() -> None:
    results = []
    for anchor in ("received", "own"):
        context = context_of(12, batch_size=4, fedin__anchor=anchor, fedin__mu=2.0)
        results.append(trained(context, a_downlink(context, 5))[0])
    for name, item in results[0].weights.items():
        assert np.array_equal(item, results[1].weights[name]), name


@pytest.mark.parametrize(("mu", "other"), [(0.0, "fedavg"), (0.1, "fedprox")])
def test_without_features_it_is_fedavg_or_fedprox_bit_for_bit(mu: float, other: str) -> None:
    """Round 1, in which there are none, and the ablation w/o IN."""
    method = get_method(other)
    context = context_of(12, batch_size=4, fedin__mu=mu)
    downlink = a_downlink(context)
    assert len(downlink.s_in) == 0
    first, metrics, _ = trained(context, downlink)
    without = context_of(12, batch_size=4, fedin__mu=mu, fedin__alleviation="none")
    second, _, _ = trained(without, downlink)
    theirs = a_context(12, server_round=2, method=other, batch_size=4)
    half: Any = method.client()
    state = half.build(theirs)
    received = method.downlink(downlink.weights, downlink.buffers)
    half.receive(theirs, state, received)
    expected, _ = half.train(theirs, state, received)
    for field in ("weights", "buffers"):
        for name, item in getattr(expected, field).items():
            assert np.array_equal(getattr(first, field)[name], item), name
            assert np.array_equal(getattr(second, field)[name], item), name
    assert "loss_in" not in metrics
    assert (len(first.s_in), len(second.s_in)) == (12, 0)
    assert second.s_in.shape == (0, *MAPS)


# BatchNorm ----------------------------------------------------------------------------------------


def test_others_features_do_not_reach_the_running_statistics() -> None:
    """One step, so that the statistics are those of the first forward pass alone."""
    context = context_of(12)
    downlink = a_downlink(context, pairs=16)
    downlink.s_in = downlink.s_in * 1000
    plain, _, _ = trained(context, a_downlink(context))
    mixed, _, _ = trained(context, downlink)
    assert any("running_mean" in name for name in plain.buffers)
    for name, item in plain.buffers.items():
        assert np.array_equal(mixed.buffers[name], item), name
    assert mixed.buffers["backbone.bn1.num_batches_tracked"] == 1
    assert not np.array_equal(
        mixed.weights["backbone.layer1.0.conv1.weight"],
        plain.weights["backbone.layer1.0.conv1.weight"],
    )


def test_a_pass_normalises_by_its_own_batch_or_one_pair_by_the_running_statistics() -> None:
    norm = nn.BatchNorm2d(2)
    norm.running_mean, norm.running_var = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 9.0])
    x = torch.randn(3, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    for training in (True, False):
        norm.train(training)
        with own_statistics([norm], 3):
            batch = norm(x)
        with own_statistics([norm], 1):
            single = norm(x[:1])
        spread = x.var((0, 2, 3), keepdim=True, correction=0) + norm.eps
        expected = (x - x.mean((0, 2, 3), keepdim=True)) / spread.sqrt()
        torch.testing.assert_close(batch, expected)
        running = torch.tensor([1.0, 2.0])[:, None, None], torch.tensor([4.0, 9.0])[:, None, None]
        torch.testing.assert_close(single, (x[:1] - running[0]) / (running[1] + norm.eps).sqrt())
        assert norm.training is training
        assert norm.track_running_stats
        assert norm.running_mean.tolist() == [1.0, 2.0]
        assert norm.num_batches_tracked == 0


def test_one_received_pair_and_one_own_example_train() -> None:
    context = context_of(1)
    uplink, metrics, _ = trained(context, a_downlink(context, pairs=1))
    assert np.isfinite(metrics["loss_in"])
    assert len(uplink.s_in) == 1
    for name, item in a_downlink(context).buffers.items():
        assert np.array_equal(uplink.buffers[name], item), name
