"""A simulation's worker, as the server reaches it without Flower's queue of messages.

Flower looks for messages to hand out ten times a second, at every node in turn; where clients are
small, workers wait for that more than they work. Its workers are Ray actors, and an actor can be
called by whoever has its handle. So each is asked once, by a message `query.worker`, for its
handle, and remembers the ClientApp and the run that Flower gave it with the question.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

QUERY = "query.worker"
RECORD = "worker"
HOLD_S = 0.2
"""A worker takes so long over the question, so that no other one is given a second."""


@dataclass
class Seat:
    """The client whom a worker is to be, for one message.

    Attributes
    ----------
    node_id : int
        Flower's address of it.
    node_config : dict
        Its `partition-id` and `num-partitions`.
    state : RecordDict
        What mods of the ClientApp keep from one message to the next.
    """

    node_id: int
    node_config: dict[str, Any]
    state: RecordDict


class _Remembered:
    """What this worker answers with; there is one run in the life of a worker."""

    app: ClientApp | None = None
    context: Context | None = None


def remember(app: ClientApp, context: Context) -> None:
    """Keep what Flower gave this worker."""
    _Remembered.app, _Remembered.context = app, context


def answer_worker_query(message: Message, context: Context) -> Message:
    """Answer with this worker's handle and what it takes of its machine."""
    import ray

    time.sleep(HOLD_S)
    here = ray.get_runtime_context()
    resources = here.get_assigned_resources()
    record = ConfigRecord(
        {
            "handle": ray.cloudpickle.dumps(here.current_actor),
            "name": here.get_actor_id() or "",
            "num_cpus": float(resources.get("CPU", 0)),
            "num_gpus": float(resources.get("GPU", 0)),
        }
    )
    return Message(RecordDict({RECORD: record}), reply_to=message)


def remembered_app() -> Callable[[Message, Seat], Message]:
    """Return what Flower's actor is to call instead of a ClientApp that travels with a message."""
    return _answer


def _answer(message: Message, context: Seat) -> Message:
    """Answer a message as one client; the names of the parameters are Flower's."""
    app, run = _Remembered.app, _Remembered.context
    if app is None or run is None:
        raise RuntimeError("this worker was not asked for its handle")
    return app(
        message,
        Context(
            run_id=run.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=context.state,
            run_config=run.run_config,
        ),
    )
