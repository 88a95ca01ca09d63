"""Decoder: a network learns, from images that are not the client's, to draw what a vector shows.

The attacker passes auxiliary images through the client's model and trains transposed convolutions
to get the images back from the vectors: mean squared error, Adam. Then it decodes the vectors that
were sent. This asks less of the model than white box: no gradient through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from deploy.attack.attacker import Progress, Seek
from deploy.attack.auxiliary import Auxiliary
from deploy.attack.targets import Target, vectors_of
from deploy.attack.victims import Victim
from deploy.attack.white_box import output_of, to_bytes
from strategies.base.rng import isolated_torch_rng
from strategies.common.optimizers import make_adam, take_step

BLOCK = 256
"""Images that go through the client's model at once."""


@dataclass(frozen=True)
class Decoder:
    """How the attack is made.

    Attributes
    ----------
    images : int
        At most so many auxiliary images.
    epochs : int
        Times that each is learned from.
    lr : float
        Of Adam.
    batch_size : int
        Images in a step.
    """

    name: ClassVar[str] = "decoder"
    joint: ClassVar[bool] = False
    images: int = 2000
    epochs: int = 50
    lr: float = 1e-3
    batch_size: int = 64

    @property
    def steps(self) -> int:
        """One: vectors are decoded at once."""
        return 1

    def about(self, output: str) -> str:
        """Say how it seeks."""
        return (
            f"The attacker has up to {self.images} images of the data set that the client does not "
            f"train on and their {output} by the client's model, and trains transposed "
            f"convolutions to turn the one into the other: {self.epochs} epochs of Adam at "
            f"{self.lr}. Those decode what was sent."
        )

    def targets(self, victim: Victim) -> list[Target]:
        """Return the vectors of the uplink."""
        return vectors_of(victim)

    def against(
        self, victim: Victim, targets: list[Target], known: Auxiliary, generator: torch.Generator
    ) -> Seek:
        """Train a decoder for one client's model."""
        seed = int(torch.randint(2**62, (), generator=generator))
        images = torch.from_numpy(known.draw(self.images, np.random.default_rng(seed)))
        device = next(victim.model.parameters()).device
        function = output_of(victim.model, targets[0].output)
        with torch.no_grad():
            vectors = torch.cat(
                [function(part.to(device).float() / 127.5 - 1) for part in images.split(BLOCK)]
            )
        with isolated_torch_rng(seed, device):
            network = self.train(vectors.float().flatten(1), images.to(device), generator)

        def seek(
            sent: NDArray[np.float32], generator: torch.Generator, progress: Progress
        ) -> NDArray[np.uint8]:
            with torch.no_grad():
                found = network(torch.from_numpy(sent).to(device).flatten(1))
            progress(1)
            return to_bytes(found)

        return seek

    def train(self, vectors: Tensor, images: Tensor, generator: torch.Generator) -> nn.Module:
        """Return a network from vectors (n, d) to images (n, C, H, W) uint8, in [0, 1]."""
        network = DecoderNetwork(vectors, (images.shape[1], images.shape[2], images.shape[3]))
        optimizer = make_adam(torch.optim.Adam, network.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            order = torch.randperm(len(vectors), generator=generator).to(vectors.device)
            for rows in order.split(self.batch_size):
                loss = F.mse_loss(network(vectors[rows]), images[rows].float() / 255)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                take_step(optimizer)
        return network.eval()


class DecoderNetwork(nn.Module):
    """From vectors (B, d) to images (B, C, H, W) in [0, 1].

    The vectors are standardised as those it is made for, then come a linear layer and two
    transposed convolutions, each of which doubles the size.
    """

    def __init__(self, vectors: Tensor, shape: tuple[int, int, int], width: int = 64) -> None:
        super().__init__()
        channels, *self.size = shape
        self.start = [width, *((side + 3) // 4 for side in self.size)]
        self.register_buffer("mean", vectors.mean(dim=0))
        # A feature that never varies is left as it is.
        self.register_buffer("scale", vectors.std(dim=0).nan_to_num().clamp_min(1e-3))
        self.mean: Tensor
        self.scale: Tensor
        self.layers = nn.Sequential(
            nn.Linear(vectors.shape[1], int(np.prod(self.start))),
            nn.Unflatten(1, self.start),
            nn.ReLU(),
            nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width // 2, channels, 4, stride=2, padding=1),
            nn.Sigmoid(),
        ).to(vectors.device)

    def forward(self, vectors: Tensor) -> Tensor:
        """Decode vectors."""
        images: Tensor = self.layers((vectors - self.mean) / self.scale)
        return images[..., : self.size[0], : self.size[1]]
