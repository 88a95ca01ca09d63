"""Names, users' own factories, and errors that say what to do."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import models
from models import (
    InputShape,
    ModelError,
    Splittable,
    build_model,
    list_models,
    model_info,
    register_model,
    registry,
)

CIFAR10 = InputShape(3, 32, 10)

USER_MODULE = """
from torch import nn
from models import InputShape, register_model

class Pooled(nn.Module):
    def __init__(self, channels, raw_dim, width):
        super().__init__()
        self.raw_dim = raw_dim
        self.conv = nn.Conv2d(channels, width, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))

def good(shape: InputShape):
    return Pooled(shape.channels, 24, 24)

def no_raw_dim(shape):
    return nn.Flatten()

def no_module(shape):
    return lambda x: x

def raises(shape):
    raise RuntimeError("no such colour")

def wrong_width(shape):
    return Pooled(shape.channels, 10, 24)

def wrong_channels(shape):
    return Pooled(7, 24, 24)

@register_model("user-fixed", description="keeps its width", adapter=False)
def fixed(shape):
    return Pooled(shape.channels, 24, 24)

NUMBER = 3
"""


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "wildflower_user_nets.py").write_text(USER_MODULE)
    (tmp_path / "wildflower_broken.py").write_text("import wildflower_missing_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    yield "wildflower_user_nets"
    sys.modules.pop("wildflower_user_nets", None)


def test_list_models_filters() -> None:
    assert list_models("cnn?") == ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5")
    assert list_models("resnet??-w4")[0] == "resnet10-w4"
    assert list_models("nothing*") == ()


def test_the_documented_examples_run() -> None:
    for module in (models, registry):
        results = doctest.testmod(module)
        assert results.attempted > 0
        assert results.failed == 0


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'cnn1' is already registered by .*ConvNet"):
        register_model("cnn1", description="again")(lambda shape: torch.nn.Identity())


@pytest.mark.parametrize("name", ["", "a,b", "a=b", "a:b", "a b", "*"])
def test_a_name_the_configuration_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="letters, digits"):
        register_model(name, description="")


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("resnt18", "resnet18"), ("ResNet18", "resnet18"), ("vit_b16", "vit-b16"), ("CNN1", "cnn1")],
)
def test_an_unknown_name_gets_the_nearest_spelling(slip: str, meant: str) -> None:
    with pytest.raises(ModelError, match=rf"{slip}.* is unknown; did you mean .*{meant}\b") as info:
        build_model(slip, CIFAR10)
    assert "python -m models" in str(info.value)


def test_a_name_like_no_other_still_says_how_to_list() -> None:
    with pytest.raises(ModelError, match=r"'qqqqq' is unknown; list all models with"):
        build_model("qqqqq", CIFAR10)


def test_mappings_and_widths() -> None:
    assert build_model("cnn5", CIFAR10, 64).feature_dim == 64
    assert build_model("cnn5", CIFAR10, 64, mapping="none").feature_dim == 500
    assert "mapping.weight" in build_model("cnn5", CIFAR10, 64, mapping="FC").state_dict()
    with pytest.raises(ModelError, match="mapping='median'"):
        build_model("cnn5", CIFAR10, mapping="median")


def test_a_seed_fixes_the_weights_and_leaves_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    first, second = build_model("cnn5", CIFAR10, seed=3), build_model("cnn5", CIFAR10, seed=3)
    other = build_model("cnn5", CIFAR10, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_images_too_small_are_refused(device: str) -> None:
    tiny = InputShape(1, 8, 10)
    with (
        torch.device(device),
        pytest.raises(ModelError, match=r"'cnn1'.*1x8x8 images.*at least 16x16"),
    ):
        build_model("cnn1", tiny)


@pytest.mark.parametrize(
    "values", [(0, 32, 10), (3, 0, 10), (3, 32, 0)], ids=["channels", "image_size", "num_classes"]
)
def test_an_impossible_shape_is_refused(
    values: tuple[int, int, int], request: pytest.FixtureRequest
) -> None:
    with pytest.raises(ModelError, match=f"{request.node.callspec.id}=0, must be 1 or more"):
        InputShape(*values)


def test_a_user_factory_is_a_full_model(user_module: str) -> None:
    model = build_model(f"{user_module}:good", CIFAR10, 16)
    assert (model.raw_dim, model.feature_dim) == (24, 16)
    assert tuple(model(torch.zeros(5, 3, 32, 32)).shape) == (5, 10)
    assert not isinstance(model, Splittable)
    assert model.training


def test_a_model_without_adapter_keeps_its_width(user_module: str) -> None:
    by_address = build_model(f"{user_module}:fixed", CIFAR10, 512)
    assert by_address.feature_dim == by_address.head.in_features == 24
    assert build_model("user-fixed", CIFAR10, 512, "FC").feature_dim == 24
    assert not model_info("user-fixed").adapter


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("wildflower_nowhere:f", "cannot import 'wildflower_nowhere'.*importable where"),
        ("wildflower_broken:f", "ModuleNotFoundError: .*wildflower_missing_dependency"),
        ("wildflower_user_nets:absent", "'absent' .* is not a callable .has no such name"),
        ("wildflower_user_nets:NUMBER", "is not a callable .it is a int"),
        ("wildflower_user_nets:", "write it as 'package.module:factory'"),
        (":good", "write it as 'package.module:factory'"),
        ("wildflower_user_nets:no_raw_dim", "Flatten has raw_dim=None; set self.raw_dim"),
        ("wildflower_user_nets:no_module", "returned function, not an nn.Module"),
        ("wildflower_user_nets:raises", "3x32x32 images, 10 classes: no such colour"),
        ("wildflower_user_nets:wrong_width", r"returned \(2, 24\) .* expected a tensor \(2, 10\)"),
        ("wildflower_user_nets:wrong_channels", "does not run on 3x32x32 images"),
    ],
)
def test_errors_of_user_factories(user_module: str, address: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as info:
        build_model(address, CIFAR10)
    assert repr(address) in str(info.value)


def test_torchvision_is_not_imported_until_needed() -> None:
    code = (
        "import sys; from models import *; build_model('resnet10', InputShape(3, 32, 10)); "
        "sys.exit('torchvision' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
