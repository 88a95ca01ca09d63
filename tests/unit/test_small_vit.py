"""The small ViT: parameters by hand, patches for every size, and attention by brute force."""

from __future__ import annotations

import math

import pytest
import torch

from models import InputShape, build_model, build_task_model, count_parameters
from models.transformer import Block
from models.vit import SmallViT

SIZES = {"vit-tiny": (64, 3), "vit-small": (96, 4)}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    ("channels", "size", "patch", "grid"),
    [(3, 16, 2, 8), (1, 28, 4, 7), (3, 32, 4, 8), (1, 33, 5, 7), (3, 64, 8, 8), (3, 5, 1, 5)],
)
def test_patches_and_parameters(name: str, channels: int, size: int, patch: int, grid: int) -> None:
    width, depth = SIZES[name]
    with torch.device("meta"):
        model = build_model(name, InputShape(channels, size, 10), width)
    vit = model.backbone
    assert isinstance(vit, SmallViT)
    assert (vit.patch, vit.grid) == (patch, grid)
    block = (
        2 * 2 * width  # two norms
        + 4 * (width * width + width)  # queries, keys, values, output
        + (2 * width * width + 2 * width)  # up
        + (2 * width * width + width)  # down
    )
    embedding = channels * patch * patch * width + width
    expected = embedding + grid * grid * width + depth * block + 2 * width
    assert count_parameters(vit) == expected
    assert tuple(vit.maps(torch.zeros(2, channels, size, size, device="meta")).shape) == (
        *(2, width, grid, grid),
    )


@torch.no_grad()
def test_the_feature_is_the_mean_of_the_maps() -> None:
    vit = build_model("vit-tiny", InputShape(1, 28, 10), seed=0).backbone
    x = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(vit(x), vit.maps(x).mean((2, 3)))
    assert tuple(vit(x[:0]).shape) == (0, 64)


@torch.no_grad()
def test_maps_keep_their_place() -> None:
    """Without blocks a patch's output depends on that patch of the image alone."""
    vit = build_model("vit-tiny", InputShape(1, 32, 10), seed=0).backbone
    vit.encoder.blocks = torch.nn.ModuleList()
    x = torch.rand(1, 1, 32, 32)
    changed = x.clone()
    changed[..., 9, 22] += 1  # patch 4: row 2, column 5
    differs = (vit.maps(x) != vit.maps(changed)).any(1)[0]
    assert differs.nonzero().tolist() == [[2, 5]]


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_brute_force(masked: bool) -> None:
    torch.manual_seed(0)
    block = Block(width=6, heads=2, expansion=2)
    x = torch.randn(2, 4, 6)
    hidden = torch.tensor([[False, True, False, True], [False] * 4]) if masked else None
    expected = x.clone()
    for n in range(2):
        q, k, v = block.qkv(block.norm1(x[n])).split(6, dim=1)
        for t in range(4):
            mixed = []
            for head in (slice(0, 3), slice(3, 6)):
                seen = [u for u in range(4) if hidden is None or not hidden[n, u]]
                scores = torch.stack([q[t, head] @ k[u, head] / math.sqrt(3) for u in seen])
                mixed.append((scores.softmax(0)[:, None] * v[seen, head]).sum(0))
            expected[n, t] += block.out(torch.cat(mixed))
    expected += block.mlp(block.norm2(expected))
    torch.testing.assert_close(block(x, hidden), expected)


def test_gradients_and_no_gradients_compute_the_same_bits() -> None:
    model = build_task_model("vit-tiny", "multilabel", InputShape(1, 16, 10), 32, seed=0)
    x = torch.rand(4, 1, 16, 16)
    with torch.no_grad():
        still = model.eval().represent(x)
    assert torch.equal(model.train().represent(x).detach(), still)
