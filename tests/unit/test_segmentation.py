"""The small encoder-decoders: parameters by hand, sizes, and whether they can learn a mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from models import InputShape, ModelError, build_model, build_task_model, count_parameters

SIZES = {"seg-small": ((16, 32, 64), 1, 64), "seg-large": ((32, 64, 128), 2, 96)}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_parameters(name: str, channels: int) -> None:
    widths, depth, outputs = SIZES[name]
    with torch.device("meta"):
        net = build_model(name, InputShape(channels, 64, 10)).backbone
    expected, before = 0, channels
    for width in widths:
        expected += 9 * before * width + 2 * width  # halves the resolution; with its norm
        expected += (depth - 1) * (9 * width * width + 2 * width)
        expected += width * outputs + outputs  # the skip
        before = width
    expected += 2 * (9 * outputs * outputs + 2 * outputs)  # smoothing on the way up
    expected += 2 * outputs  # the last norm
    assert count_parameters(net) == expected


@torch.no_grad()
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", [8, 28, 33, 64])
def test_the_feature_is_the_mean_of_the_maps(name: str, size: int) -> None:
    net = build_model(name, InputShape(1, size, 10), seed=0).backbone
    x = torch.rand(2, 1, size, size)
    maps = net.maps(x)
    assert tuple(maps.shape) == (2, net.raw_dim, (size + 1) // 2, (size + 1) // 2)
    torch.testing.assert_close(net(x), maps.mean((2, 3)))


def test_images_too_small_are_refused() -> None:
    with pytest.raises(ModelError, match=r"'seg-small'.*1x7x7 images.*at least 8x8"):
        build_model("seg-small", InputShape(1, 7, 10))


@torch.no_grad()
def test_no_statistics_are_kept() -> None:
    model = build_model("seg-large", InputShape(1, 16, 10), seed=0)
    x = torch.rand(2, 1, 16, 16)
    assert torch.equal(model.train()(x), model.eval()(x))
    assert not dict(model.named_buffers())


def squares(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of a bright (class 1) and a dark (class 2) square on grey, and their masks."""
    images = torch.zeros(count, 1, 32, 32)
    masks = torch.zeros(count, 32, 32, dtype=torch.int64)
    corners = torch.randint(0, 11, (count, 2), generator=generator) + torch.tensor([0, 12])
    for n, (first, second) in enumerate(corners.tolist()):
        for kind, at in ((1, first), (2, second)):
            area = (n, slice(at, at + 9), slice(at, at + 9))
            masks[area] = kind
            images[(n, 0, *area[1:])] = 1.0 if kind == 1 else -1.0
    return images + 0.1 * torch.randn(images.shape, generator=generator), masks


@pytest.mark.parametrize("name", ["seg-small", "vit-tiny"])
def test_it_learns_to_tell_squares_from_the_ground(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    model = build_task_model(name, "segmentation", InputShape(1, 32, 2), 16, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        images, masks = squares(16, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images), masks).backward()
        optimizer.step()
    images, masks = squares(64, generator)
    with torch.no_grad():
        found = model.eval()(images).argmax(1)
    for kind in (0, 1, 2):
        both = ((found == kind) & (masks == kind)).sum()
        either = ((found == kind) | (masks == kind)).sum()
        assert float(both / either) > 0.6, f"class {kind}"
