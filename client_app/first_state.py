"""A client's first state: drawn from a stream of its own, and kept where that saves time.

In a simulation in which few clients train in a round and all are evaluated, the others would draw
the same weights anew in every round. Reading 6 MB takes a third of the time of drawing them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from client_app.node import simulated
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.rng import derive_seed, isolated_torch_rng
from strategies.base.state import bytes_kept

LEAST = 2**20
"""Bytes below which drawing a state is as fast as reading it."""

ROOM = 4
"""How many times the first states of all clients must fit into what their disk has free."""


def initial_state(half: ClientHalf[Any, Any, Any], local: ClientContext) -> Any:
    """Build a client's first state, from a stream of its own or that of its architecture."""
    owner: int | str = local.client_id
    if local.run.initial_weights == "shared":
        owner = f"model {local.model_name}"
    with isolated_torch_rng(derive_seed(local.run.seed, owner, 0, "init")):
        return half.build(local)


def is_worth_keeping(state: Any, local: ClientContext, directory: Path) -> bool:
    """Return whether a client that is evaluated should keep its first state for the next time.

    So in a simulation, if another evaluation is to come, the state is large enough, and the disk of
    `directory` could take such states of all clients several times. A device keeps what it has
    trained and nothing else.
    """
    run = local.run
    again = local.server_round + run.evaluate_every <= run.num_rounds
    if not (simulated() and again) or local.shares is None:
        return False
    size = bytes_kept(state)
    if size < LEAST:
        return False
    there = next(path for path in (directory, *directory.parents) if path.is_dir())
    return ROOM * size * local.shares.clients <= shutil.disk_usage(there).free
