"""What is drawn for a round of CreamFL: batches of public pairs, and whose features are aligned."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strategies.base.rng import SERVER, numpy_generator
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext


@lru_cache(maxsize=2)
def public_batches(run: RunConfig, server_round: int) -> tuple[NDArray[np.int32], ...]:
    """Return the batches of a round, the same on all clients and the server.

    Every public pair is in one; a last pair that would be alone is left out.
    """
    size: int = run.method_config.size_of_batches
    generator = numpy_generator(run.seed, SERVER, server_round, "public")
    order = generator.permutation(run.public_size).astype(np.int32)
    order.flags.writeable = False  # all callers get views of it
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    return tuple(part for part in parts if len(part) > 1)


def drawn_features(
    context: ServerContext, pool: Mapping[str, Tensor], purpose: str
) -> NDArray[np.float32]:
    """Return M features of every public pair, (M, P, d), each batch's drawn by itself.

    Parameters
    ----------
    context : ServerContext
        Of the round.
    pool : mapping of str to Tensor
        Features (P, d) by who has made them; M is at most their number.
    purpose : str
        What it is drawn for.
    """
    names, config = sorted(pool), context.config
    count = min(config.users, len(names))
    drawn = np.zeros((count, context.run.public_size, context.dims["d"]), dtype=np.float32)
    generator = context.numpy_generator(f"others-{purpose}")
    for rows in public_batches(context.run, context.server_round):
        for place, number in enumerate(generator.choice(len(names), count, replace=False)):
            drawn[place, rows] = pool[names[number]][torch.tensor(rows, dtype=torch.int64)].numpy()
    return drawn
