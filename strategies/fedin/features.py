"""What FedIN exchanges beside weights: pairs of features at a network's cut.

A pair is one example's s_in, the stem's feature maps, and s_out, the head's input (FedIN, arXiv
2304.00759). Here are their shape, payload and noise, and how a pass over others' pairs leaves
BatchNorm alone. The server's pool of them is in `feature_pool`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from models import InputShape, ModelError, Shape, SplitModel, Splittable
from models.build import blank
from models.skeleton import run_blank
from strategies.base.payload import array
from strategies.base.treatments import VALUE
from strategies.common.layerwise import WeightsPayload


@dataclass(frozen=True)
class FeatureShape:
    """What one pair consists of: s_in (channels, size, size) and s_out (width,)."""

    channels: int
    size: int
    width: int

    def __str__(self) -> str:
        return f"{self.channels}x{self.size}x{self.size} maps and {self.width} features"

    def no_pairs(self) -> tuple[Tensor, Tensor]:
        """Return s_in and s_out of zero examples, which still tell the shape."""
        return torch.empty(0, self.channels, self.size, self.size), torch.empty(0, self.width)


@dataclass
class FeaturesPayload(WeightsPayload):
    """Weights, and m pairs: s_in (m, channels, size, size) and s_out (m, width), float32."""

    s_in: NDArray[Any] = array("m", "channels", "size", "size", protect=VALUE)
    s_out: NDArray[Any] = array("m", "width", protect=VALUE)

    @property
    def shape(self) -> FeatureShape:
        """The shape of a pair, also where there is none."""
        return FeatureShape(self.s_in.shape[1], self.s_in.shape[2], self.s_out.shape[1])

    def batches(self, size: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """Return copies of the pairs on a device, in batches of `size` or, the last, fewer."""
        s_in, s_out = (torch.tensor(item, device=device) for item in (self.s_in, self.s_out))
        maps = s_in.to(memory_format=torch.channels_last)
        starts = range(0, len(maps), size)
        return [(maps[i : i + size], s_out[i : i + size]) for i in starts]


def feature_shape(model: SplitModel, images: Shape) -> FeatureShape:
    """Return the shapes at a model's cut; the model may be a skeleton.

    Raises
    ------
    ModelError
        Naming the model, if it has no cut, or its stem does not give square feature maps.
    """
    if not isinstance(model, Splittable) or not isinstance(images, InputShape):
        raise ModelError(
            f"model {model.name} cannot be cut after its stem; choose one of the ResNet or CNN "
            "families, or let its backbone subclass SplittableBackbone (stem and body)"
        )
    training = model.training
    model.eval()  # running statistics stay as they are
    shape = tuple(run_blank(model, partial(blank, images), "stem").shape)
    model.train(training)
    if len(shape) != 4 or shape[2] != shape[3]:
        raise ModelError(
            f"model {model.name}: its stem gives {shape} for 2 images, needed are square feature "
            "maps (2, c, s, s); cut it elsewhere, or choose another model"
        )
    return FeatureShape(shape[1], shape[2], model.feature_dim)


@dataclass(frozen=True)
class Noise:
    """FedIN (+Noise): features + level * sigma * z, z ~ N(0, 1).

    Attributes
    ----------
    level : float
        0.8 in the paper's privacy study; 0 changes nothing.
    sigma : str
        "tensor": one standard deviation, of all elements; "channel": one of each channel or
        feature. Of the given batch, dividing by the count, and constant to the gradient.
    generator : torch.Generator
        Draws z on the CPU, so that all devices draw the same.
    """

    level: float
    sigma: str
    generator: torch.Generator

    def __call__(self, features: Tensor) -> Tensor:
        """Return noised maps (N, c, s, s) or vectors (N, d)."""
        if not self.level:
            return features
        dims = [d for d in range(features.dim()) if self.sigma == "tensor" or d != 1]
        deviation = features.detach().float().std(dims, correction=0, keepdim=True)
        z = torch.randn(features.shape, generator=self.generator).to(features.device)
        return features + self.level * deviation * z


@contextmanager
def own_statistics(norms: Sequence[_BatchNorm], examples: int) -> Iterator[None]:
    """Let BatchNorm layers normalise a pass by its own batch, the running statistics untouched.

    Statistics of one example are undefined; the running ones stand in.
    """
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = examples > 1, False
    try:
        yield
    finally:
        for norm, (training, tracking) in zip(norms, before, strict=True):
            norm.training, norm.track_running_stats = training, tracking
