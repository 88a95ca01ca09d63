"""Augmentation of training batches, and views of examples, from the client's private stream.

`crop-flip-erase` is FedMRL's recipe and `crop-flip-cutout` InCo's (FedIN's study): a random crop
after padding by 4 pixels, a horizontal flip, and one erased rectangle or a 16-pixel square. All
act on normalised images, where 0 is mid-grey. Views are what contrastive and semi-supervised
learning see of one example.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4
ERASE_SCALE = (0.04, 0.2)
ERASE_RATIO = (0.5, 2.0)
ERASE_PROBABILITY = 0.5
CUTOUT = 16
VIEW_SCALE = (0.2, 1.0)
VIEW_RATIO = 4 / 3
VIEW_JITTER = 0.4
TOKEN_DROP = 0.2


def augment(recipe: str, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return augmented copies of normalised images (B, C, H, W); "none" returns them unchanged.

    Every image has its own draws. The draws are made on the CPU, so a GPU run sees the same ones.
    """
    if recipe == "none":
        return images
    if recipe == "crop-flip-erase":  # in FedMRL's order, so that the crop can cut the rectangle
        return _crop(_erase(_flip(images, generator), generator), generator)
    images = _flip(_crop(images, generator), generator)
    if recipe == "crop-flip-cutout":
        return _cutout(images, generator)
    return images


def resized_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return one of SimCLR's views of normalised images (B, C, H, W).

    A window of 20 to 100 % of the area, its sides' ratio between 3:4 and 4:3, stretched to the
    whole image; a horizontal flip; contrast and brightness changed by up to 40 %. No hue: half
    the data sets are grey.
    """
    batch, _, height, width = images.shape
    draws = torch.rand(7, batch, generator=generator)
    area = VIEW_SCALE[0] + draws[0] * (VIEW_SCALE[1] - VIEW_SCALE[0])
    ratio = torch.exp((2 * draws[1] - 1) * math.log(VIEW_RATIO))
    tall, wide = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
    theta = torch.zeros(batch, 2, 3)
    theta[:, 0, 0] = wide * torch.where(draws[2] < 0.5, -1.0, 1.0)
    theta[:, 1, 1] = tall
    theta[:, 0, 2] = (2 * draws[3] - 1) * (1 - wide)
    theta[:, 1, 2] = (2 * draws[4] - 1) * (1 - tall)
    grid = F.affine_grid(theta.to(images), [batch, 1, height, width], align_corners=False)
    views = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    contrast, shift = ((draws[5:] * 2 - 1) * VIEW_JITTER).to(images)[:, :, None, None, None]
    jittered: Tensor = views * (1 + contrast) + shift
    return jittered


def drop_tokens(tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Return token ids (B, L) with each replaced by 0, the padding, with probability 0.2.

    The first token of a row stays, so that no row becomes empty.
    """
    dropped = torch.rand(tokens.shape, generator=generator) < TOKEN_DROP
    dropped[:, 0] = False
    return tokens.masked_fill(dropped.to(tokens.device), 0)


def _crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Pad by `PADDING` and cut a window of the old size out at a random place."""
    batch, _, height, width = images.shape
    padded = F.pad(images, (PADDING,) * 4)
    offsets = torch.randint(0, 2 * PADDING + 1, (2, batch, 1), generator=generator)
    rows = (offsets[0] + torch.arange(height)).to(images.device)
    columns = (offsets[1] + torch.arange(width)).to(images.device)
    index = torch.arange(batch, device=images.device)[:, None, None]
    cut = padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2)


def _flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability one half."""
    chosen = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(-1), images)


def _erase(images: Tensor, generator: torch.Generator) -> Tensor:
    """Set a random rectangle to 0 with probability `ERASE_PROBABILITY` (RandomErasing)."""
    batch, _, height, width = images.shape
    draws = torch.rand(5, batch, generator=generator)
    area = height * width * (ERASE_SCALE[0] + draws[0] * (ERASE_SCALE[1] - ERASE_SCALE[0]))
    low, high = map(math.log, ERASE_RATIO)
    ratio = torch.exp(low + draws[1] * (high - low))
    tall = (area * ratio).sqrt().round().clamp(1, height)
    wide = (area / ratio).sqrt().round().clamp(1, width)
    tall = torch.where(draws[4] < ERASE_PROBABILITY, tall, 0)
    top = (draws[2] * (height - tall + 1)).floor()
    left = (draws[3] * (width - wide + 1)).floor()
    return _blank(images, top, left, tall, wide)


def _cutout(images: Tensor, generator: torch.Generator) -> Tensor:
    """Set a square of side `CUTOUT` around a random centre to 0; it may hang over the edge."""
    batch, _, height, width = images.shape
    draws = torch.rand(2, batch, generator=generator)
    side = torch.full((batch,), float(CUTOUT))
    top = (draws[0] * height).floor() - CUTOUT // 2
    left = (draws[1] * width).floor() - CUTOUT // 2
    return _blank(images, top, left, side, side)


def _blank(images: Tensor, top: Tensor, left: Tensor, tall: Tensor, wide: Tensor) -> Tensor:
    _, _, height, width = images.shape
    row, column = torch.arange(height)[None, :], torch.arange(width)[None, :]
    rows = (row >= top[:, None]) & (row < (top + tall)[:, None])
    columns = (column >= left[:, None]) & (column < (left + wide)[:, None])
    mask = rows[:, None, :, None] & columns[:, None, None, :]
    return images.masked_fill(mask.to(images.device), 0.0)
