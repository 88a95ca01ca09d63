"""The common small model: the published numbers of parameters, and its shapes."""

from __future__ import annotations

import pytest
import torch

from models import InputShape, ModelError, count_parameters
from models.small import SMALL_MODELS, build_small_model


def parameters(kind: str, width: int, classes: int) -> int:
    with torch.device("meta"):
        return count_parameters(build_small_model(kind, InputShape(3, 32, classes), width))


@pytest.mark.parametrize(
    ("kind", "width", "classes", "published"),
    [
        ("cnn5", 100, 10, 465_658),
        ("cnn5", 100, 100, 474_748),
        ("cnn5", 250, 10, 542_308),
        ("cnn5", 250, 100, 564_898),
        ("cnn5", 500, 10, 670_058),
        ("cnn5", 500, 100, 715_148),
        ("cnn1", 100, 10, 1_817_158),
        ("cnn1", 500, 10, 2_621_558),
        ("fedavgcnn", 128, 100, 886_308),
        ("fedavgcnn", 512, 100, 924_708),
    ],
)
def test_published_counts(kind: str, width: int, classes: int, published: int) -> None:
    assert parameters(kind, width, classes) == published


@pytest.mark.parametrize("width", [16, 100, 333])
@pytest.mark.parametrize("classes", [10, 100])
def test_formulas(width: int, classes: int) -> None:
    head = classes * (width + 1)
    assert parameters("cnn5", width, classes) == 414_548 + 501 * width + head
    assert parameters("cnn1", width, classes) == 1_616_048 + 2001 * width + head
    assert parameters("fedavgcnn", width, classes) == 873_408 + head


@pytest.mark.parametrize("kind", SMALL_MODELS)
@pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 32), (1, 28)])
def test_shapes(kind: str, channels: int, size: int) -> None:
    model = build_small_model(kind, InputShape(channels, size, 7), 24)
    features = model.features(torch.rand(2, channels, size, size))
    assert features.shape == (2, 24)
    assert features.min() >= 0  # after ReLU
    assert model.head(features).shape == (2, 7)


def test_pooling_is_the_mean_of_neighbours() -> None:
    model = build_small_model("fedavgcnn", InputShape(3, 32, 10), 128)
    images = torch.rand(2, 3, 32, 32)
    expected = model.backbone(images).reshape(2, 128, 4).mean(dim=2)
    torch.testing.assert_close(model.features(images), expected)


@pytest.mark.parametrize(
    ("kind", "size", "width", "words"),
    [
        ("cnn2", 32, 100, "small model 'cnn2' is unknown; use one of cnn5, cnn1, fedavgcnn"),
        ("cnn5", 8, 100, "small model 'cnn5' cannot be built for .*at least 16x16"),
        ("cnn1", 32, 0, "width=0"),
    ],
)
def test_mistakes_are_named(kind: str, size: int, width: int, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build_small_model(kind, InputShape(1, size, 10), width)
