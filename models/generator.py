"""FedGen's generator of representations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Generator(nn.Module):
    """G(eps, onehot y): Linear(n_z + C, h), BatchNorm, ReLU, Linear(h, d)."""

    def __init__(self, noise_dim: int, classes: int, hidden: int, width: int) -> None:
        super().__init__()
        self.noise_dim, self.classes = noise_dim, classes
        self.hidden = nn.Linear(noise_dim + classes, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.output = nn.Linear(hidden, width)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Noise (B, n_z) and labels (B,) to representations (B, d)."""
        joined = torch.cat([noise, F.one_hot(labels, self.classes).float()], dim=1)
        result: Tensor = self.output(F.relu(self.norm(self.hidden(joined))))
        return result

    def draw(self, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return noise from N(0, 1), (B, n_z), and the representations (B, d) made of it."""
        noise = torch.randn(len(labels), self.noise_dim, generator=rng).to(labels.device)
        return noise, self(noise, labels)

    def wire_names(self) -> dict[str, str]:
        """Return the downlink's field of every entry but BatchNorm's counter of steps."""
        names = [name for name in self.state_dict() if "tracked" not in name]
        return {name: "generator_" + name.replace(".", "_") for name in names}
