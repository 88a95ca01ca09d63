"""A schedule by which half of the clients come late, to see what a run gives to newcomers.

`schedule = 'strategies.base.late_joiners:LateJoiners'`. The first half of the clients, by id,
trains from round 1 on, the others after `ROUNDS_WITHOUT` rounds. Until then these are evaluated
with what they would receive on their first models, but nothing they hold has any part in the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from strategies.base.options import ConfigError
from strategies.base.run_config import RunConfig
from strategies.base.schedule import History, Schedule
from strategies.base.server import ServerContext

ROUNDS_WITHOUT = 50
"""Rounds before the second half takes part."""


class LateJoiners(Schedule):
    """The usual draw, among the first half of the clients alone in the first `ROUNDS_WITHOUT`.

    Parameters
    ----------
    run : RunConfig
        The run's configuration.

    Raises
    ------
    ConfigError
        If the run ends before anybody joins.
    """

    def __init__(self, run: RunConfig) -> None:
        if run.num_rounds <= ROUNDS_WITHOUT:
            raise ConfigError(
                f"num-rounds = {run.num_rounds}: expected more than {ROUNDS_WITHOUT}, after which "
                "the late clients join"
            )

    def select(
        self, context: ServerContext, available: Sequence[int], history: History
    ) -> list[int]:
        """Choose as `Schedule` does, among those that have joined."""
        return super().select(context, joined(context, available), history)


def joined(context: ServerContext, clients: Sequence[int]) -> list[int]:
    """Return those of some clients that take part in the round `context.server_round`.

    The first half is that of all clients that have training examples, the larger one of an odd
    number. If none of them is there, whoever is there takes part, rather than nobody.
    """
    if context.server_round > ROUNDS_WITHOUT:
        return list(clients)
    known = sorted(i for i, info in context.clients.items() if info.train_examples > 0)
    first = set(known[: (len(known) + 1) // 2])
    return [client for client in clients if client in first] or list(clients)
