"""In which order a simulation is sent a round's messages, and how many of them at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

from server_app.rounds.transport import WINDOW_PER_CORE
from strategies.base.messages import ClientUpdate

NOTICE = 0.15
"""Seconds from the end of a client's work until its worker can have a new message, where Flower
hands it over: it looks for messages every 0.1 s, and the server for replies about as often."""
SHORTEST = 0.01
"""Seconds that a message takes at least, since Flower and Ray work on it, too."""
SPARE_BYTES = 64_000_000
"""So many bytes may be held for speed alone: replies that wait for those that are aggregated before
them, and messages that wait for a worker."""

THREAD_TURN = 0.0005
"""Seconds, instead of Python's 0.005, after which a thread that computes lets another one go on."""


@contextmanager
def short_thread_turns() -> Iterator[None]:
    """Let threads take turns quickly inside, and as before afterwards.

    In a simulation Flower's threads share this process with the server: one scans its nodes for
    messages ten times a second, whether there are any or not. Where Flower hands messages over, a
    thread for every worker waits for several turns each time, and the worker with it: with 1,000
    clients a round took 23 % less time with short ones.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(THREAD_TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class SendOrder:
    """What clients needed for earlier messages of a kind.

    A round ends with its last reply. Sent in the order of client ids, a slow client that comes last
    leaves the other workers idle; sent longest first, what is idle in the end is at most about the
    shortest message. Results do not depend on the order: replies are aggregated by client id.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], float] = {}
        self._largest = self._largest_reply = 0
        self._workers: set[str] = set()

    def note(self, kind: str, update: ClientUpdate) -> None:
        """Remember how long a client worked on a message, and how large its reply is."""
        self._seconds[kind, update.client_id] = update.compute_s
        self._workers.add(update.worker)
        self.weigh(update.num_bytes)
        if kind == "train":
            self._largest_reply = max(self._largest_reply, update.num_bytes)

    def weigh(self, num_bytes: int) -> None:
        """Note the size of a message."""
        self._largest = max(self._largest, num_bytes)

    def ahead(self, window: int) -> int:
        """Return how many messages may be sent beyond the next one to be aggregated.

        At least two windows, so that one slow client does not stop the others. More where replies
        are small, since the longer the line, the better it can be ordered.
        """
        return max(2 * window, self._block())

    def ordered(self, kind: str, clients: Sequence[int]) -> list[int]:
        """Return clients longest first, those of unknown speed before all others.

        Those that train change places only within stretches whose replies together are small: one
        that is early waits in memory until the clients before it, by id, have answered.
        """
        ordered: list[int] = []
        step = max(1, self._block() if kind == "train" else len(clients))
        for start in range(0, len(clients), step):
            stretch = clients[start : start + step]
            ordered += sorted(stretch, key=lambda i: -self._seconds.get((kind, i), math.inf))
        return ordered

    def window(self, window: int, planned: Sequence[tuple[str, int]]) -> int:
        """Return how many messages may be out: as many as keep all workers at work, and few more.

        Two a worker, one that is computed and one to come, and more where a worker would be done
        with them before the server notices. `window` is for messages of unknown speed. Where Flower
        hands them over (see `WorkerGrid`), it does so in the order of its nodes, so that what waits
        is not longest first any more; and it looks at every waiting message once for each node.
        """
        known = [self._seconds[at] for at in planned if at in self._seconds]
        if not known:
            return window
        # A worker that was replaced is still among those seen; there are never more than cores.
        workers = min(len(self._workers), max(1, window // WINDOW_PER_CORE))
        wanted = 1 + math.ceil(NOTICE / max(fmean(known), SHORTEST))
        return workers * max(2, min(wanted, SPARE_BYTES // max(1, self._largest) // workers))

    def _block(self) -> int:
        return SPARE_BYTES // self._largest_reply if self._largest_reply else 0
