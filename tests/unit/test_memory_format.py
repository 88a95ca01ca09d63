"""Channels last for all convolutions but those in which torch corrupts memory on a CPU."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from models.memory_format import fails_channels_last, to_channels_last
from strategies.base.state import move_state


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "fails"),
    [
        ((4, 16), 1, 2, True),  # these end the process with a double free
        ((7, 40), 1, (2, 1), True),
        ((12, 23), 1, 2, True),  # was seen to hang
        ((16, 20), 1, 2, True),
        ((16, 32), 1, 2, False),
        ((24, 56), 1, 2, False),
        ((4, 16), 1, 1, False),
        ((4, 16), 3, 2, False),
    ],
)
def test_narrow_strided_1x1_convolutions_fail(
    channels: tuple[int, int], kernel: int, stride: int | tuple[int, int], fails: bool
) -> None:
    assert fails_channels_last(nn.Conv2d(*channels, kernel, stride)) is fails
    assert not fails_channels_last(nn.Linear(*channels))


@dataclasses.dataclass
class State:
    """A private state around a model of one's own."""

    model: nn.Sequential


def is_plain(item: Tensor) -> bool:
    """Whether a tensor lies channels first; of one channel, torch goes by the strides as well."""
    return item.stride() == torch.empty(item.shape).stride()


@pytest.mark.parametrize("channels", [1, 4])
def test_they_compute_channels_first_in_a_state(channels: int) -> None:
    """Without it, training this model ends the process: double free or corruption."""
    shortcut = nn.Conv2d(channels, 16, 1, stride=2)
    state = State(nn.Sequential(nn.Conv2d(3, channels, 3), shortcut, nn.Conv2d(16, 8, 3)))
    same = copy.deepcopy(state.model)
    for _ in range(2):  # a state is moved with every message
        state = move_state(state, torch.device("cpu"))
    assert len(shortcut._forward_pre_hooks) == 1
    seen: list[bool] = []
    shortcut.register_forward_hook(
        lambda own, inputs, output: seen.extend(map(is_plain, (own.weight, *inputs, output)))
    )
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for model, given in (
        (state.model, images.to(memory_format=torch.channels_last)),
        (same, images),
    ):
        model(given).square().sum().backward()
    assert seen == [True] * 3
    first = state.model[0].weight
    assert first.is_contiguous(memory_format=torch.channels_last)
    for own, other in zip(state.model.parameters(), same.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_a_copy_keeps_its_guard() -> None:
    model = nn.Sequential(nn.Conv2d(4, 16, 1, stride=2))
    to_channels_last(model)
    twin = copy.deepcopy(model)
    to_channels_last(twin)
    assert len(twin[0]._forward_pre_hooks) == 1


@pytest.mark.parametrize("size", [1, 2])
def test_a_gradient_of_a_single_pixel_is_right_in_bfloat16(size: int) -> None:
    """Without it, torch 2.14 leaves a part of the weight's gradient as it finds the memory."""
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False)
    plain = copy.deepcopy(layer)
    to_channels_last(layer)
    to_channels_last(layer)
    assert len(layer._forward_pre_hooks) == 1
    images = torch.randn(9, 64, size, size)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(images)
    wanted = plain(images)
    assert output.shape == wanted.shape
    torch.testing.assert_close(output.float(), wanted, rtol=0.02, atol=0.05)
    for found in (output.float(), wanted):
        found.sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad, rtol=0.02, atol=0.05)
