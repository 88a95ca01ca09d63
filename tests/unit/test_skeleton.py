"""Models without weights: their shapes are those of the real ones, and nothing else is done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from models import InputShape, build_model
from models.skeleton import run_blank, skeleton

ROOT = Path(__file__).parents[2]
SHAPE = InputShape(channels=3, image_size=32, num_classes=10)
CODE = """
import sys
from models import InputShape, TextShape, build_model
from models.skeleton import skeleton
with skeleton():
    for name in ("cnn2", "resnet10-w4", "resnet50"):
        build_model(name, InputShape(3, 32, 10))
    build_model("text-small", TextShape(16, 100, 4))
print("torch._dynamo" in sys.modules)
"""


class Kept(nn.Module):
    """Has one of everything that a pass may touch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.tied = nn.Linear(900, 900, bias=False)
        self.again = nn.Linear(900, 900, bias=False)
        self.again.weight = self.tied.weight
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.again(self.tied(self.norm(self.first(x)).flatten(1)))

    def maps(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


def blank(device: torch.device) -> torch.Tensor:
    return torch.zeros(2, 3, 32, 32, device=device)


def test_no_compiler_is_imported_for_a_skeleton_and_its_trial() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("name", ["cnn2", "resnet10-w4", "resnet50", "vit-tiny"])
def test_a_skeleton_has_the_shapes_and_moves_no_stream(name: str) -> None:
    before = torch.random.get_rng_state()
    with skeleton():
        bare = build_model(name, SHAPE)
    assert torch.equal(torch.random.get_rng_state(), before)
    real = build_model(name, SHAPE, seed=0)
    assert {k: v.shape for k, v in bare.state_dict().items()} == {
        k: v.shape for k, v in real.state_dict().items()
    }
    assert all(p.is_meta for p in bare.parameters())
    bare.load_state_dict(real.state_dict(), assign=True)
    bare.eval(), real.eval()
    inputs = torch.rand(2, 3, 32, 32)
    assert torch.equal(bare(inputs), real(inputs))


def test_real_weights_are_filled_inside_too() -> None:
    with skeleton():
        weights = torch.empty(1000, device="cpu").normal_()
    assert 0.8 < float(weights.std()) < 1.2


def test_a_blank_run_has_a_real_ones_shape_and_leaves_the_skeleton_as_it_was() -> None:
    with skeleton():
        bare = Kept()
    bare.eval()
    assert run_blank(bare, blank).shape == (2, 900)
    assert run_blank(bare, blank, "maps").shape == (2, 4, 15, 15)
    assert all(item.is_meta for item in (*bare.parameters(), *bare.buffers()))
    assert bare.again.weight is bare.tied.weight


def test_a_module_with_weights_runs_with_them() -> None:
    module = Kept().eval()
    with torch.no_grad():
        module.first.bias.fill_(2.0)
        module.first.weight.zero_()
    out = run_blank(module, blank, "maps")
    assert not out.requires_grad
    assert torch.equal(out, torch.full_like(out, 2.0))
    assert module.seen.tolist() == [0, 0, 0]


def test_what_a_module_raises_comes_through() -> None:
    with skeleton():
        bare = nn.Linear(5, 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run_blank(bare, lambda device: torch.zeros(2, 4, device=device))
    assert bare.weight.is_meta
