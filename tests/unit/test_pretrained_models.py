"""Models of the extra ``pretrained``: that the weights of the packages are what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from data import normalise
from models import (
    InputShape,
    ModelError,
    TaskModel,
    build_model,
    build_task_model,
    count_parameters,
    lite,
    model_info,
    text_shape_of,
    tokeniser_of,
)
from tests.probe import CIFAR, features_of, lite_backbone, pictures

IMAGES = InputShape(3, 32, 5)

pytestmark = pytest.mark.skipif(
    not all(model_info(name).is_installed for name in ("lite0", "lite1", "lite2", "minilm")),
    reason="needs the extra pretrained",
)


@torch.no_grad()
@pytest.mark.skipif(not CIFAR.is_file(), reason=f"needs {CIFAR}")
def test_features_separate_pictures_as_random_weights_do_not() -> None:
    images, labels = pictures("test", 30)
    assert nearest_neighbour(lite_backbone("lite0@64"), images, labels) > 0.35
    assert nearest_neighbour(lite_backbone("lite0@64", trained=False), images, labels) < 0.25


def nearest_neighbour(encoder: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    """Accuracy of giving every picture the class of the one with the most similar feature."""
    raw = features_of(encoder, normalise(images))
    raw = F.normalize((raw - raw.mean(0)) / (raw.std(0) + 1e-6), dim=1)
    near = (raw @ raw.T).fill_diagonal_(-2).argmax(1)
    return float((labels[near] == labels).float().mean())


@torch.no_grad()
def test_the_image_is_prepared_as_the_tensorflow_models_were() -> None:
    model = build_model("lite1", InputShape(1, 28, 5)).eval()
    white = model.backbone.prepare(torch.ones(1, 1, 28, 28))
    assert white.shape == (1, 3, 240, 240)
    torch.testing.assert_close(white, torch.full_like(white, (255 - 127) / 128))


@pytest.mark.parametrize(
    ("name", "parameters"), [("lite0", 3_371_008), ("lite1", 4_135_680), ("lite2", 4_811_072)]
)
def test_adapters_are_all_that_a_frozen_base_trains(name: str, parameters: int) -> None:
    name = f"{name}@64"
    model = build_task_model(name, "classification", IMAGES, 8, lora_rank=4, seed=0)
    base = [p for key, p in model.encoder.named_parameters() if "lora_" not in key]
    assert sum(p.numel() for p in base) == parameters
    assert not any(p.requires_grad for p in base)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model.train()(x).sum().backward()
    grown = [p for key, p in model.encoder.named_parameters() if "lora_B" in key]
    assert grown
    assert all(p.grad is not None and bool(p.grad.any()) for p in grown)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)  # statistics too
    whole = build_task_model(name, "classification", IMAGES, 8, lora_rank=0)
    assert count_parameters(whole.encoder) == parameters
    assert all(p.requires_grad for p in whole.parameters())


def test_feature_maps_segment() -> None:
    model = build_task_model("lite0@64", "segmentation", IMAGES, 8, lora_rank=2, seed=0)
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert model(x).shape == (1, 6, 32, 32)
    assert model.encoder.maps(x).shape == (1, 96, 32, 32)
    model(x).sum().backward()
    trained = [p for p in model.encoder.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in trained)


def test_mistakes_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, message in (
        ("lite0@here", "a number from 64 to 1024, not 'here'"),
        ("lite0@16", "a number from 64 to 1024, not '16'"),
        ("lite0@", "write lite0@SIZE, or lite0 alone"),
        ("minilm@here", "minilm has its weights; write minilm alone"),
    ):
        with pytest.raises(ModelError, match=message):
            build_model(name, IMAGES)
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "efficientnet-lite0-57934424.pth").write_bytes(b"not the file")
    monkeypatch.setattr(lite, "package_folder", lambda name, extra: tmp_path)
    with pytest.raises(ModelError, match=r"not the file that its package was published with.*pip"):
        build_model("lite0", IMAGES)


PAIRS = [
    ("A man is eating food.", "Someone is having a meal."),
    ("The film was a bore from start to end.", "That movie was dull throughout."),
    ("How do I reset my password?", "I forgot my login and need a new one."),
    ("Rain is expected tomorrow.", "The forecast says it will be wet on the next day."),
    ("The cat sleeps on the sofa.", "A kitten naps on the couch."),
]


@torch.no_grad()
def test_sentences_of_one_meaning_are_nearest() -> None:
    model: TaskModel = build_task_model("minilm", "text", text_shape_of("minilm", 2), 8).eval()
    first, second = (
        F.normalize(model.encoder(torch.from_numpy(tokeniser_of("minilm")(side))), dim=1)
        for side in zip(*PAIRS, strict=True)
    )
    similar = first @ second.T
    assert similar.argmax(1).tolist() == list(range(len(PAIRS)))
    assert float(similar.diagonal().min()) > 0.4
    assert float(similar.fill_diagonal_(0).max()) < 0.35
