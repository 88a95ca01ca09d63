"""FedIN's features: what is captured, noised and sent, in which shape."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data import normalise
from models import InputShape, SplitModel, build_model, count_parameters
from strategies.base.client import ClientContext
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.common.layerwise import split_state
from strategies.common.training import device_batches
from strategies.common.weights import state_arrays
from strategies.fedin.features import FeatureShape, Noise, feature_shape
from strategies.fedin.fedin import Client, Downlink, LocalTraining, Uplink
from tests.unit.test_fedin import MAPS, WIDTH, a_downlink, context_of, copy_of, model_of, trained

# Capture and payload ------------------------------------------------------------------------------


def test_captured_pairs_are_of_own_examples_through_the_sent_model() -> None:
    """Evaluation mode: the statistics are those sent. Pairs are a random subset in random order."""
    context = context_of(20, batch_size=10)
    uplink, _, _ = trained(context, a_downlink(context, pairs=3))
    model = copy_of(uplink, context)
    images = normalise(context.data.train.batch(range(20))[0])
    with torch.no_grad():
        maps, features = model.stem(images), model.body(model.stem(images))
    found = []
    for s_in, s_out in zip(uplink.s_in, uplink.s_out, strict=True):
        distance = (maps - torch.tensor(s_in)).abs().amax((1, 2, 3))
        found.append(int(distance.argmin()))
        assert distance.min() < 1e-5
        torch.testing.assert_close(torch.tensor(s_out), features[found[-1]], rtol=1e-4, atol=1e-5)
    assert len(set(found)) == 16
    assert found != sorted(found)
    later = dataclasses.replace(context, server_round=3)
    other = trained(later, a_downlink(context, pairs=3))[0]
    assert {float(s.sum()) for s in other.s_in} != {float(s.sum()) for s in uplink.s_in}


@pytest.mark.parametrize(("examples", "pairs"), [(5, 5), (1, 1), (40, 16)])
def test_a_client_with_few_examples_sends_what_it_has(examples: int, pairs: int) -> None:
    uplink, _, _ = trained(context_of(examples), a_downlink(context_of(examples)))
    assert uplink.s_in.shape == (pairs, *MAPS)
    assert uplink.s_out.shape == (pairs, WIDTH)


@pytest.mark.parametrize(
    ("images", "parameters", "features"),
    [(InputShape(3, 32, 10), 4_910_922, 73_728), (InputShape(1, 28, 10), 4_904_650, 58_368)],
)
def test_scalars_of_the_real_payload(images: InputShape, parameters: int, features: int) -> None:
    """ResNet10, batch 16, d = 512: what `train` returns, packed and read back."""
    context = context_of_shape(images)
    model = build_model("resnet10", images, 512, seed=0)
    weights, buffers = map(state_arrays, split_state(model))
    shape = feature_shape(model, images)
    empty = [item.numpy() for item in shape.no_pairs()]
    uplink, _, _ = trained(context, Downlink(weights, buffers, *empty))
    layout = Client().templates(context)
    again = unpack(Uplink, pack(uplink), {"d": 512, "C": 10}, layout)
    paper, wire = count_scalars(again)
    assert again.s_in.size + again.s_out.size == features
    assert paper == parameters + features == count_parameters(model) + features
    assert wire == paper + sum(item.size for item in buffers.values())


def context_of_shape(images: InputShape) -> ClientContext:
    """16 random images of a shape and ResNet10, one step."""
    base = context_of(16)
    generator = np.random.default_rng(0)
    size = (16, images.channels, images.image_size, images.image_size)
    dataset = dataclasses.replace(
        base.data.dataset,
        images=generator.integers(0, 256, size, dtype=np.uint8),
        labels=generator.integers(0, images.num_classes, 16),
        train_size=16,
        class_names=tuple("abcdefghij"),
    )
    train = dataclasses.replace(base.data.train, dataset=dataset)
    data = dataclasses.replace(base.data, dataset=dataset, train=train)
    run = parse_run_config({"method": "fedin", "batch-size": 16})
    return dataclasses.replace(base, data=data, run=run, model_name="resnet10")


def test_feature_batches_take_turns() -> None:
    """Three batches of two pairs over six steps: each is used twice, in order."""
    keys = {"fedin__feature_batches": 3, "fedin__feature_batch_size": 2}
    context = context_of(12, batch_size=2, **keys)
    downlink = a_downlink(context, pairs=6)
    state = Client().build(context)
    Client().receive(context, state, downlink)
    work = LocalTraining(context, state, downlink)
    seen: list[float] = []
    body = state.model.body
    state.model.body = lambda s: (seen.append(float(s.flatten()[0])), body(s))[1]  # type: ignore
    for parameter in state.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(6):
        work.gradient()
    firsts = [float(downlink.s_in[i].flat[0]) for i in (0, 2, 4)]
    assert seen == firsts * 2


# Noise --------------------------------------------------------------------------------------------


def test_noise_by_hand() -> None:
    """sigma of a tensor, and of each channel or feature, by NumPy; no gradient through it."""
    generator = np.random.default_rng(0)
    arrays = {
        "maps": generator.normal(2, 3, (5, 2, 4, 4)) * np.array([1, 10])[None, :, None, None],
        "features": generator.normal(1, 2, (5, 3)) * np.array([1, 10, 100]),
    }
    for array in arrays.values():
        x = torch.tensor(array, dtype=torch.float32, requires_grad=True)
        z = torch.randn(x.shape, generator=torch.Generator().manual_seed(7)).numpy()
        others = tuple(d for d in range(array.ndim) if d != 1)
        for sigma, spread in (
            ("tensor", array.std()), ("channel", array.std(axis=others, keepdims=True))
        ):  # fmt: skip
            noised = Noise(0.8, sigma, torch.Generator().manual_seed(7))(x)
            np.testing.assert_allclose(noised.detach(), array + 0.8 * spread * z, rtol=1e-4)
            (gradient,) = torch.autograd.grad(noised.sum(), x)
            assert torch.equal(gradient, torch.ones_like(x))
    assert Noise(0.0, "tensor", torch.Generator())(x) is x


def test_noise_on_the_sent_copy_alone_changes_no_weight() -> None:
    context = context_of(16, batch_size=8, fedin__noise=0.5, fedin__noise_place="upload")
    quiet = context_of(16, batch_size=8)
    downlink = a_downlink(context, pairs=4)
    noised, _, _ = trained(context, downlink)
    clean, _, _ = trained(quiet, downlink)
    for name, item in clean.weights.items():
        assert np.array_equal(noised.weights[name], item), name
    for field in ("s_in", "s_out"):
        difference = getattr(noised, field) - getattr(clean, field)
        relative = difference.std() / getattr(clean, field).std()
        assert relative == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize("sigma", ["tensor", "channel"])
def test_noise_in_training_is_in_the_forward_pass_and_the_capture(sigma: str) -> None:
    context = context_of(16, fedin__noise=0.5, fedin__sigma=sigma)
    downlink = a_downlink(context, pairs=4)
    uplink, metrics, state = trained(context, downlink)
    clean, quiet, _ = trained(context_of(16), downlink)
    assert metrics["loss_ce"] != quiet["loss_ce"]
    assert not np.array_equal(uplink.weights["head.weight"], clean.weights["head.weight"])
    # s_out is the noised answer to the noised s_in.
    with torch.no_grad():
        answer = copy_of(uplink, context).body(torch.tensor(uplink.s_in)).numpy()
    spread = answer.std() if sigma == "tensor" else answer.std(axis=0)
    assert ((uplink.s_out - answer) / spread).std() == pytest.approx(0.5, rel=0.2)
    # By hand: the first two draws were the step's.
    noise = Noise(0.5, sigma, context.generator("noise"))
    model: Any = model_of(context).train()
    images, labels = next(
        device_batches(context, context.data.train, 16, context.generator("batches"))
    )
    s_out = noise(model.body(noise(model.stem(images))))
    loss = F.cross_entropy(model.head(s_out), labels)
    assert metrics["loss_ce"] == pytest.approx(loss.item(), rel=1e-4)
    # Evaluation is free of noise.
    scores = [Client().predict(state, downlink, images)["accuracy"] for _ in range(2)]
    assert torch.equal(*scores)


# Shapes and refusals ------------------------------------------------------------------------------


def test_the_cut_of_the_cnns_is_after_the_first_pooling() -> None:
    images = InputShape(3, 32, 10)
    for name in ("cnn1", "cnn5"):
        model = build_model(name, images, 512, mapping="none")
        assert feature_shape(model, images) == FeatureShape(16, 14, 500)
        assert next(iter(model.state_dict())) == "backbone.conv.0.weight"
    with torch.device("meta"):
        skeleton = build_model("fedavgcnn", InputShape(1, 28, 10), 64)
    assert feature_shape(skeleton, InputShape(1, 28, 10)) == FeatureShape(32, 12, 64)


def test_a_model_without_cut_is_named() -> None:
    images = InputShape(3, 32, 10)
    with torch.device("meta"):
        model: SplitModel = build_model("mobilenetv2", images)
    with pytest.raises(ValueError, match="mobilenetv2 cannot be cut after its stem; choose one"):
        feature_shape(model, images)


def test_features_of_another_shape_are_refused_without_projection() -> None:
    context = context_of(4, fedin__projection="none")
    downlink = a_downlink(context)
    downlink.s_out = np.zeros((0, WIDTH + 1), np.float32)
    with pytest.raises(PayloadError, match=r"client 4's model resnet10-w4 gives 16x4x4 maps and 8"):
        trained(context, downlink)


def test_a_common_space_needs_projections() -> None:
    keys = {"method": "fedin", "fedin.projection": "none", "fedin.common-channels": 8}
    with pytest.raises(ConfigError, match=r"fedin.projection = 'none': expected fixed or"):
        parse_run_config(keys)
