"""FedMRL: nesting and fusion by hand, what is sent, and its variants."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from data import ClientData, Split, normalise
from data.dataset import ImageDataset
from models import InputShape, count_parameters
from models.small import build_small_model
from strategies.base.client import ClientContext
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import count_scalars
from strategies.common.weights import state_arrays
from strategies.fedmrl import (
    METHOD,
    Client,
    ClientState,
    Config,
    Downlink,
    Uplink,
    exchanged,
    fused_features,
    small_logits,
)
from tests.support import ServerAtWork

CLASSES = 10


def options(**config: Any) -> dict[str, Any]:
    own = {f.name for f in dataclasses.fields(Config)}
    return {
        ("fedmrl." if key in own else "") + key.replace("_", "-"): value
        for key, value in {"method": "fedmrl", **config}.items()
    }


def a_context(examples: int = 12, **config: Any) -> ClientContext:
    generator = np.random.default_rng(5)
    dataset = ImageDataset(
        name="noise",
        images=generator.integers(0, 256, (examples, 3, 32, 32), dtype=np.uint8),
        labels=generator.integers(0, CLASSES, examples),
        train_size=examples,
        class_names=tuple("abcdefghij"),
        fingerprint="0",
    )
    spans = ((0, examples), (0, 0), (0, 0))
    return ClientContext(
        client_id=4,
        server_round=1,
        run=parse_run_config(options(**config)),
        data=ClientData(dataset, *(Split(dataset, np.arange(*span)) for span in spans)),
        model_name="cnn5",
        device=torch.device("cpu"),
    )


def a_state(context: ClientContext) -> ClientState:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Client().build(context)


def a_client_info(feature_dim: int = 500) -> ClientInfo:
    return ClientInfo(
        1, "cnn5", 1, 500, feature_dim, CLASSES, 3, 32, "x", [0], [9], 9, 0, 9, "cpu", "y"
    )


def a_server(**config: Any) -> ServerAtWork:
    server = ServerAtWork(parse_run_config(options(**config)))
    server.admit([a_client_info()])
    server.state = server.initial_state()
    return server


def an_update(client_id: int, examples: int, theta: dict[str, Any]) -> ClientUpdate:
    return ClientUpdate(client_id, examples, Uplink(theta), [], 0.0, 0, 0, "")


def trained(**config: Any) -> tuple[ClientState, ClientState, Uplink, dict[str, float]]:
    """Return a state before and after a round, the uplink and the metrics."""
    context = a_context(**config)
    before, after = a_state(context), a_state(context)
    uplink, metrics = Client().train(context, after, Downlink({}))
    return before, after, uplink, metrics


def changed(before: nn.Module, after: nn.Module) -> set[str]:
    other = after.state_dict()
    return {
        name for name, item in before.state_dict().items() if not torch.equal(item, other[name])
    }


# What is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "d1", "classes", "published"),
    [
        ("cnn5", 100, 10, 465_658),
        ("cnn5", 100, 100, 474_748),
        ("cnn1", 100, 10, 1_616_048 + 2001 * 100 + 10 * 101),
        ("cnn5", 16, 10, 414_548 + 501 * 16 + 10 * 17),
        ("fedavgcnn", 128, 100, 886_308),
    ],
)
def test_published_scalars(kind: str, d1: int, classes: int, published: int) -> None:
    """FedRE's table has 8863.08 thousand for ten clients, FedAvgCNN pooled to 128, C = 100."""
    small = build_small_model(kind, InputShape(3, 32, classes), d1)
    for payload in (Uplink, Downlink):
        sent = payload(state_arrays(exchanged(small, "own")))
        assert count_scalars(sent) == (published, published)
    for variant in ("tied", "none"):  # no separate global head
        headless = Uplink(state_arrays(exchanged(small, variant)))
        assert count_scalars(headless)[0] == published - classes * (d1 + 1)


def test_projector() -> None:
    state = a_state(a_context())
    assert state.model.feature_dim == 500  # the architecture's own, as in the paper
    assert count_parameters(state.projector) == 300_500
    assert state.projector.out_features == 500
    pooled = a_state(a_context(local_width="feature-dim", d1=128, small_model="fedavgcnn"))
    assert (pooled.projector.in_features, pooled.projector.out_features) == (640, 512)


# Fusion and nesting ---------------------------------------------------------------------------


def test_identity_projector_shows_the_small_head_the_small_models_features() -> None:
    """d1 = d2, P = [I 0]: order of concatenation and of the slice."""
    context = a_context(d1=500)
    state = a_state(context)
    with torch.no_grad():
        state.projector.weight.copy_(torch.eye(500, 1000))
        state.projector.bias.zero_()
    images = torch.randn(4, 3, 32, 32)
    small, large, fused = fused_features(state, images)
    torch.testing.assert_close(fused, small)
    assert not torch.allclose(fused, large)
    scores = Client().predict(state, Downlink({}), images)
    torch.testing.assert_close(scores["accuracy_mix_small"], state.small(images))
    torch.testing.assert_close(scores["accuracy_single_small"], state.small(images))


def test_four_models_by_hand() -> None:
    state = a_state(a_context())
    images = torch.randn(3, 3, 32, 32)
    small, large = state.small.features(images), state.model.features(images)
    fused = torch.cat([small, large], 1) @ state.projector.weight.T + state.projector.bias
    expected = {
        "accuracy": state.model.head(fused),
        "accuracy_mix_small": state.small.head(fused[:, :100]),
        "accuracy_single_small": state.small(images),
        "accuracy_single_large": state.model(images),
    }
    scores = Client().predict(state, Downlink({}), images)
    assert list(scores) == list(expected)  # the main one first
    for name, logits in expected.items():
        torch.testing.assert_close(scores[name], logits)


def test_each_extractor_runs_once_a_batch() -> None:
    context = a_context(batch_size=4)
    state = a_state(context)
    calls = {"small": 0, "model": 0}

    def counting(name: str) -> Any:
        def hook(*_: Any) -> None:
            calls[name] += 1

        return hook

    for name in calls:
        getattr(state, name).backbone.register_forward_hook(counting(name))
    Client().train(context, state, Downlink({}))
    assert calls == {"small": 3, "model": 3}


# Training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)])
def test_each_loss_alone_trains_all_extractors(weights: tuple[float, float]) -> None:
    small, large = weights
    before, after, _, metrics = trained(weight_small=small, weight_large=large, weight_decay=0.0)
    assert any(name.startswith("backbone.conv.0") for name in changed(before.small, after.small))
    assert any(name.startswith("backbone.conv.0") for name in changed(before.model, after.model))
    assert changed(before.projector, after.projector) == {"weight", "bias"}
    assert ("head.weight" in changed(before.small, after.small)) == (small > 0)
    assert ("head.weight" in changed(before.model, after.model)) == (large > 0)
    assert (metrics["loss_small"] > 0) == (small > 0)


def test_one_step_by_hand() -> None:
    """One SGD step on the sum of both losses, momentum and weight decay included."""
    context = a_context(weight_small=0.5, weight_large=2.0, lr=0.1)
    state, twin = a_state(context), a_state(context)
    Client().train(context, state, Downlink({}))
    split = context.data.train
    images, labels = next(iter(split.batches(len(split))))
    _, _, fused = fused_features(twin, normalise(images))
    loss = 0.5 * nn.functional.cross_entropy(twin.small.head(fused[:, :100]), labels)
    loss = loss + 2.0 * nn.functional.cross_entropy(twin.model.head(fused), labels)
    loss.backward()
    for mine, theirs in zip(
        [twin.model, twin.small, twin.projector],
        [state.model, state.small, state.projector],
        strict=True,
    ):
        for old, new in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert old.grad is not None
            step = old - 0.1 * (old.grad + 1e-3 * old)
            torch.testing.assert_close(new, step, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_per_module() -> None:
    """With a tiny limit every module moves by lr * limit exactly: no decay, one step."""
    before, after, _, _ = trained(clip_norm=1e-3, lr=1.0, momentum=0.0, weight_decay=0.0)
    for name in ("model", "small", "projector"):
        pairs = zip(
            getattr(before, name).parameters(), getattr(after, name).parameters(), strict=True
        )
        moved = torch.sqrt(sum(((a - b).double() ** 2).sum() for a, b in pairs))
        assert moved.item() == pytest.approx(1e-3, rel=0.01)


def test_the_papers_local_defaults() -> None:
    config = a_context().config
    assert (config.d1, config.clip_norm, config.weight_small, config.weight_large) == (
        100,
        50,
        1,
        1,
    )
    local = METHOD.training
    assert (local.optimizer, local.lr, local.momentum, local.weight_decay) == (
        "sgd", 0.01, 0.9, 1e-3,
    )  # fmt: skip


# Variants -------------------------------------------------------------------------------------


def test_without_mrl_trains_the_small_extractor_and_not_its_head() -> None:
    before, after, uplink, metrics = trained(without_mrl=True)
    names = changed(before.small, after.small)
    assert names == {n for n in before.small.state_dict() if not n.startswith("head.")}
    assert set(uplink.theta) == names
    assert "loss_small" not in metrics
    scores = Client().predict(after, Downlink({}), torch.randn(2, 3, 32, 32))
    assert list(scores) == ["accuracy", "accuracy_single_large"]


def test_tied_heads_are_a_slice_of_the_large_one() -> None:
    before, after, uplink, metrics = trained(tie_heads=True)
    assert {"loss_small", "loss_large"} <= set(metrics)
    assert not [name for name in uplink.theta if name.startswith("head.")]
    assert not [n for n in changed(before.small, after.small) if n.startswith("head.")]
    head, features = after.model.head, torch.randn(2, 100)
    expected = features @ head.weight[:, :100].T + head.bias
    torch.testing.assert_close(small_logits(after, features), expected)


def test_tied_heads_take_both_losses_gradients() -> None:
    before, after, _, _ = trained(tie_heads=True, weight_large=0.0, weight_decay=0.0)
    moved = (before.model.head.weight - after.model.head.weight).abs().sum(dim=0) > 0
    assert moved[:100].any()
    assert not moved[100:].any()


def test_both_variants_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fedmrl\.tie-heads = True: expected false"):
        parse_run_config(options(tie_heads=True, without_mrl=True))


# Server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "share"), [("weighted", 0.75), ("uniform", 0.5)])
def test_mean_of_two_clients_is_neither(mean: str, share: float) -> None:
    """The released code's average is the last client's model."""
    server = a_server(mean=mean, d1=16)
    first = state_arrays(build_small_model("cnn5", InputShape(3, 32, CLASSES), 16).state_dict())
    second = state_arrays(build_small_model("cnn5", InputShape(3, 32, CLASSES), 16).state_dict())
    server.aggregate_in(1, iter([an_update(0, 1, first), an_update(1, 3, second)]))
    for name, item in server.state.theta.items():
        expected = (1 - share) * first[name] + share * second[name]
        np.testing.assert_allclose(item.numpy(), expected, rtol=1e-5, atol=1e-8)
        assert not np.array_equal(item.numpy(), first[name])
        assert not np.array_equal(item.numpy(), second[name])


def test_first_small_model_depends_on_the_seed_alone() -> None:
    first, again, other = a_server(), a_server(), a_server(seed=1)
    for name, item in first.state.theta.items():
        assert torch.equal(item, again.state.theta[name])
    assert not torch.equal(first.state.theta["head.weight"], other.state.theta["head.weight"])


def test_training_on_does_not_change_an_uplink() -> None:
    context = a_context()
    state = a_state(context)
    uplink, _ = Client().train(context, state, Downlink({}))
    kept = {name: item.copy() for name, item in uplink.theta.items()}
    Client().train(context, state, Downlink({}))
    for name, item in kept.items():
        np.testing.assert_array_equal(uplink.theta[name], item)


def test_d1_may_equal_d2() -> None:
    assert a_server(d1=500).check(a_client_info(500)) is None
    assert "client 1" in (a_server(d1=500).check(a_client_info(499)) or "")
