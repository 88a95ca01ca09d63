"""In which order a simulation is sent a round's messages, and how many of them at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from strategies.base.exchange import ClientUpdate

LONG = 1.0
"""Seconds. Work that takes longer on average outlasts the server's notice of a reply."""
EARLY_BYTES = 64_000_000
"""So many bytes of replies may wait on purpose for those that are folded before them."""


class Pace:
    """What clients needed for earlier messages of a kind.

    A round ends with its last reply. Sent in the order of client ids, a slow client that comes last
    leaves the other workers idle; sent longest first, what is idle in the end is at most about the
    shortest message. Results do not depend on the order: replies are folded by client id.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], float] = {}
        self._largest = 0
        self._workers: set[str] = set()

    def note(self, kind: str, update: ClientUpdate) -> None:
        """Remember how long a client worked on a message, and how large its reply is."""
        self._seconds[kind, update.client_id] = update.compute_s
        self._workers.add(update.worker)
        if update.uplink is not None:
            self._largest = max(self._largest, update.num_bytes)

    def ahead(self, window: int) -> int:
        """Return how many messages may be sent beyond the next one to be folded, and that one.

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

    def window(self, window: int, planned: Iterable[tuple[str, int]]) -> int:
        """Return how many messages may be out: `window`, or two a worker where they take long.

        Flower hands out what it finds waiting in the order of its nodes; so that the longest goes
        first, no more wait than are needed to keep all workers at work.
        """
        known = [self._seconds[at] for at in planned if at in self._seconds]
        if known and fmean(known) >= LONG:
            return min(window, max(2, 2 * len(self._workers)))
        return window

    def _block(self) -> int:
        return EARLY_BYTES // self._largest if self._largest else 0
