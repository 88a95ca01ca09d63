"""Private randomness: every draw comes from a generator of its own.

A generator is derived from (seed, owner, round, purpose) alone, never from how often something
was called, so a resumed or re-ordered run draws the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

SERVER = "server"
"""Owner of the server's own draws; clients are owners by their integer id."""


def derive_seed(seed: int, owner: int | str, server_round: int, purpose: str) -> int:
    """Return a 63-bit seed that is a function of its four arguments only.

    Parameters
    ----------
    seed : int
        The run's seed.
    owner : int or str
        Client id, or `SERVER`.
    server_round : int
        Round number; 0 for what is drawn once in a run.
    purpose : str
        What the draws are for, for example "batches".
    """
    text = f"{seed}|{owner}|{server_round}|{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def torch_generator(
    seed: int, owner: int | str, server_round: int, purpose: str
) -> torch.Generator:
    """Return a CPU torch generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, owner, server_round, purpose))


def numpy_generator(
    seed: int, owner: int | str, server_round: int, purpose: str
) -> np.random.Generator:
    """Return a NumPy generator for one purpose."""
    return np.random.default_rng(derive_seed(seed, owner, server_round, purpose))


@contextmanager
def isolated_torch_rng(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them after it.

    Weight initialisation and dropout draw from the global generators; this keeps those draws a
    function of `seed` and keeps them from disturbing anything else.
    """
    gpu = device if device is not None and device.type == "cuda" else None
    with torch.random.fork_rng(devices=[] if gpu is None else [gpu]):
        # Not torch.manual_seed: it seeds every kind of device that there might be, and formats
        # stack traces for those that are not in use, some milliseconds a call.
        torch.default_generator.manual_seed(seed)
        if gpu is not None:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield
