"""Every registered model fulfils the contract of `models/base.py`; new models need no code here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from models import (
    InputShape,
    SplitModel,
    Splittable,
    build_model,
    count_parameters,
    list_models,
    model_info,
)
from models.memory_format import fails_channels_last

SHAPES = (InputShape(3, 32, 10), InputShape(1, 28, 10), InputShape(3, 64, 20))
# Larger models get one shape, so that the whole file stays well under 90 s on one core.
ONE_SHAPE_ABOVE = 30_000_000
FEATURE_DIM = 96


def skeleton(name: str, shape: InputShape) -> SplitModel:
    with torch.device("meta"):
        return build_model(name, shape, FEATURE_DIM)


@cache
def is_large(name: str) -> bool:
    return count_parameters(skeleton(name, SHAPES[0])) > ONE_SHAPE_ABOVE


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    scope="module",
    params=[(name, shape) for name in list_models(modality="image") for shape in SHAPES],
    ids=lambda case: f"{case[0]}-{case[1].image_size}px",
)
def case(request: pytest.FixtureRequest) -> tuple[SplitModel, InputShape]:
    name, shape = request.param
    if not model_info(name).is_installed:
        pytest.skip(f"needs the extra {model_info(name).extra}")
    if shape != SHAPES[0] and is_large(name):
        pytest.skip(f"over {ONE_SHAPE_ABOVE:,} parameters: one shape is enough")
    return build_model(name, shape, FEATURE_DIM, seed=0), shape


def images(shape: InputShape, count: int = 2) -> torch.Tensor:
    size = (count, shape.channels, shape.image_size, shape.image_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def test_widths_and_head(case: tuple[SplitModel, InputShape]) -> None:
    model, shape = case
    expected = FEATURE_DIM if model_info(model.name).adapter else model.raw_dim
    assert model.feature_dim == expected
    assert model.num_classes == shape.num_classes
    assert type(model.head) is torch.nn.Linear
    assert tuple(model.head.weight.shape) == (shape.num_classes, model.feature_dim)
    assert tuple(model.head.bias.shape) == (shape.num_classes,)


def test_every_parameter_gets_a_gradient(case: tuple[SplitModel, InputShape]) -> None:
    model, shape = case
    model.train()
    logits = model(images(shape))
    assert tuple(logits.shape) == (2, shape.num_classes)
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert bool(parameter.grad.isfinite().all()), f"{name} has a gradient that is not finite"
    model.zero_grad(set_to_none=True)


def test_all_of_it_computes_channels_last(case: tuple[SplitModel, InputShape]) -> None:
    """Its numbers do not change with what narrow models of one's own need; see the module."""
    assert not any(map(fails_channels_last, case[0].modules()))


@torch.no_grad()
def test_forward_is_the_head_of_the_features(case: tuple[SplitModel, InputShape]) -> None:
    model, shape = case
    model.eval()
    x = images(shape).to(memory_format=torch.channels_last)
    features, logits = model.features(x), model(x)
    assert tuple(model.backbone(x).shape) == (2, model.raw_dim)
    assert tuple(features.shape) == (2, model.feature_dim)
    assert bool(logits.isfinite().all())
    torch.testing.assert_close(model.head(features), logits)
    if isinstance(model, Splittable):
        torch.testing.assert_close(model.body(model.stem(x)), features)


@torch.no_grad()
def test_maps_have_the_feature_as_their_mean(case: tuple[SplitModel, InputShape]) -> None:
    model, shape = case
    if not hasattr(model.backbone, "maps"):
        return  # this backbone does not segment
    model.eval()
    maps = model.backbone.maps(images(shape))
    assert maps.shape[:2] == (2, model.raw_dim)
    torch.testing.assert_close(maps.mean((2, 3)), model.backbone(images(shape)))


@torch.no_grad()
def test_a_skeleton_filled_with_the_state_is_the_same_model(
    case: tuple[SplitModel, InputShape],
) -> None:
    model, shape = case
    copy = skeleton(model.name, shape)
    assert all(parameter.is_meta for parameter in copy.parameters())
    copy.load_state_dict(model.state_dict(), assign=True)
    for name, tensor in (*copy.named_parameters(), *copy.named_buffers()):
        assert not tensor.is_meta, f"{name} is not part of the state_dict"
    x = images(shape)
    assert torch.equal(copy.eval()(x), model.eval()(x))
