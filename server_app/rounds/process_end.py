"""Whether this process has been told to end: what then looks like a failed client is none."""

from __future__ import annotations

import sys
import threading

from flwr.supercore.exit import add_exit_handler

OWNER_DIED = "its owner has died"
"""How Ray says that a worker has ended with the process that started it, which is this one."""

_TOLD = threading.Event()
_LISTENS = threading.Lock()  # held for good by the first that listens


def listen() -> None:
    """Notice from now on that Flower ends this process.

    In a simulation Flower's main thread takes Ray down while the ServerApp still runs in another
    one. Clients whose workers are gone would be failures of a round, which would be recorded and
    resumed from.
    """
    if _LISTENS.acquire(blocking=False):
        add_exit_handler(_TOLD.set)


def stop_if_without_ray(reason: str) -> None:
    """End the ServerApp of a simulation if a client failed because this process leaves Ray.

    `ray.init` takes the signal to end from Flower, whose exit handlers then run last: the workers
    are gone before `stop_if_told` knows.

    Parameters
    ----------
    reason : str
        Why the client gave no answer.

    Raises
    ------
    SystemExit
        As `stop_if_told`.
    """
    ray = sys.modules.get("ray")
    if OWNER_DIED in reason or (ray is not None and not ray.is_initialized()):
        raise SystemExit(0)


def stop_if_told() -> None:
    """End the ServerApp if its process has been told to end.

    Raises
    ------
    SystemExit
        With code 0, as Flower itself ends a ServerApp that is stopped.
    """
    if _TOLD.is_set():
        raise SystemExit(0)
