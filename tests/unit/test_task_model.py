"""Encoder, projection and head: what reads what, and whom gradients reach."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from data.tasks import TASK_GROUPS, TASKS, parse_tasks
from models import (
    GROUPS,
    InputShape,
    ModelError,
    TaskModel,
    TextShape,
    build_task_model,
    model_info,
    text_shape_of,
)
from models.task_model import MODALITY_OF

IMAGES = InputShape(3, 16, 5)
TEXTS = TextShape(60, 6, 4)
CASES = [
    ("cnn5", "classification", IMAGES),
    ("resnet10-w4", "multilabel", IMAGES),
    ("vit-tiny", "segmentation", IMAGES),
    ("seg-small", "segmentation", IMAGES),
    ("seg-small", "classification", IMAGES),
    ("text-small", "text", TEXTS),
]


def examples(shape: InputShape | TextShape, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if isinstance(shape, TextShape):
        return torch.randint(0, shape.vocabulary, (count, shape.length), generator=generator)
    return torch.randn(count, shape.channels, *2 * (shape.image_size,), generator=generator)


def test_tasks_are_the_datas() -> None:
    assert tuple(MODALITY_OF) == TASKS


@pytest.mark.parametrize("group", TASK_GROUPS)
def test_models_of_a_set_up_fit_its_tasks(group: str) -> None:
    tasks = parse_tasks(group)
    assert len(GROUPS[group]) == len(tasks)
    for name, entry in zip(GROUPS[group], tasks, strict=True):
        is_text = model_info(name).modality == "text"
        shape = text_shape_of(name, 10) if is_text else InputShape(1, 28, 10)
        with torch.device("meta"):
            assert build_task_model(name, str(entry), shape, 64).task == entry.task


@pytest.mark.parametrize(("name", "task", "shape"), CASES)
def test_shapes(name: str, task: str, shape: InputShape | TextShape) -> None:
    model = build_task_model(name, f"{task}@scenes[0-4]", shape, 24, seed=0)
    assert (model.name, model.task, model.feature_dim) == (name, task, 24)
    assert model.num_classes == shape.num_classes
    assert model.training
    assert type(model.projection) is nn.Linear
    assert tuple(model.projection.weight.shape) == (24, model.raw_dim)
    x = examples(shape)
    outputs = (3, 6, 16, 16) if task == "segmentation" else (3, shape.num_classes)
    assert tuple(model(x).shape) == outputs
    z = model.represent(x)
    assert tuple(z.shape) == (3, 24)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(3))


@torch.no_grad()
@pytest.mark.parametrize(("name", "task", "shape"), CASES)
def test_a_skeleton_filled_with_the_state_is_the_same_model(
    name: str, task: str, shape: InputShape | TextShape
) -> None:
    model = build_task_model(name, task, shape, 24, seed=0).eval()
    with torch.device("meta"):
        copy = build_task_model(name, task, shape, 24).eval()
    copy.load_state_dict(model.state_dict(), assign=True)
    x = examples(shape)
    assert torch.equal(copy(x), model(x))
    assert torch.equal(copy.represent(x), model.represent(x))


@pytest.mark.parametrize(("name", "task", "shape"), CASES)
def test_the_representation_reaches_all_of_w_and_never_the_head(
    name: str, task: str, shape: InputShape | TextShape
) -> None:
    model = build_task_model(name, task, shape, 24, seed=0)
    (model.represent(examples(shape)) @ torch.arange(24.0)).sum().backward()
    reached = {p for p in model.parameters() if p.grad is not None}
    assert reached == set(model.representation_parameters())
    assert not reached & set(model.head.parameters())
    assert len(model.representation_parameters()) + 2 == len(list(model.parameters()))


def test_the_head_reads_the_raw_feature_or_the_projection() -> None:
    x = examples(IMAGES)
    beside = build_task_model("cnn5", "multilabel", IMAGES, 24, seed=0)
    assert torch.equal(beside(x), beside.head(beside.encoder(x)))
    beside(x).sum().backward()
    assert beside.projection.weight.grad is None
    inside = build_task_model("cnn5", "multilabel", IMAGES, 24, in_path=True, seed=0)
    projected = inside.projection(inside.encoder(x))
    assert torch.equal(inside(x), inside.head(projected))
    assert torch.equal(inside.represent(x), F.normalize(projected, dim=1))
    inside(x).sum().backward()
    assert inside.projection.weight.grad is not None


def test_segmentation_is_enlarged_without_aligning_corners() -> None:
    """Two pixels 0 and 1 become 0, 1/4, 3/4, 1: half-pixel centres, by hand."""

    class TwoPixels(nn.Module):
        def maps(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])

    model = TaskModel("two", "segmentation", TwoPixels(), raw_dim=1, feature_dim=2, num_classes=1)
    nn.init.ones_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    logits = model(torch.zeros(1, 1, 4, 4))
    assert tuple(logits.shape) == (1, 2, 4, 4)
    assert logits[0, 0, 2].tolist() == [0.0, 0.25, 0.75, 1.0]


def test_frozen_weights_are_not_in_the_representation_model() -> None:
    model = build_task_model("vit-tiny", "classification", IMAGES, 24, seed=0)
    model.encoder.requires_grad_(False)
    assert model.representation_parameters() == list(model.projection.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_representations_are_float32_under_autocast(dtype: torch.dtype) -> None:
    model = build_task_model("seg-small", "segmentation", IMAGES, 24, seed=0)
    with torch.autocast("cpu", dtype=dtype):
        assert model(examples(IMAGES)).dtype == dtype
        z = model.represent(examples(IMAGES))
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.norm(dim=1), torch.ones(3))


def test_a_vector_of_zeros_stays_zeros() -> None:
    model = build_task_model("text-small", "text", TEXTS, 8, seed=0)
    nn.init.zeros_(model.projection.bias)
    z = model.represent(torch.zeros(2, 6, dtype=torch.int64))
    assert z.tolist() == [[0.0] * 8] * 2
    z.sum().backward()
    assert bool(model.projection.bias.grad.isfinite().all())


def test_a_seed_fixes_the_weights_and_leaves_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    first, second = (build_task_model("cnn5", "multilabel", IMAGES, 8, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))


@pytest.mark.parametrize(
    ("name", "task", "shape", "extra", "message"),
    [
        ("text-small", "multilabel@scenes", IMAGES, {},
         r"'text-small' reads text, task multilabel@scenes has images; choose .*vit-tiny"),
        ("cnn5", "text@tsv", TEXTS, {},
         r"'cnn5' reads images, task text@tsv has text; choose .*text-small, text-large"),
        ("cnn5", "multilabel", TEXTS, {}, r"'cnn5': task multilabel has images, but its data gives "
         r"texts of 6 tokens out of 60, 4 classes"),
        ("text-small", "text", IMAGES, {}, r"task text has text, but .* 3x16x16 images"),
        ("cnn5", "detection", IMAGES, {}, r"'cnn5': task 'detection' is unknown; tasks are class"),
        ("cnn5", "segmentation@voc", IMAGES, {},
         r"'cnn5' has no feature maps, which task segmentation@voc needs; use seg-small"),
        ("seg-small", "segmentation", IMAGES, {"in_path": True},
         r"'seg-small', task segmentation: .*set in-path to false"),
        ("cnn5", "multilabel", IMAGES, {"lora_rank": -1}, "lora-rank=-1, must be 0 or more"),
        ("cnn5", "multilabel", IMAGES, {"feature_dim": 0}, "feature-dim=0, must be 1 or more"),
        ("cnn5@here", "multilabel", IMAGES, {}, r"'cnn5@here': 'cnn5' loads no pretrained weights"),
        ("cnn1", "multilabel", InputShape(1, 8, 2), {}, r"'cnn1' cannot be built for 1x8x8"),
    ],
)  # fmt: skip
def test_errors_name_model_task_and_remedy(
    name: str, task: str, shape: InputShape | TextShape, extra: dict[str, int], message: str
) -> None:
    arguments = {"feature_dim": 8, **extra}
    with pytest.raises(ModelError, match=message):
        build_task_model(name, task, shape, **arguments)


USER_MODULE = """
from torch import nn
from models import register_model

class Bad(nn.Module):
    raw_dim = 4

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))

    def maps(self, x):
        return self.conv(x)[:, :2]

def bad(shape):
    return Bad()
"""


def test_maps_of_a_users_model_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wildflower_bad_maps.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    build_task_model("wildflower_bad_maps:bad", "multilabel", IMAGES, 8)
    with pytest.raises(ModelError, match=r"\(2, 2, 14, 14\).*maps must be \(N, raw_dim, h, w\)"):
        build_task_model("wildflower_bad_maps:bad", "segmentation", IMAGES, 8)
