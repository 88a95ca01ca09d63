"""Parts of a wide network: which of its channels a narrower one has.

A part of rate r has ``ceil(r n)`` of the n channels of every layer; the first layer still reads all
colours of an image, and the head still scores all classes. Which channels of a layer are in a part
depends on n alone: a window of them, counted on from `offset` and around the end. So the channels
that one layer leaves out are those that the next layer does not read, also across shortcuts.

Sources: HeteroFL (Diao et al., ICLR 2021, arXiv 2010.01264) takes the first channels, offset 0;
FedRolex (Alam et al., NeurIPS 2022, arXiv 2212.01548) moves the window on by one in every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models.base import ChannelBackbone, ModelError, SplitModel

Spans = tuple[int, ...]
"""Of a tensor, dimension by dimension: how many consecutive values belong to one channel; 0 where
the dimension has no channels and every part has the whole of it."""
Indices = tuple[NDArray[np.int64], ...]
"""Positions of a part in the leading dimensions of a tensor; it has the whole of the others."""

_ROUNDING = 1e-9
"""0.07 x 100 is 7.000000000000001, which is 7 channels."""


@dataclass(frozen=True)
class Part:
    """A part of a network.

    Attributes
    ----------
    rate : float
        Share of every layer's channels, above 0 and at most 1.
    offset : int
        The first channel of the window.
    depth : int
        How many stages it has, for networks with exits (`strategies.scalefl`); 0 is all.
    """

    rate: float
    offset: int = 0
    depth: int = 0

    @property
    def at_start(self) -> Part:
        """The part of the same shapes whose window begins with the first channel."""
        return replace(self, offset=0)


def kept(channels: int, rate: float) -> int:
    """Return how many of a layer's channels a part has, at least one."""
    return max(1, math.ceil(rate * channels - _ROUNDING))


def window(channels: int, part: Part) -> NDArray[np.int64]:
    """Return which of a layer's channels a part has, in ascending order."""
    count = kept(channels, part.rate)
    return np.sort((part.offset + np.arange(count, dtype=np.int64)) % channels)


def indices_of(shape: tuple[int, ...], spans: Spans, part: Part) -> Indices:
    """Return where a part lies in a tensor of this shape."""
    found = []
    for size, span in zip(shape, spans, strict=True):
        if not span:
            found.append(np.arange(size, dtype=np.int64))
            continue
        channels = window(size // span, part)
        found.append((channels[:, None] * span + np.arange(span)).reshape(-1))
    while found and not spans[len(found) - 1]:
        found.pop()  # the trailing dimensions that it has whole
    return tuple(found)


def taken(array: NDArray[Any], indices: Indices) -> NDArray[Any]:
    """Return the values at these indices, copied unless they are all of them."""
    for axis, positions in enumerate(indices):
        if len(positions) < array.shape[axis]:
            array = array.take(positions, axis=axis)
    return array


def channel_spans(model: SplitModel) -> dict[str, Spans]:
    """Return the spans of every entry of a model's state.

    Raises
    ------
    ModelError
        If its channels cannot be cut.
    """
    if not isinstance(model.backbone, ChannelBackbone):
        raise ModelError(
            f"model {model.name!r} has no channels that can be cut; choose a ResNet, such as "
            "resnet18 or resnet152, or a CNN, such as cnn1 or fedavgcnn"
        )
    spans: dict[str, Spans] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.startswith("backbone."):  # scores all classes
            spans |= {f"{name}.weight": (0, 1), f"{name}.bias": (0,)}
    channels = 0  # of the layer before, none before the first
    for name, module in model.backbone.named_modules(prefix="backbone"):
        if isinstance(module, nn.Conv2d):
            spans[f"{name}.weight"] = (1, 1 if channels else 0, 0, 0)
            channels = module.out_channels
        elif isinstance(module, nn.Linear):
            spans[f"{name}.weight"] = (1, module.in_features // channels)
            channels = module.out_features
        for entry, item in _own_entries(module):
            spans.setdefault(f"{name}.{entry}", (1,) * item.dim())
    return {name: spans[name] for name in model.state_dict()}


def _own_entries(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return a module's own parameters and buffers, without its children's."""
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def part_shape(shape: tuple[int, ...], spans: Spans, rate: float) -> tuple[int, ...]:
    """Return the shape of a part of a tensor."""
    return tuple(
        kept(size // span, rate) * span if span else size
        for size, span in zip(shape, spans, strict=True)
    )


def narrow(model: SplitModel, spans: Mapping[str, Spans], rate: float) -> None:
    """Give a model on the meta device the shapes of its part of this rate, in place."""
    for name, module in model.named_modules():
        for entry, item in _own_entries(module):
            shape = part_shape(tuple(item.shape), spans[f"{name}.{entry}"], rate)
            empty = torch.empty(shape, dtype=item.dtype, device="meta")
            made = nn.Parameter(empty) if isinstance(item, nn.Parameter) else empty
            setattr(module, entry, made)
        _tell_sizes(module)
    model.raw_dim = kept(model.raw_dim, rate)
    setattr(model.backbone, "raw_dim", model.raw_dim)  # noqa: B010 - to mypy it is any module
    model.feature_dim = model.head.in_features


def _tell_sizes(module: nn.Module) -> None:
    """Let a layer say the sizes that its weights have."""
    if isinstance(module, nn.Conv2d):
        module.out_channels, module.in_channels = module.weight.shape[:2]
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _BatchNorm):
        module.num_features = len(module.weight)
