"""How near a found image is to the images that a vector was made of.

On pixels 0..255. PSNR is 10 log10(255^2 / MSE) for every pair of images and then averaged, as the
published figures of FedRE's attack seem to be (methods of averaging differ by about 1 dB).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Score:
    """One found image against its true images.

    Attributes
    ----------
    mse, psnr : float
        Mean over the true images; PSNR in dB, infinite where an image was found exactly.
    best_psnr : float
        Of the true image that it is nearest to.
    best : int
        Which one that is, by place among those given.
    ssim : float
        Structural similarity with the nearest one, 7 x 7 windows, from -1 to 1.
    lpips : float or None
        How unlike the nearest one looks, 0 for an equal image; None where it was not asked for.
    """

    mse: float
    psnr: float
    best_psnr: float
    best: int
    ssim: float
    lpips: float | None = None


Distance = Callable[[NDArray[np.uint8], NDArray[np.uint8]], float]
"""Of two images (C, H, W), how unlike they look; see `deploy.attack.perceptual`."""


def score(
    found: NDArray[np.uint8], truth: NDArray[np.uint8], perceptual: Distance | None = None
) -> Score:
    """Compare an image (C, H, W) with its true images (n, C, H, W)."""
    errors = mean_squared_errors(found, truth)
    ratios = psnr(errors)
    best = int(errors.argmin())
    return Score(
        float(errors.mean()), float(ratios.mean()), float(ratios[best]), best,
        structural_similarity(found, truth[best]),
        None if perceptual is None else perceptual(found, truth[best]),
    )  # fmt: skip


def mean_squared_errors(found: NDArray[np.uint8], truth: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the mean squared error over pixels and channels with every true image, (n,)."""
    differences = truth.astype(np.float64) - found.astype(np.float64)
    errors: NDArray[np.float64] = np.square(differences).reshape(len(truth), -1).mean(axis=1)
    return errors


def psnr(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the peak signal-to-noise ratios in dB, (n,), of mean squared errors."""
    with np.errstate(divide="ignore"):
        ratios: NDArray[np.float64] = 10 * np.log10(255.0**2 / errors)
    return ratios


def structural_similarity(found: NDArray[np.uint8], truth: NDArray[np.uint8]) -> float:
    """Return the SSIM of two images (C, H, W)."""
    from skimage.metrics import structural_similarity as ssim

    window = min(7, found.shape[1] - 1 + found.shape[1] % 2)  # odd, and not larger than the image
    return float(ssim(found, truth, data_range=255, channel_axis=0, win_size=window))
