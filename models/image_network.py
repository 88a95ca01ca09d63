"""Networks that other libraries built, with what their weights expect of images in front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from models.base import Backbone, InputShape, ModelError


@dataclass(frozen=True)
class Pixels:
    """How a pretrained model wants its images.

    Attributes
    ----------
    mean, deviation : tuple of float, or None
        Of the channels, of pixels in [0, 1]; None: images stay as Wildflower has them, in [-1, 1].
    size : int, or None
        Height and width that its image processor names.
    """

    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    size: int | None = None


class ImageNetwork(Backbone):
    """A network for images, with their preparation in front.

    Images have pixels in [-1, 1]. Where the network was pretrained they are given its channels,
    enlarged or reduced to its size, and normalised as its weights expect.

    BatchNorm layers whose weights are frozen keep their statistics in training too: they belong to
    the pretrained base as its weights do.

    Parameters
    ----------
    net : nn.Module
        What is called on prepared images.
    raw_dim : int
        Width of the raw feature.
    channels : int
        What `net` reads; grey images are given as many.
    size : int or None
        Height and width that images are brought to; None leaves them.
    pixels : Pixels
        Mean and deviation, if the network wants others than [-1, 1].
    """

    mean: Tensor | None
    deviation: Tensor | None

    def __init__(
        self, net: nn.Module, raw_dim: int, channels: int, size: int | None, pixels: Pixels
    ) -> None:
        super().__init__(raw_dim)
        self.net = net
        self.channels, self.size = channels, size
        for name, values in (("mean", pixels.mean), ("deviation", pixels.deviation)):
            constant = None if values is None else torch.tensor(values).view(-1, 1, 1)
            self.register_buffer(name, constant)

    def prepare(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to what the network was trained on."""
        if x.shape[1] == 1 and self.channels > 1:
            x = x.expand(-1, self.channels, -1, -1)
        if self.size is not None and x.shape[-1] != self.size:
            shrinks = x.shape[-1] > self.size
            size = (self.size, self.size)
            x = F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=shrinks)
        if self.mean is not None and self.deviation is not None:
            x = ((x + 1) / 2 - self.mean) / self.deviation
        return x

    def train(self, mode: bool = True) -> ImageNetwork:
        """Switch to training, except for the BatchNorm layers of a frozen base."""
        super().train(mode)
        if mode:
            for module in self.net.modules():
                if isinstance(module, _BatchNorm) and not any(
                    parameter.requires_grad for parameter in module.parameters()
                ):
                    module.eval()
        return self


class StageNetwork(ImageNetwork):
    """A network that gives feature maps at several scales, and a decoder after SegFormer's.

    Source: the all-linear decoder of Xie et al. (SegFormer, NeurIPS 2021). Every stage is brought
    to ``raw_dim`` channels by a linear map and enlarged to the first stage's size; their sum is
    normalised in groups instead of batches, and rectified. The original concatenates and maps once
    more, which is a sum of linear maps as well. The decoder is never pretrained.

    Parameters
    ----------
    net, raw_dim, channels, size, pixels
        As in `ImageNetwork`; ``raw_dim`` is the width of the decoder.
    widths : sequence of int
        Channels of the stages, from fine to coarse.
    """

    def __init__(
        self,
        net: nn.Module,
        raw_dim: int,
        widths: Sequence[int],
        channels: int,
        size: int | None,
        pixels: Pixels,
    ) -> None:
        super().__init__(net, raw_dim, channels, size, pixels)
        self.decode = nn.ModuleList(nn.Conv2d(width, raw_dim, 1) for width in widths)
        self.norm = nn.GroupNorm(math.gcd(8, raw_dim), raw_dim)

    def stages(self, x: Tensor) -> Sequence[Tensor]:
        """Images ``(N, channels, S, S)`` to feature maps ``(N, width, s, s)``, fine to coarse."""
        stages: Sequence[Tensor] = self.net(self.prepare(x))
        return stages

    def maps(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to feature maps ``(N, raw_dim, s, s)``."""
        stages = self.stages(x)
        size = stages[0].shape[2:]
        total: Tensor = self.decode[0](stages[0])
        for decode, stage in zip(list(self.decode)[1:], stages[1:], strict=True):
            total = total + F.interpolate(decode(stage), size, mode="bilinear", align_corners=False)
        return F.relu(self.norm(total))

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``, the mean of `maps`."""
        return self.maps(x).mean((2, 3))


def accepted_channels(channels: int, shape: InputShape, who: str) -> int:
    """Return the channels of pretrained weights, which grey images can be given.

    Raises
    ------
    ModelError
        The data has other colours; `who` names the weights.
    """
    if shape.channels not in (1, channels):
        raise ModelError(
            f"{who!r} reads images of {channels} channels; give it those, or grey ones"
        )
    return channels


def keep_buffers(net: nn.Module) -> None:
    """Make all buffers part of the state, so that a skeleton can be filled from it."""
    for module in net.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, buffer.clone(), persistent=True)
