"""Small Vision Transformers for images of 16 to 64 pixels.

Source: Dosovitskiy et al., An Image is Worth 16x16 Words (ICLR 2021). Departures, for training from
scratch on a CPU: small widths, an 8x8 grid of patches or less whatever the image size, and the
mean of the patches' outputs instead of a class token. The mean also makes the outputs feature maps
that a segmentation head can read.
"""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from models.base import Backbone, InputShape
from models.registry import register_model
from models.transformer import Encoder

_GRID = 8  # patches a side, at most


class SmallViT(Backbone):
    """Patches, transformer blocks, mean: images ``(N, channels, S, S)`` to ``(N, width)``.

    Patches are ``ceil(S / 8)`` pixels wide: 2 at 16 pixels, 4 at 28 and 32, 8 at 64. Images whose
    size is no multiple of the patch are padded with zeros.

    Parameters
    ----------
    shape : InputShape
        Gives channels and image size.
    width, depth, heads, expansion : int
        See `models.transformer.Block`.
    """

    def __init__(
        self, shape: InputShape, width: int, depth: int, heads: int, expansion: int
    ) -> None:
        super().__init__(raw_dim=width)
        self.patch = math.ceil(shape.image_size / _GRID)
        self.padding = -shape.image_size % self.patch
        self.grid = (shape.image_size + self.padding) // self.patch
        self.embed = nn.Conv2d(shape.channels, width, self.patch, stride=self.patch)
        self.encoder = Encoder(self.grid**2, width, heads, depth, expansion)

    def maps(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to the patches' features ``(N, width, grid, grid)``."""
        if self.padding:
            before, after = self.padding // 2, self.padding - self.padding // 2
            x = F.pad(x, (before, after, before, after))
        patches = self.embed(x).flatten(2).transpose(1, 2).contiguous()  # (N, grid^2, width)
        encoded: Tensor = self.encoder(patches)
        return encoded.transpose(1, 2).reshape(len(x), self.raw_dim, self.grid, self.grid)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, width)``, the mean of `maps`."""
        return self.maps(x).mean((2, 3))


for _name, _width, _depth, _heads in (("vit-tiny", 64, 3, 2), ("vit-small", 96, 4, 3)):
    register_model(
        _name, description=f"small ViT: {_depth} blocks of width {_width}, 8x8 patches or fewer"
    )(partial(SmallViT, width=_width, depth=_depth, heads=_heads, expansion=2))
