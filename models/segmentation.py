"""Small encoder-decoder networks whose feature maps a segmentation head reads.

Source: Lin et al., Feature Pyramid Networks for Object Detection (CVPR 2017), with three levels
and narrow layers. Group normalisation (Wu and He, ECCV 2018) instead of BatchNorm: it keeps no
statistics, so that public images seen in a contrastive phase leave no trace, and a client with a
single example trains like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from models.base import Backbone, InputShape, ModelError
from models.registry import register_model

_GROUPS = 8
_SMALLEST_IMAGE = 8  # three halvings leave one pixel


class PyramidNet(Backbone):
    """Encoder at 1/2, 1/4 and 1/8 of the resolution, and a decoder back to 1/2 with skips.

    Parameters
    ----------
    shape : InputShape
        Gives the channels; any image size from 8 runs.
    widths : sequence of int
        Channels of the encoder's levels, multiples of 8.
    depth : int
        Convolutions a level, the first of them with stride 2.
    outputs : int
        Channels of the decoder and of `maps`, ``raw_dim``; a multiple of 8.
    """

    def __init__(self, shape: InputShape, widths: Sequence[int], depth: int, outputs: int) -> None:
        super().__init__(raw_dim=outputs)
        if shape.image_size < _SMALLEST_IMAGE:
            raise ModelError(
                f"three halvings need images of at least {_SMALLEST_IMAGE}x{_SMALLEST_IMAGE} pixels"
            )
        inputs = (shape.channels, *widths[:-1])
        self.levels = nn.ModuleList(
            nn.Sequential(
                _convolution(before, width, stride=2),
                *(_convolution(width, width) for _ in range(depth - 1)),
            )
            for before, width in zip(inputs, widths, strict=True)
        )
        self.skips = nn.ModuleList(nn.Conv2d(width, outputs, 1) for width in widths)
        self.smooth = nn.ModuleList(_convolution(outputs, outputs) for _ in widths[1:])
        self.norm = nn.GroupNorm(_GROUPS, outputs)

    def maps(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to ``(N, raw_dim, s, s)``, s = S / 2 rounded up."""
        levels = []
        for level in self.levels:
            x = level(x)
            levels.append(x)
        out: Tensor = self.skips[-1](levels[-1])
        for index in range(len(levels) - 2, -1, -1):  # from coarse to fine
            # Smoothing before the enlargement costs a quarter of smoothing after it.
            coarse = self.smooth[index](out)
            skip = self.skips[index](levels[index])
            out = skip + F.interpolate(coarse, skip.shape[2:], mode="bilinear", align_corners=False)
        return F.relu(self.norm(out))

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``, the mean of `maps`."""
        return self.maps(x).mean((2, 3))


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(_GROUPS, outputs),
        nn.ReLU(),
    )


for _name, _widths, _depth, _outputs in (
    ("seg-small", (16, 32, 64), 1, 64),
    ("seg-large", (32, 64, 128), 2, 96),
):
    register_model(
        _name, description=f"encoder-decoder with skips, {_depth} convolution(s) a level"
    )(partial(PyramidNet, widths=_widths, depth=_depth, outputs=_outputs))
