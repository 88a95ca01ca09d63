"""Sending messages and receiving replies over a Flower Grid, with deadlines."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from flwr.app import Message
from flwr.serverapp import Grid

from server_app.records.round_result import REFUSED
from server_app.rounds import process_end
from server_app.rounds.in_process import InProcessGrid
from server_app.rounds.reply_limit import TOO_LARGE, ReplyLimit
from server_app.rounds.worker_grid import WorkerGrid
from strategies.base.messages import count_bytes
from strategies.base.received_text import visible

PUSH_CHUNK = 16
"""Messages handed to the Grid at once, so that a large round is never held twice."""
SMALLEST_WINDOW, WINDOW_PER_CORE = 8, 4
IN_MEMORY_GRID = "flwr.superlink.grid.inmemory_grid"
"""Flower's module of the Grid of its simulation; importing it costs seconds."""
RAY_WRAPPER = "The above exception was the direct cause of the following exception"
FLOWER_WRAPPER = re.compile(r"""^<class '(?:\w+\.)*([^'.]+)'>:<['"]""")
"""A SuperNode reports `raise ValueError("boom")` as `<class 'ValueError'>:<'boom'>`."""
LONGEST_REASON = 500
"""Signs of a device's error that are kept."""
SHORTEST_POLL, LONGEST_POLL = 0.01, 0.5
"""Bounds of the pause between two polls, in seconds."""
LONGEST_SIMULATED_POLL = 0.05
"""In a simulation a poll is a look into this process's memory, and a round's last reply waits for
it."""


class GridError(RuntimeError):
    """The SuperLink did not take a message."""


@dataclass(frozen=True)
class Sent:
    """What is remembered of a message until its reply is there."""

    kind: str
    node_id: int
    client_id: int | None


@dataclass(frozen=True)
class Answer:
    """A reply, or the reason why there is none; exactly one of the two is set."""

    sent: Sent
    message: Message | None
    reason: str | None


def window_of(grid: Grid) -> int | None:
    """Return how many of a round's messages may be out at once; None is all of them.

    A simulation holds every message that is out, and every reply that was not pulled, in this
    process's memory. There, until it is known how long they take (`SendOrder.window`), four
    messages a core are out: one that is computed and three to come, which keep the core busy while
    the server notices a reply, aggregates it and sends more. In this very process, messages are
    computed as they are sent: one at a time. Real devices all work at once, and the SuperLink keeps
    their messages on its disk.
    """
    if isinstance(grid, InProcessGrid):
        return 1
    if is_simulation(grid):
        return max(SMALLEST_WINDOW, WINDOW_PER_CORE * _cores())
    return None


def is_simulation(grid: Grid) -> bool:
    """Return whether Flower's simulation engine is at work in this process."""
    if isinstance(grid, WorkerGrid):
        return True
    module = sys.modules.get(IN_MEMORY_GRID)
    return module is not None and isinstance(grid, module.InMemoryGrid)


def _cores() -> int:
    """Return the cores of the simulation, on all of Ray's machines; its workers are fewer."""
    cores = os.cpu_count() or 1
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        cores = max(cores, int(ray.cluster_resources().get("CPU", 0)))
    return cores


class Transport:
    """The messages that are out, and their replies as they come.

    Replies are matched by the message they answer: an error reply for a dead node does not come
    from that node but from the SuperLink.
    """

    def __init__(self, grid: Grid, limit: ReplyLimit | None = None) -> None:
        self.grid = grid
        self._limit = limit if limit is not None and limit.applies else None
        self._simulated = is_simulation(grid)
        self._longest = LONGEST_SIMULATED_POLL if self._simulated else LONGEST_POLL
        process_end.listen()
        self._sleep = grid.wait if isinstance(grid, WorkerGrid) else time.sleep
        self._out: dict[str, Sent] = {}
        self._arrived: deque[Answer] = deque()

    def push(self, messages: Iterable[tuple[Message, Sent]]) -> None:
        """Send messages, taken from a lazy iterable a few at a time."""
        iterator = iter(messages)
        while chunk := list(islice(iterator, PUSH_CHUNK)):
            if self._limit is not None:
                self._limit.sent(max(count_bytes(message.content) for message, _ in chunk))
            ids = list(self.grid.push_messages([message for message, _ in chunk]))
            if len(ids) != len(chunk):
                raise GridError(
                    f"the SuperLink refused {len(chunk)} messages of kind {chunk[0][1].kind}; its "
                    "log says why"
                )
            for message_id, (_, sent) in zip(ids, chunk, strict=True):
                if message_id:
                    self._out[message_id] = sent
                else:
                    gone = "its node left before the message was sent"
                    self._arrived.append(Answer(sent, None, gone))

    def outstanding(self, *kinds: str) -> int:
        """Return how many messages of these kinds have no reply yet."""
        return sum(sent.kind in kinds for sent in self._out.values())

    def receive(self, deadline: float, *kinds: str) -> Answer | None:
        """Return the next reply, of any kind; wait for it while one of `kinds` is out.

        Parameters
        ----------
        deadline : float
            On the clock of `time.monotonic`.
        *kinds : str
            What to wait for.

        Returns
        -------
        Answer or None
            None if nothing of `kinds` is out, or the deadline is reached.
        """
        pause = SHORTEST_POLL
        while not self._arrived:
            if not self.outstanding(*kinds):
                return None
            started = time.monotonic()
            self._poll()
            if self._arrived:
                break
            if started >= deadline:
                return None
            # A poll may be slow (an HTTP request, 1000 ids): never spend most time polling.
            pause = max(min(1.5 * pause, self._longest), 2 * (time.monotonic() - started))
            self._sleep(max(0.0, min(pause, deadline - time.monotonic())))
        return self._arrived.popleft()

    def arrived(self) -> Iterator[Answer]:
        """Yield the replies that are there now, without waiting."""
        self._poll()
        while self._arrived:
            yield self._arrived.popleft()

    def _poll(self) -> None:
        if not self._out:
            return
        messages = list(self.grid.pull_messages(list(self._out)))
        process_end.stop_if_told()
        for message in messages:
            sent = self._out.pop(message.metadata.reply_to_message_id, None)
            if sent is None:
                continue  # answered twice, or given up on
            if message.has_error():
                reason = reason_of(message)
                if self._simulated:  # a device may say of itself what it likes
                    process_end.stop_if_without_ray(reason)
                self._arrived.append(Answer(sent, None, reason))
            else:
                self._arrived.append(Answer(sent, message, None))

    def give_up(self, *kinds: str, node_id: int | None = None) -> list[Answer]:
        """Forget outstanding messages of these kinds (to one node); late replies are ignored."""
        lost = [
            (i, sent)
            for i, sent in self._out.items()
            if sent.kind in kinds and node_id in (None, sent.node_id)
        ]
        for message_id, _ in lost:
            del self._out[message_id]
        return [Answer(sent, None, "no answer before the deadline") for _, sent in lost]


def reason_of(message: Message) -> str:
    """Return the telling line of an error reply: the exception, without Ray's traceback.

    It is a device's own text, which goes on to the terminal, the records and the report: nothing in
    it can break the line or steer a terminal.
    """
    if (found := TOO_LARGE.search(message.error.reason or "")) is not None:
        return f"{REFUSED}: its reply is {found[0]}"
    # Ray reports the client's exception first, then Flower's wrapper around it.
    cause, _, _ = (message.error.reason or "").partition(RAY_WRAPPER)
    lines = [line.strip() for line in cause.splitlines() if line.strip()]
    text = lines[-1] if lines else f"error code {message.error.code}, no reason given"
    text = FLOWER_WRAPPER.sub(r"\1: ", text).removesuffix("'>").removesuffix('">')
    return visible(text[:LONGEST_REASON])[:LONGEST_REASON]
