"""LPIPS: how unlike two images look to a network that people's judgements were fitted to.

Zhang et al., The Unreasonable Effectiveness of Deep Features as a Perceptual Metric, CVPR 2018
(arXiv 1801.03924), version 0.1 on AlexNet: the library `lpips` has the fitted layers, torchvision
the architecture, and the weights of AlexNet come from a file.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from models.base import ModelError
from models.libraries import library
from models.weight_files import fill, read_safetensors

SMALLEST = 64
"""Pixels a side; smaller images are enlarged, since AlexNet's last maps would have no pixel."""


class Perceptual:
    """LPIPS with weights from a file.

    Parameters
    ----------
    weights : Path
        Torchvision's AlexNet for ImageNet, as its ``.pth`` of tensors or as safetensors.

    Raises
    ------
    ModelError
        There is no such file, it is damaged, or holds something else; or `lpips` is missing.
    """

    def __init__(self, weights: Path) -> None:
        self._net = _without_weights()
        trunk = self._net.net
        known = _read(weights.expanduser())
        # lpips names layers by slice and place (slice3.6.weight), torchvision by place alone
        named = {
            name: known[found]
            for name in trunk.state_dict()
            if (found := f"features.{name.partition('.')[2]}") in known
        }
        fill(trunk, named, str(weights), remedy="give those of torchvision's AlexNet")

    @torch.no_grad()
    def distance(self, found: NDArray[np.uint8], truth: NDArray[np.uint8]) -> float:
        """Return the LPIPS of two images (C, H, W) of one or three channels; 0 where equal."""
        one, other = (_prepared(image) for image in (found, truth))
        return float(self._net(one, other))


def _without_weights() -> Any:
    """Return the metric with its own layers and a trunk that has not been trained."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # it names torchvision's arguments as they were once
        return library("lpips", "attack").LPIPS(net="alex", pnet_rand=True, verbose=False)


def _read(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        return read_safetensors(str(path))
    if not path.is_file():
        raise ModelError(f"there is no file {str(path)!r} on this machine; copy AlexNet's there")
    try:
        weights: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as cause:
        raise ModelError(f"{str(path)!r} is no file of tensors alone: {cause}") from cause
    if not isinstance(weights, Mapping):
        raise ModelError(f"{str(path)!r} holds no weights by name, which a state dict has")
    return weights


def _prepared(image: NDArray[np.uint8]) -> Tensor:
    """Return an image (C, H, W) as (1, 3, H', W') in [-1, 1], both sides at least `SMALLEST`."""
    pixels = torch.from_numpy(image).float()[None] / 127.5 - 1
    if min(pixels.shape[2:]) < SMALLEST:
        scale = SMALLEST / min(pixels.shape[2:])
        sides = [max(SMALLEST, round(side * scale)) for side in pixels.shape[2:]]
        pixels = functional.interpolate(pixels, sides, mode="bilinear", align_corners=False)
    return pixels.expand(-1, 3, -1, -1)
