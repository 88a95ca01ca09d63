"""Train the small generator of images that FedKTL's server can have, on a data set's images.

python -m deploy.train_generator --dataset fashion-mnist --out generator.safetensors

It is the decoder of a variational autoencoder (Kingma and Welling, 2014), on the data set's
official training images, without labels: `models.image_generator:small`, or `small_colour` for
images with colours. `--examples 5000 --epochs 2` makes a rough one in less time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from data import (
    DATASETS,
    TEXT_DATASETS,
    VECTOR_DATASETS,
    DataSpec,
    ImageDataset,
    load_dataset,
)
from models.image_generator import SmallGenerator
from strategies.base.files import replacing

BATCH = 128
LR = 2e-3


class Encoder(nn.Module):
    """Images (N, channels, 32, 32) in [0, 1] to mean and log variance of latents, (N, 2 w)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 2 * width),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return mean and log variance, side by side."""
        found: Tensor = self.layers(images)
        return found


def evidence_loss(generator: SmallGenerator, encoder: Encoder, images: Tensor) -> Tensor:
    """Return minus the evidence's lower bound of images (N, channels, 32, 32), a mean over N.

    Pixels are Bernoulli, latents are drawn from torch's own stream.
    """
    mean, log_variance = encoder(images).chunk(2, dim=1)
    latents = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
    missed = F.binary_cross_entropy(generator(latents), images, reduction="sum")
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    loss: Tensor = (missed + divergence) / len(images)
    return loss


def trained(images: NDArray[np.uint8], epochs: int, seed: int) -> SmallGenerator:
    """Return a generator of images like these, (N, 1 or 3, 32, 32) uint8.

    The loss of every epoch is printed.
    """
    torch.manual_seed(seed)
    generator = SmallGenerator(channels=images.shape[1])
    encoder = Encoder(generator.channels, generator.latent_dim)
    optimizer = torch.optim.Adam([*generator.parameters(), *encoder.parameters()], lr=LR)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(images)).split(BATCH):
            batch = torch.from_numpy(images[rows.numpy()]).float() / 255
            loss = evidence_loss(generator, encoder, batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1}/{epochs}: loss {total / len(images):.1f}", flush=True)
    return generator.eval()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one by the command line."""
    numbers = {*TEXT_DATASETS, *VECTOR_DATASETS}
    pictures = [name for name in DATASETS if name not in numbers]
    parser = argparse.ArgumentParser(prog="python -m deploy.train_generator", description=__doc__)
    parser.add_argument("--dataset", choices=pictures, required=True)
    parser.add_argument("--data-dir", default="", help="where its files are")
    parser.add_argument("--out", type=Path, required=True, help="a *.safetensors file to write")
    parser.add_argument("--examples", type=int, help="how many images, drawn at random; all")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.out.suffix != ".safetensors":
        parser.error(f"--out {given.out}: expected a name that ends in .safetensors")
    for name in ("epochs", "examples"):
        if (number := getattr(given, name)) is not None and number < 1:
            parser.error(f"--{name} {number}: expected 1 or more")
    spec = DataSpec(dataset=given.dataset, data_dir=given.data_dir, image_size=32)
    dataset = load_dataset(spec)
    if not isinstance(dataset, ImageDataset):
        parser.error(f"--dataset {given.dataset}: expected one of plain images")
    rows = np.random.default_rng(given.seed).permutation(dataset.train_size)[: given.examples]
    generator = trained(dataset.images[np.sort(rows)], given.epochs, given.seed)
    with replacing(given.out) as partial:
        save_file(generator.state_dict(), partial)
    factory = "small" if generator.channels == 1 else "small_colour"
    print(
        f"written: {given.out}; -c \"fedktl.generator='models.image_generator:{factory}' "
        f"fedktl.generator-weights='{given.out}'\""
    )


if __name__ == "__main__":
    main()
