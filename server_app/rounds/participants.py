"""Who trains in a round: what the schedule chooses, checked."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from server_app.rounds.exchange import RunError
from strategies.base.schedule import History, Schedule
from strategies.base.server import ServerContext


def choose_participants(
    schedule: Schedule, context: ServerContext, online: Sequence[int], history: History
) -> list[int]:
    """Let the schedule choose among the clients that can train; return their ids, ascending.

    Raises
    ------
    RunError
        If it chooses nobody, a client that cannot train now, or gives no list of clients.
    """
    number, infos = context.server_round, context.clients
    available = sorted(i for i in online if infos[i].train_examples > 0)
    chosen = schedule.select(context, available, history)
    name = context.run.schedule or type(schedule).__name__
    try:
        ids = sorted({index(client) for client in chosen})  # NumPy's integers as well
    except TypeError:
        raise RunError(
            f"round {number}: select of schedule {name} returned {chosen!r:.200}, expected a list "
            f"of client ids, some of {available[:10]}"
        ) from None
    if not ids:
        raise RunError(f"round {number}: schedule {name} selected none of {len(available)} clients")
    if absent := sorted(set(ids) - set(available)):
        raise RunError(
            f"round {number}: schedule {name} chose client {absent[0]}, which is not among the "
            f"{len(available)} clients that can train now"
        )
    return ids
