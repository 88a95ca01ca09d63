"""Every image model of timm by its name, as ``timm/resnet18d``; needs the extra ``timm``.

Source: R. Wightman, PyTorch Image Models (doi 10.5281/zenodo.4414861). A model is built without its
classifier, with random initial weights, for the data's channels and image size: convolutional
networks run on any size that leaves them a pixel, and those with learned positions are built for
the size. Where a model cannot be, the error names a size to set.

``timm/resnet18d@/path/model.safetensors`` loads weights, never from a hub. Every entry has to
fit, except those of the classifier, which are left out. Such a model has the weights' channels
(grey images are given them) and normalises images as the weights expect, but does not resize them:
weights with positions need ``image-size`` to be their own size. A name may carry timm's tag of the
weights (``timm/vit_tiny_patch16_224.augreg_in21k``), which says how images are normalised.

timm is imported when one of its names is looked up, not before: it takes seconds.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from models.adapters import add_adapters
from models.base import Backbone, InputShape, ModelError
from models.build import proven
from models.image_network import (
    ImageNetwork,
    Pixels,
    StageNetwork,
    accepted_channels,
    keep_buffers,
)
from models.libraries import is_installed, library
from models.registry import ModelInfo, register_collection
from models.skeleton import skeleton
from models.weight_files import fill, read_safetensors

PREFIX = "timm/"

_NAME = re.compile(r"[a-z0-9_]+(\.[a-zA-Z0-9_]+)?")
_DECODER_WIDTH = 96
_REFUSED = {
    "convit": "it changes its own state when it sees the first images",
    "efficientvim": "it has weights that no feature depends on",
}
"""Families that break the contract of `models.base`, and how."""
_SIZES = (32, 35, 42, 48, 56, 64, 84, 96, 112, 128, 160, 192, 224, 240, 256, 288, 336, 384, 448)
"""What is tried for an image size that works: multiples of 7, 14, 16 and 32 among them."""


class TimmNetwork(ImageNetwork):
    """A model of timm without its classifier."""

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``."""
        raw: Tensor = self.net(self.prepare(x))
        return raw


class TimmStages(nn.Module):
    """A model of timm cut down to its feature maps at several scales.

    Parameters
    ----------
    net : nn.Module
        The model.
    indices : list of int
        Which of its stages are wanted, from fine to coarse.
    widths : list of int
        Their channels.
    """

    def __init__(self, net: Any, indices: list[int], widths: list[int]) -> None:
        super().__init__()
        self.net = net
        self.indices, self.widths = indices, widths

    def forward(self, x: Tensor) -> list[Tensor]:
        """Images ``(N, channels, S, S)``, prepared, to feature maps ``(N, width, s, s)``."""
        maps: list[Tensor] = self.net.forward_intermediates(
            x, indices=self.indices, intermediates_only=True, output_fmt="NCHW"
        )
        return maps


@dataclass(frozen=True)
class TimmFactory:
    """Makes a backbone of a model of timm; equal for equal names.

    Attributes
    ----------
    name : str
        timm's name, with or without a tag.
    """

    name: str

    def __call__(
        self, shape: InputShape, *, place: str = "", lora_rank: int = 0, maps: bool = False
    ) -> Backbone:
        """Build it for the data; with `maps`, its feature maps with a decoder on top."""
        settings = _settings(self.name)
        channels = accepted_channels(_colours(settings), shape, place) if place else shape.channels
        net: Any = _create(self.name, shape.image_size, channels)
        if place and not torch.empty(0).is_meta:
            self._fill(net, place, shape)
        width = _DECODER_WIDTH if maps else int(net.head_hidden_size)
        if maps:
            net = _feature_maps(net)
        keep_buffers(net)
        if place:
            add_adapters(net, lora_rank)
        pixels = Pixels(tuple(settings.mean), tuple(settings.std)) if place else Pixels()
        if maps:
            return StageNetwork(net, width, net.widths, channels, None, pixels)
        return TimmNetwork(net, width, channels, None, pixels)

    def advice(self, shape: InputShape) -> str:
        """Name an image size that the model can be built for and run on."""
        size = _size_that_works(self.name, shape.image_size, shape.channels)
        if size is None or size == shape.image_size:
            return "choose another model"
        return f"set image-size={size}, which it takes"

    def _fill(self, net: nn.Module, place: str, shape: InputShape) -> None:
        settings = _settings(self.name)
        classifier = settings.classifier or ()
        names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
        own = settings.input_size[-1]
        remedy = "these are the weights of another model"
        if own != shape.image_size:
            remedy = f"if they are for {own}x{own} images, set image-size={own}; else {remedy}"
        fill(net, read_safetensors(place), f"{place}, {self.name}", ignored=names, remedy=remedy)


def look_up(name: str) -> ModelInfo:
    """Look up ``"timm/NAME"``; where timm is not installed, any name that could be one.

    A server needs no timm: clients build their models.

    Raises
    ------
    ModelError
        timm has no such model, with the nearest names.
    """
    own = name.removeprefix(PREFIX)
    for family, reason in _REFUSED.items():
        if own.startswith(family):
            raise ModelError(f"model {name!r} cannot be used here: {reason}; choose another model")
    if not _NAME.fullmatch(own):
        raise ModelError(
            f"model {name!r}: write {PREFIX}NAME with a name of timm in small letters; list them "
            f"with `wildflower models '{PREFIX}*'`"
        )
    if is_installed("timm"):
        _check_name(own)
    factory = TimmFactory(own)
    return ModelInfo(
        name, factory, f"timm's {own}, extra timm", pretrained=True, segments=True,
        places=("WEIGHTS.safetensors",), extra="timm", needs=("timm",),
        advice=factory.advice,
    )  # fmt: skip


def timm_names() -> Sequence[str]:
    """Return timm's names, without tags, each after the prefix."""
    return [PREFIX + name for name in library("timm", "timm").list_models()]


@lru_cache
def _check_name(name: str) -> None:
    timm = library("timm", "timm")
    if not timm.is_model(name):
        nearest = difflib.get_close_matches(name.partition(".")[0], timm.list_models())
        advice = f"did you mean {' or '.join(PREFIX + found for found in nearest)}? "
        raise ModelError(
            f"model {PREFIX + name!r} is unknown to timm {timm.__version__}; "
            f"{advice if nearest else ''}list its models with `wildflower models '{PREFIX}*'`"
        )
    architecture, _, tag = name.partition(".")
    tags = [found.partition(".")[2] for found in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        known = f"; its tags are {', '.join(tags)}" if tags else ""
        raise ModelError(
            f"model {PREFIX + name!r}: timm knows no weights {tag!r} of {architecture}{known}"
        )


def _settings(name: str) -> Any:
    """Return what timm knows about a model's weights: sizes, mean, deviation, classifier."""
    return library("timm.models", "timm").get_pretrained_cfg(name)


def _colours(settings: Any) -> int:
    return int(settings.input_size[0])


def _create(name: str, size: int, channels: int) -> nn.Module:
    settings = _settings(name)
    # Only models that are built for one size take it; at their own they need not be told.
    fixed = settings.fixed_input_size and size != settings.input_size[-1]
    extra = {"img_size": size} if fixed else {}
    net: nn.Module = library("timm", "timm").create_model(
        name, pretrained=False, num_classes=0, in_chans=channels, **extra
    )
    _refuse_lost_pixels(net, size)
    return net


def _refuse_lost_pixels(net: nn.Module, size: int) -> None:
    """Raise where patches would not reach the images' right and lower edge."""
    first = next((module for module in net.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None or first.kernel_size != first.stride or first.padding != (0, 0):
        return
    patch = first.kernel_size[0]
    if size % patch:
        raise ValueError(f"its patches of {patch} pixels do not cover images of {size}")


def _feature_maps(net: Any) -> TimmStages:
    """Cut a model down to its feature maps, one of every size.

    Raises
    ------
    ModelError
        timm cannot take feature maps from this model.
    """
    info = getattr(net, "feature_info", None)
    if not info or not hasattr(net, "forward_intermediates"):
        raise ModelError(
            "timm takes no feature maps from it, which segmentation needs; choose another model"
        )
    stages = list(getattr(info, "info", info))
    last = {stage["reduction"]: index for index, stage in enumerate(stages)}
    indices = sorted(last.values())
    widths = [int(stages[index]["num_chs"]) for index in indices]
    # It renumbers them where it can drop what comes after the last.
    indices = net.prune_intermediate_layers(indices, prune_norm=True, prune_head=True)
    return TimmStages(net, indices, widths)


@lru_cache(maxsize=64)
def _size_that_works(name: str, size: int, channels: int) -> int | None:
    """Return the least of some image sizes, from `size` on, that a model takes."""
    own = int(_settings(name).input_size[-1])
    for candidate in sorted({*_SIZES, own}):
        if candidate >= size and _works(name, candidate, channels):
            return candidate
    return own if own != size else None


def _works(name: str, size: int, channels: int) -> bool:
    try:
        with skeleton(), torch.no_grad(), proven():
            net = _create(name, size, channels).eval()
            return tuple(net(torch.zeros(2, channels, size, size)).shape) == (
                2,
                net.head_hidden_size,
            )
    except Exception:  # whatever a library raises, the size is not one that works
        return False


register_collection("timm", look_up)
