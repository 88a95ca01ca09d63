"""Parameter counts, key sets and shapes that the papers publish."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from models import GROUPS, InputShape, SplitModel, Splittable, build_model, count_parameters

CIFAR10, CIFAR100 = InputShape(3, 32, 10), InputShape(3, 32, 100)


def skeleton(name: str, shape: InputShape, feature_dim: int = 512) -> SplitModel:
    with torch.device("meta"):
        return build_model(name, shape, feature_dim)


def test_fedavgcnn() -> None:
    model = skeleton("fedavgcnn", CIFAR100)
    assert count_parameters(model.backbone) == 873_408
    assert count_parameters(model.head) == 51_300
    assert count_parameters(model) == 924_708


def test_fedavgcnn_flattens_10816_values_at_64_pixels() -> None:
    grown = count_parameters(skeleton("fedavgcnn", InputShape(3, 64, 100)).backbone)
    assert grown - 873_408 == (10_816 - 1_600) * 512


@pytest.mark.parametrize(
    ("name", "ten_classes", "hundred_classes"),
    [
        ("cnn1", 2_621_558, 2_666_648),
        ("cnn2", 1_815_142, 1_860_232),
        ("cnn3", 1_320_558, 1_365_648),
        ("cnn4", 1_060_358, 1_105_448),
        ("cnn5", 670_058, 715_148),
    ],
)
def test_cnn_family(name: str, ten_classes: int, hundred_classes: int) -> None:
    assert count_parameters(skeleton(name, CIFAR10, feature_dim=500)) == ten_classes
    assert count_parameters(skeleton(name, CIFAR100, feature_dim=500)) == hundred_classes


@pytest.mark.parametrize(
    ("name", "three_channels", "one_channel"),
    [
        ("resnet10", 4_910_922, 4_904_650),
        ("resnet14", 10_812_234, 10_805_962),
        ("resnet18", 11_181_642, 11_175_370),
        ("resnet22", 17_082_954, 17_076_682),
        ("resnet26", 17_452_362, 17_446_090),
    ],
)
def test_fedin_family(name: str, three_channels: int, one_channel: int) -> None:
    assert count_parameters(skeleton(name, CIFAR10)) == three_channels
    assert count_parameters(skeleton(name, InputShape(1, 28, 10))) == one_channel


@pytest.mark.parametrize("suffix", ["", "-w4"])
def test_fedin_key_sets_nest(suffix: str) -> None:
    shapes = [
        {key: tensor.shape for key, tensor in skeleton(name + suffix, CIFAR10).state_dict().items()}
        for name in GROUPS["resnet5"]
    ]
    for smaller, larger in pairwise(shapes):
        assert smaller.items() < larger.items()


@pytest.mark.parametrize(("shape", "side"), [(CIFAR10, 8), (InputShape(1, 28, 10), 7)])
def test_fedin_cut_shapes(shape: InputShape, side: int) -> None:
    model = build_model("resnet10", shape).eval()
    assert isinstance(model, Splittable)
    s_in = model.stem(torch.zeros(16, shape.channels, shape.image_size, shape.image_size))
    assert tuple(s_in.shape) == (16, 64, side, side)
    assert tuple(model.body(s_in).shape) == (16, 512)


def test_htm10_raw_widths() -> None:
    widths = [skeleton(name, CIFAR100).raw_dim for name in GROUPS["htm10"]]
    assert widths == [512, 1024, 1280, 512, 512, 2048, 2048, 2048, 768, 768]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnets_are_torchvisions(name: str) -> None:
    """Same keys, so its checkpoints load; same function; same spread of the initial weights."""
    models = pytest.importorskip("torchvision.models")
    theirs = getattr(models, name)(num_classes=1).eval()
    ours = build_model(name, CIFAR10, seed=0).eval()
    drawn = [float(net.layer3[0].conv2.weight.detach().std()) for net in (ours.backbone, theirs)]
    assert drawn[0] / drawn[1] == pytest.approx(1, abs=0.02)
    theirs.fc = torch.nn.Identity()
    ours.backbone.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours.backbone(x), theirs(x))
