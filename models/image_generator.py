"""Generators of images from latents: the contract, how one is loaded, and a small one to train.

A method whose server has a pretrained generator (FedKTL) names it as ``module:factory``; the
factory takes nothing and returns an `ImageGenerator`. To use another library's network, wrap it:

.. code-block:: python

    class Wrapped(ImageGenerator):
        def __init__(self, network):
            super().__init__(latent_dim=network.w_dim, channels=3, image_size=network.side)
            self.network = network

        def latents(self, count, rng):  # of StyleGAN: through its mapping network
            return self.network.mapping(torch.randn(count, self.network.z_dim, generator=rng))

        def forward(self, latents):
            return (self.network.synthesis(latents).clamp(-1, 1) + 1) / 2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from models.base import ModelError
from models.build import private_stream
from models.own_code import OwnCodeError, load_own
from models.weight_files import fill, read_safetensors

TRIED = 16
"""Latents that a generator is tried on when it is loaded."""
_ROUNDING = 1e-3
"""How far an image's values may be outside of [0, 1]."""


class ImageGenerator(nn.Module):
    """Base of generators: latents ``(N, latent_dim)`` to images ``(N, channels, S, S)`` in [0, 1].

    It is used in evaluation mode, where an image must follow from its latent alone.

    Parameters
    ----------
    latent_dim : int
        w, the width of a latent.
    channels : int
        1 for grey images, 3 for colour.
    image_size : int
        S, height and width in pixels.
    """

    def __init__(self, latent_dim: int, channels: int, image_size: int) -> None:
        super().__init__()
        self.latent_dim, self.channels, self.image_size = latent_dim, channels, image_size

    def latents(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw latents ``(count, latent_dim)`` as the generator was trained with: N(0, 1).

        `rng` is a generator of the CPU. FedKTL compares latents with kernels of a width of about
        5, so that their distances should not be much above 10.
        """
        return torch.randn(count, self.latent_dim, generator=rng)

    def forward(self, latents: Tensor) -> Tensor:
        """Latents ``(N, latent_dim)`` to images ``(N, channels, S, S)``, floats in [0, 1]."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(latents)")


class SmallGenerator(ImageGenerator):
    """Images of 32 pixels from latents of width 32: a linear layer and four convolutions.

    `deploy.train_generator` trains one.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(latent_dim=32, channels=channels, image_size=32)
        self.start = nn.Linear(self.latent_dim, 64 * 4 * 4)
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(64, 64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, latents: Tensor) -> Tensor:
        """Latents ``(N, 32)`` to images ``(N, channels, 32, 32)``."""
        images: Tensor = self.layers(self.start(latents).unflatten(1, (64, 4, 4)))
        return images


def small() -> SmallGenerator:
    """Return an untrained `SmallGenerator` of grey images."""
    return SmallGenerator(channels=1)


def small_colour() -> SmallGenerator:
    """Return an untrained `SmallGenerator` of colour images."""
    return SmallGenerator(channels=3)


# Not looked up as own code: started in a clone, a run would find this file there a second time.
_BUILT_IN = {f"{__name__}:{factory.__name__}": factory for factory in (small, small_colour)}


def load_generator(address: str, weights: str = "", seed: int = 0) -> ImageGenerator:
    """Make a generator, fill it with weights, and try it.

    Parameters
    ----------
    address : str
        ``module:factory``, see `models.own_code`.
    weights : str
        A ``*.safetensors`` file; empty: those that the factory gives it.
    seed : int
        Of what the factory draws from torch's CPU stream.

    Returns
    -------
    ImageGenerator
        On the CPU, in evaluation mode, without gradients.

    Raises
    ------
    ModelError
        Naming the address or the file: there is no such factory, it fails or returns something
        else, weights do not fit, or latents or images are not as `ImageGenerator` says.
    """
    try:
        factory = _BUILT_IN.get(address) or load_own(address)
    except OwnCodeError as error:
        raise ModelError(str(error)) from error
    if not callable(factory):
        raise ModelError(f"{address!r} is a {type(factory).__name__}; expected a function")
    with private_stream(seed):
        try:
            made = cast(Callable[[], object], factory)()
        except Exception as error:  # of the user's own code
            raise ModelError(f"{address!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, ImageGenerator):
        raise ModelError(
            f"{address!r} returned a {type(made).__name__}; expected a "
            "models.image_generator.ImageGenerator"
        )
    if weights:
        fill(made, read_safetensors(weights), f"{address!r} in {weights!r}")
    made.requires_grad_(False).eval()
    _try(made, address)
    return made


def _try(generator: ImageGenerator, address: str) -> None:
    """Raise `ModelError` for what a generator gives that is not as it says of itself."""
    width, channels, side = generator.latent_dim, generator.channels, generator.image_size
    if channels not in (1, 3) or min(width, side) < 1:
        raise ModelError(
            f"{address!r}: latent_dim={width}, channels={channels}, image_size={side}; expected "
            "1 or 3 channels, and the others of at least 1"
        )
    try:
        latents = generator.latents(TRIED, torch.Generator().manual_seed(0))
        images = generator(latents)
    except Exception as error:  # of the user's own code
        raise ModelError(
            f"{address!r} failed on {TRIED} latents: {type(error).__name__}: {error}"
        ) from error
    for what, found, shape in (
        ("latents", latents, (TRIED, width)),
        ("images", images, (TRIED, channels, side, side)),
    ):
        if not isinstance(found, Tensor) or not found.is_floating_point():
            raise ModelError(f"{address!r}: {what} are no tensor of floats")
        if tuple(found.shape) != shape:
            raise ModelError(
                f"{address!r}: {what} have the shape {tuple(found.shape)}, expected {shape}"
            )
        if not bool(found.isfinite().all()):
            raise ModelError(f"{address!r}: {what} are NaN or infinite")
    least, most = images.min().item(), images.max().item()
    if least < -_ROUNDING or most > 1 + _ROUNDING:
        raise ModelError(
            f"{address!r}: images have values from {least:.3g} to {most:.3g}, expected 0 to 1; "
            "bring those from -1 to 1 there by (images + 1) / 2"
        )
