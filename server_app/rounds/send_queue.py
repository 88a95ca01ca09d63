"""A round's messages, sent as there is room for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from itertools import islice

from flwr.app import Message

from server_app.rounds.send_order import SendOrder
from server_app.rounds.transport import Sent, Transport


class SendQueue:
    """A round's messages, each built and sent when the window has room for it.

    Messages for training go first. Their replies are aggregated by ascending client id. A reply
    that is early waits, so none is asked for that is too far ahead of the next to be aggregated
    (`SendOrder.ahead`): at most so many replies ever wait.

    Parameters
    ----------
    transport : Transport
        Sends them.
    window : int or None
        How many may be out at once, see `window_of`.
    send_order : SendOrder
        Says how far ahead, and narrows the window where messages take long.
    planned : sequence of (str, int)
        Kind and client of every message, those for training first.
    messages : generator of (Message, Sent)
        The same messages; each is built when its turn has come.

    Attributes
    ----------
    left : deque of (str, int)
        What was not sent yet.
    aggregated : int
        How many replies to training messages were aggregated, or will never be there.
    """

    def __init__(
        self,
        transport: Transport,
        window: int | None,
        send_order: SendOrder,
        planned: Sequence[tuple[str, int]],
        messages: Generator[tuple[Message, Sent], None, None],
    ) -> None:
        self.transport = transport
        self.window = None if window is None else send_order.window(window, planned)
        self._ahead = 0 if window is None else send_order.ahead(window)
        self.left = deque(planned)
        self.aggregated = 0
        self._messages = messages
        self._sent = self._out = 0

    def fill(self, deadline: float) -> None:
        """Send what there is room for, unless the deadline is over."""
        while self.left and time.monotonic() < deadline and (room := self._room()) > 0:
            self.transport.push(self._next(room))

    def answered(self) -> None:
        """Note that one of the messages needs no more waiting."""
        self._out -= 1

    def drop(self) -> list[tuple[str, int]]:
        """Return what was not sent, and never send it."""
        dropped = list(self.left)
        self.left.clear()
        self._messages.close()
        return dropped

    def _room(self) -> int:
        if self.window is None:
            return len(self.left)
        room = self.window - self._out
        if self.left[0][0] == "train":
            room = min(room, self.aggregated + self._ahead + 1 - self._sent)
        return room

    def _next(self, count: int) -> Iterator[tuple[Message, Sent]]:
        for item in islice(self._messages, count):
            self.left.popleft()
            self._sent += 1
            self._out += 1
            yield item
        if not self.left:
            # To the end of what builds them, which finds out there if it has one too many.
            next(self._messages, None)
