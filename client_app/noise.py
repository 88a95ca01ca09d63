"""Where the noise on what a client sends comes from."""

from __future__ import annotations

import os

import torch

from client_app.node import simulated
from strategies.base.client import ClientContext


def noise_generator(context: ClientContext) -> torch.Generator:
    """Return the generator of one message's noise.

    On a device it is seeded by the operating system, anew for every message: noise that follows
    from the run's seed hides nothing from the server, which knows the seed and can subtract it.
    In a simulation, where nothing is hidden from anybody, it follows from (seed, client, round,
    exchange), so that one seed gives the same numbers.
    """
    if simulated():
        return context.generator(f"privacy-noise-{context.exchange}")
    return torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "big") >> 1)
