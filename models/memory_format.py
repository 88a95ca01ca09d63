"""Channels last, in which convolutions are 7 to 40 % faster on a CPU, but where torch fails in it.

Channels last, torch 2.14 writes outside of its memory on a CPU, or does not return, in the backward
pass of a 1x1 convolution with stride 2 and few or odd channels, as narrow shortcuts are. It was
seen with 1 to 7 input channels, whatever the output, and with 12 to 23; never where both are
multiples of 8.

In bfloat16 the same torch computes a wrong gradient of the weight on a CPU where a 3x3 convolution
with stride 2 reads maps of a single pixel, as the last ones of a ResNet do of images of 16 pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Inputs = tuple[Tensor, ...]

_SAFE = 8
"""Convolutions whose channels are multiples of this are left as they are."""


def fails_channels_last(layer: nn.Module) -> bool:
    """Return whether a layer may be one of those in which torch fails on a CPU."""
    if not isinstance(layer, nn.Conv2d) or max(layer.stride) == 1 or layer.kernel_size != (1, 1):
        return False
    return layer.in_channels % _SAFE != 0 or layer.out_channels % _SAFE != 0


def to_channels_last(module: nn.Module, device: torch.device | None = None) -> None:
    """Move a module to a device and its convolutions to channels last, in place.

    Layers in which torch would fail keep their weights channels first, and from then on their
    inputs on a CPU are brought to that as well.
    """
    module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in filter(fails_channels_last, module.modules()):
        layer.to(memory_format=torch.contiguous_format)
        _see_to(layer, _channels_first)
    for layer in filter(fails_in_bfloat16, module.modules()):
        _see_to(layer, _two_pixels)


def fails_in_bfloat16(layer: nn.Module) -> bool:
    """Return whether torch may compute a wrong gradient of this layer in bfloat16 on a CPU."""
    return isinstance(layer, nn.Conv2d) and (layer.kernel_size, layer.stride, layer.padding) == (
        (3, 3), (2, 2), (1, 1)
    )  # fmt: skip


def _see_to(layer: nn.Module, hook: Callable[[nn.Module, Inputs], Inputs]) -> None:
    """Let a hook change a layer's inputs, once."""
    if hook not in layer._forward_pre_hooks.values():
        layer.register_forward_pre_hook(hook)


def _two_pixels(layer: nn.Module, inputs: Inputs) -> Inputs:
    """Put zeros beside a single pixel, which change neither the output nor its size."""
    if not torch.is_autocast_enabled("cpu"):
        return inputs
    alone = [x.shape[-2:] == (1, 1) and not x.is_cuda for x in inputs]
    return tuple(
        functional.pad(x, (0, 1, 0, 1)) if one else x for x, one in zip(inputs, alone, strict=True)
    )


def _channels_first(layer: nn.Module, inputs: Inputs) -> Inputs:
    # Not `contiguous()`: of one channel, both layouts count as that.
    first = torch.contiguous_format
    return tuple(x if x.is_cuda else x.clone(memory_format=first) for x in inputs)
