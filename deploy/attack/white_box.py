"""White box: seek the image whose representation is the one that was sent.

The attacker holds the vector u and, the worst case, the client's own model. It minimises, over an
image x of values in [0, 1],

    || f(x) - u ||^2 + weight * TV(x),

where f is the representation, the logits or the stem's maps, and TV the sum of the absolute
differences of neighbouring pixels. x is the sigmoid of what Adam moves, which begins as N(0, 1)
noise (the setting of FedRE's attack, arXiv 2511.22265, is not published; this is the project's
own).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deploy.attack.attacker import Progress, Seek
from deploy.attack.auxiliary import Auxiliary
from deploy.attack.targets import LOGITS, REPRESENTATION, STEM, Target, vectors_of
from deploy.attack.victims import Victim
from models import SplitModel
from strategies.common.optimizers import keep_compiler_out, take_step


@dataclass(frozen=True)
class WhiteBox:
    """How the attack is made.

    Attributes
    ----------
    steps : int
        Steps of Adam.
    lr : float
        Their learning rate.
    tv_weight : float
        Weight of the total variation.
    """

    name: ClassVar[str] = "white-box"
    joint: ClassVar[bool] = False
    steps: int = 2000
    lr: float = 0.1
    tv_weight: float = 1e-4

    def about(self, output: str) -> str:
        """Say how it seeks."""
        return (
            "The attacker holds what a client sent and the client's own model (the worst case), "
            f"and seeks an image whose {output} is the vector that was sent: {self.steps} steps "
            f"of Adam at {self.lr}, total variation {self.tv_weight}, from noise."
        )

    def targets(self, victim: Victim) -> list[Target]:
        """Return the vectors of the uplink."""
        return vectors_of(victim)

    def against(
        self, victim: Victim, targets: list[Target], known: Auxiliary, generator: torch.Generator
    ) -> Seek:
        """Return the attack on one client's model."""
        _, channels, height, width = victim.images.shape
        shape, output = (channels, height, width), targets[0].output

        def seek(
            vectors: NDArray[np.float32], generator: torch.Generator, progress: Progress
        ) -> NDArray[np.uint8]:
            return self.invert(victim.model, output, vectors, shape, generator, progress)

        return seek

    def invert(
        self,
        model: SplitModel,
        output: str,
        vectors: NDArray[np.float32],
        shape: tuple[int, int, int],
        generator: torch.Generator,
        progress: Callable[[int], None] = lambda step: None,
    ) -> NDArray[np.uint8]:
        """Return the images found for vectors, (B, C, H, W) uint8; each is sought by itself.

        Parameters
        ----------
        model : SplitModel
            In evaluation mode, so that the images of a batch know nothing of each other.
        output : str
            What the vectors are, see `deploy.attack.targets`.
        vectors : NDArray[np.float32]
            (B, d), (B, C) or, of a stem, (B, c, s, s).
        shape : tuple of int
            (C, H, W) of an image.
        generator : torch.Generator
            Draws the first images.
        progress : callable, optional
            Is told the number of every step.
        """
        function = output_of(model, output)
        device = next(model.parameters()).device
        wanted = torch.from_numpy(vectors).to(device)
        first = torch.randn(len(vectors), *shape, generator=generator)
        hidden = first.to(device).requires_grad_(True)
        keep_compiler_out()
        optimizer = torch.optim.Adam([hidden], lr=self.lr)
        for step in range(self.steps):
            images = hidden.sigmoid()
            distance = (function(2 * images - 1) - wanted).square().sum()
            loss = distance + self.tv_weight * total_variation(images)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            take_step(optimizer)
            progress(step + 1)
        return to_bytes(hidden.detach().sigmoid())


def output_of(model: Any, output: str) -> Callable[[Tensor], Tensor]:
    """Return what makes normalised images (N, C, H, W) the vectors of one kind of target."""
    functions = {REPRESENTATION: model.features, LOGITS: model}
    return model.stem if output == STEM else functions[output]  # type: ignore[no-any-return]


def to_bytes(images: Tensor) -> NDArray[np.uint8]:
    """Return images of values in [0, 1], cut to that, as bytes."""
    found = images.clamp(0, 1).mul(255).round().to(torch.uint8).cpu().numpy()
    result: NDArray[np.uint8] = found
    return result


def total_variation(images: Tensor) -> Tensor:
    """Return the sum of the absolute differences of neighbouring pixels of images (B, C, H, W)."""
    rows = (images[..., 1:, :] - images[..., :-1, :]).abs().sum()
    columns = (images[..., :, 1:] - images[..., :, :-1]).abs().sum()
    return rows + columns


def of_equal_norm(
    vectors: NDArray[np.float32], generator: np.random.Generator
) -> NDArray[np.float32]:
    """Return random vectors (B, ...) in uniformly drawn directions, as long as those given."""
    drawn = generator.normal(size=vectors.shape).reshape(len(vectors), -1)
    lengths = np.linalg.norm(vectors.reshape(len(vectors), -1), axis=1, keepdims=True)
    scaled: NDArray[np.float32] = (
        (drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * lengths)
        .astype(np.float32)
        .reshape(vectors.shape)
    )
    return scaled
