"""How far a long round is: a line now and then, none in a round that takes seconds."""

from __future__ import annotations

import sys
import time

from server_app.console import say

PAUSE, PAUSE_IN_LOG = 5.0, 60.0
"""Seconds between two lines on a terminal, and where the output is a file or a pipe."""


class RoundProgress:
    """Counts who has answered in an exchange.

    Parameters
    ----------
    name : str
        What the lines begin with.
    total : int
        Clients that were asked.
    """

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.done = 0
        self._pause = PAUSE if sys.stdout.isatty() else PAUSE_IN_LOG
        self._started = self._said = time.monotonic()

    def answered(self) -> None:
        """Count a client, and say how many have answered if the last line is old enough.

        The time that is left is estimated from the clients so far; of the last client, when the
        round's own line is about to come, nothing is said.
        """
        self.done += 1
        now = time.monotonic()
        if now - self._said < self._pause or self.done >= self.total:
            return
        self._said = now
        left = (now - self._started) / self.done * (self.total - self.done)
        say(f"{self.name}: {self.done} of {self.total} clients, about {left:.0f} s left")
