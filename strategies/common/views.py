"""Random views of examples: what SimCLR aligns, and what semi-supervised learning learns from."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

VIEW_SCALE = (0.2, 1.0)
VIEW_RATIO = 4 / 3
VIEW_JITTER = 0.4
TOKEN_DROP = 0.2


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
