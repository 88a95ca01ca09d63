"""What an attacker is: it says what it seeks images for, and seeks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from deploy.attack.auxiliary import Auxiliary
from deploy.attack.targets import Target
from deploy.attack.victims import Victim

Progress = Callable[[int], None]
"""Is told the number of every step."""

Seek = Callable[[NDArray[np.float32], torch.Generator, Progress], NDArray[np.uint8]]
"""From vectors (B, d) to the images found for them, (B, C, H, W).

Of a joint attacker from one vector, (1, d), to one image for every target.
"""


class Attacker(Protocol):
    """One way of seeking images in what a client sent: a frozen dataclass of its settings.

    Attributes
    ----------
    name : str
        As on the command line.
    joint : bool
        Whether all targets of a client are parts of one vector, and sought together.
    """

    name: ClassVar[str]
    joint: ClassVar[bool]

    @property
    def steps(self) -> int:
        """How many steps it makes for a batch of vectors."""

    def about(self, output: str) -> str:
        """Say in a sentence or two how it seeks; `output` is that of the targets."""

    def targets(self, victim: Victim) -> list[Target]:
        """Return what images can be sought for; raises `ConfigError` if there is nothing."""

    def against(
        self, victim: Victim, targets: list[Target], known: Auxiliary, generator: torch.Generator
    ) -> Seek:
        """Prepare the attack on one client; what is drawn for it comes from `generator`."""
