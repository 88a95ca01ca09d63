"""Whether this process has been told to end: what then looks like a failed client is none."""

from __future__ import annotations

import threading

from flwr.supercore.exit import add_exit_handler

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


def stop_if_told() -> None:
    """End the ServerApp if its process has been told to end.

    Raises
    ------
    SystemExit
        With code 0, as Flower itself ends a ServerApp that is stopped.
    """
    if _TOLD.is_set():
        raise SystemExit(0)
