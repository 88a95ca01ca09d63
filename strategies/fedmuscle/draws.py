"""What FedMuscle's server draws: the public items of a round, and whom a user is aligned with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from strategies.base.rng import SERVER, numpy_generator
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext


@lru_cache(maxsize=2)  # every message of a round asks, and so does the check of every answer
def public_batches(run: RunConfig, server_round: int) -> NDArray[np.int32]:
    """Return the public items I_1..I_T of a round, (T, B), the same for all users.

    Every pass over the set is a new permutation drawn from (seed, round, pass); its last,
    incomplete batch is left out.
    """
    config = run.method_config
    size: int = config.batch_size
    per_pass = run.public_size // size
    total = config.steps or per_pass
    order = [
        numpy_generator(run.seed, SERVER, server_round, f"public-{number}").permutation(
            run.public_size
        )[: per_pass * size]
        for number in range(-(-total // per_pass))
    ]
    batches = np.concatenate(order).reshape(-1, size)[:total].astype(np.int32)
    batches.flags.writeable = False  # all callers get the same array
    return batches


def items_of(context: ServerContext) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the items that an exchange aligns on, (u,), and those it asks to represent, (e,)."""
    batches = public_batches(context.run, context.server_round)
    if context.config.exchange == "batch":
        batches = batches.reshape(1, -1)
    if context.config.loss == "simclr":
        batches = batches[:0]
    after, last = context.exchange - 1, len(batches)
    nothing = np.empty(0, dtype=np.int32)
    return (
        batches[after - 1] if 0 < after <= last else nothing,
        batches[after] if after < last else nothing,
    )


def partners(
    context: ServerContext, received: Mapping[int, NDArray[np.float32]], client_id: int
) -> NDArray[np.float32]:
    """Return, batch by batch, the representations of M users drawn from all but this one.

    Parameters
    ----------
    context : ServerContext
        Of the exchange that is to carry them.
    received : mapping of int to ndarray
        What each user sent, (u, d), all for the same items.
    client_id : int
        The user that is to be aligned; one of `received`.

    Returns
    -------
    ndarray
        (M, u, d); M is at most the number of others.
    """
    config = context.config
    others = sorted(received.keys() - {client_id})
    count, size = min(config.users, len(others)), config.batch_size
    rows = len(received[client_id])
    drawn = np.empty((count, rows, context.dims["d"]), dtype=np.float32)
    first_step = 0 if config.exchange == "batch" else context.exchange - 2
    for start in range(0, rows, size):
        generator = context.numpy_generator(f"partners-{client_id}-{first_step + start // size}")
        chosen = generator.choice(others, count, replace=False)
        part = slice(start, start + size)
        for position, user in enumerate(chosen):
            drawn[position, part] = received[int(user)][part]
    return drawn
