"""The generator of FedKTL's server at work, and its images as clients have them."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from data.public import to_grey
from models import ModelError
from models.image_generator import ImageGenerator, load_generator
from strategies.base.options import ConfigError
from strategies.base.rng import SERVER, derive_seed
from strategies.base.run_config import RunConfig
from strategies.common.server_models import ServerPlace
from strategies.common.training import EVALUATION_BATCH


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A generator on the server's device.

    Attributes
    ----------
    generator : ImageGenerator
        In evaluation mode.
    fingerprint : str
        16 hexadecimal digits over its weights and what it says of itself.
    device : torch.device
        Where it is.
    """

    generator: ImageGenerator
    fingerprint: str
    device: torch.device

    @torch.no_grad()
    def latents(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw latents (count, w), float32 on the CPU."""
        return self.generator.latents(count, rng).float().cpu()

    @torch.no_grad()
    def images(self, latents: Tensor, channels: int, side: int) -> NDArray[np.uint8]:
        """Return the images of latents (n, w) as clients have theirs, (n, channels, side, side)."""
        parts = [
            self.generator(part.to(self.device)).float().clamp(0, 1).mul(255).round().cpu()
            for part in latents.split(EVALUATION_BATCH)
        ]
        return fitted(torch.cat(parts).to(torch.uint8).numpy(), channels, side)


def open_source(run: RunConfig) -> Source:
    """Load the generator that a run names.

    Raises
    ------
    ConfigError
        If it names none, or one that cannot be had or used.
    """
    config = run.method_config
    if not config.generator:
        raise ConfigError(
            "fedktl.generator = '': the server needs a pretrained generator of images; name a "
            "factory as 'module:factory', and its weights by fedktl.generator-weights (see "
            "models/README.md, which also trains a small one)"
        )
    seed = derive_seed(run.seed, SERVER, 0, "generator")
    try:
        generator = load_generator(config.generator, config.generator_weights, seed)
    except ModelError as error:
        raise ConfigError(f"fedktl.generator: {error}") from error
    device = ServerPlace(run).device
    return Source(generator.to(device), _fingerprint(generator), device)


def _fingerprint(generator: ImageGenerator) -> str:
    told = generator.latent_dim, generator.channels, generator.image_size
    digest = hashlib.sha256(repr(told).encode())
    for name, item in generator.state_dict().items():
        digest.update(f"{name} {item.dtype} {tuple(item.shape)}".encode())
        digest.update(item.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def fitted(images: NDArray[np.uint8], channels: int, side: int) -> NDArray[np.uint8]:
    """Return images (n, c, s, s) with other channels and another size, as public items are.

    Colour becomes grey by its luminance, grey is repeated; sizes change by Pillow's bilinear
    filter, in whole numbers.
    """
    if images.shape[1] == 3 and channels == 1:
        images = to_grey(images)
    if images.shape[2] != side:
        planes = [
            np.asarray(Image.fromarray(plane).resize((side, side), Image.Resampling.BILINEAR))
            for plane in images.reshape(-1, *images.shape[2:])
        ]
        images = np.stack(planes).reshape(*images.shape[:2], side, side)
    return np.broadcast_to(images, (len(images), channels, side, side)).copy()
