"""The Grid of a simulation whose messages go straight to Flower's Ray workers.

Nothing else of Flower is gone around: its workers, with the cores and GPUs that it reserved for
them, run its ClientApp on its messages. See `strategies.base.ray_worker` for the reason. Where a
worker cannot be had in this way, messages go through Flower as they always did.
"""

from __future__ import annotations

import importlib
import os
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from server_app.rounds import process_end
from strategies.base.ray_worker import QUERY, RECORD, Seat, remembered_app

MOST_ASKED = 3
"""Rounds of questions, since Flower's workers are counted by what the first of them say."""
FIRST_ASKED = 8
"""Questions of the first round at most; few workers would be long at many."""
ASK_S = 300.0
"""Seconds until workers must have answered; they are starting, and importing the app."""
PAUSE_S = 0.02
"""Between two looks for nodes or answers."""
SHORT_S = 0.3
"""Work below it is queued at a worker, so that the next begins before the server has noticed."""
FAILED = 0
"""The code of an error whose reason says it all."""


@dataclass(eq=False)
class Worker:
    """One of Flower's Ray actors.

    Attributes
    ----------
    handle : ray.actor.ActorHandle
        Through which it is called.
    calls : deque of Call
        What it was given and has not answered, the oldest first.
    """

    handle: Any
    calls: deque[Call] = field(default_factory=deque)


@dataclass(eq=False)
class Call:
    """A message at a worker.

    Attributes
    ----------
    message : Message
        What is to be answered.
    worker : Worker
        By whom.
    reply : ray.ObjectRef
        Where the answer will be.
    since : float
        When the worker could begin, on the clock of `time.monotonic`.
    """

    message: Message
    worker: Worker
    reply: Any
    since: float


class WorkerGrid(Grid):
    """Hands messages to workers in the order in which they are pushed.

    Parameters
    ----------
    grid : Grid
        Flower's own, of a simulation; its nodes are this one's.
    handles : list
        Of the workers.
    """

    def __init__(self, grid: Grid, handles: list[Any]) -> None:
        self._ray = importlib.import_module("ray")
        self._grid = grid
        self._workers = [Worker(handle) for handle in handles]
        nodes = sorted(grid.get_node_ids())
        self._seats = {
            node: Seat(node, {"partition-id": i, "num-partitions": len(nodes)}, RecordDict())
            for i, node in enumerate(nodes)
        }
        self._waiting: deque[Message] = deque()
        self._calls: dict[Any, Call] = {}
        self._replies: dict[str, Message] = {}
        self._usual_s = SHORT_S  # until it is known, a worker is given one message at a time

    def set_run(self, run: Any) -> None:
        """Tell Flower's Grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Flower's record of the run."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Make a message by Flower's Grid."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids; in a simulation they stay the same."""
        return list(self._seats)

    def get_nodes(self) -> Iterable[Any]:
        """Return what Flower knows of the nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand messages to workers that have room, and keep the others in order."""
        ids = []
        for message in messages:
            # Flower's own id is a hash of all that the message holds, which may be a whole model.
            message_id = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = message_id
            self._waiting.append(message)
            ids.append(message_id)
        self._hand_out()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that are there.

        Whoever pulls names all messages that are still of interest, see `Transport`. Replies to
        others are dropped, and others that no worker has yet are never handed out: of a round that
        is over, they would change a client's state.
        """
        wanted = dict.fromkeys(message_ids)  # a set in order
        self._waiting = deque(m for m in self._waiting if m.metadata.message_id in wanted)
        self._take()
        self._hand_out()
        replies, self._replies = self._replies, {}
        return [replies[i] for i in wanted if i in replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Not available: the server sends as there is room, and takes replies as they come."""
        raise NotImplementedError("push and pull messages")

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until a worker is done."""
        if self._calls:
            with self._connected():
                self._ray.wait(list(self._calls), num_returns=1, timeout=seconds, fetch_local=False)
        else:
            time.sleep(seconds)

    def _hand_out(self) -> None:
        depth = 1 if self._usual_s >= SHORT_S else 2
        while self._waiting and self._workers:
            worker = min(self._workers, key=lambda worker: len(worker.calls))
            if len(worker.calls) >= depth:
                return
            self._call(worker, self._waiting.popleft())
        while self._waiting:
            message = self._waiting.popleft()
            self._replies[message.metadata.message_id] = _failed(
                message, "no worker of the simulation is left"
            )

    def _call(self, worker: Worker, message: Message) -> None:
        seat = self._seats[message.metadata.dst_node_id]
        with self._connected():
            reply = worker.handle.run.remote(remembered_app, message, str(seat.node_id), seat)
        call = Call(message, worker, reply, time.monotonic())
        worker.calls.append(call)
        self._calls[reply] = call

    def _take(self) -> None:
        if not self._calls:
            return
        with self._connected():
            done, _ = self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        for reply in done:
            if (call := self._calls.pop(reply, None)) is not None:
                self._replies[call.message.metadata.message_id] = self._result(call)

    def _result(self, call: Call) -> Message:
        """Return a worker's answer, or the error that took its place, as Flower words it."""
        worker = call.worker
        worker.calls.remove(call)
        try:
            _, message, seat = self._ray.get(call.reply)
        except self._ray.exceptions.RayError as error:
            if isinstance(error, self._ray.exceptions.RayActorError):
                self._drop(worker)
            return _failed(call.message, f"{type(error)}:<'{error}'>")
        now = time.monotonic()
        self._usual_s += 0.2 * (now - call.since - self._usual_s)
        if worker.calls:
            worker.calls[0].since = now
        self._seats[seat.node_id].state = seat.state
        reply: Message = message
        return reply

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """End the ServerApp where this process leaves Ray: no call may start a second Ray."""
        process_end.stop_if_without_ray("")
        try:
            yield
        except self._ray.exceptions.RayError as error:
            process_end.stop_if_without_ray(str(error))
            raise

    def _drop(self, worker: Worker) -> None:
        """Give a dead worker's messages to others: of these it had begun with the first alone."""
        if worker in self._workers:
            self._workers.remove(worker)
        for call in reversed(worker.calls):
            del self._calls[call.reply]
            self._waiting.appendleft(call.message)
        worker.calls.clear()


def _failed(message: Message, reason: str) -> Message:
    return Message(Error(code=FAILED, reason=reason), reply_to=message)


def with_workers(grid: Grid, patience: float = ASK_S) -> Grid:
    """Return a Grid that reaches a simulation's workers, or the given one if they cannot be had.

    Parameters
    ----------
    grid : Grid
        Flower's, of a simulation.
    patience : float
        Seconds to wait for the first worker.
    """
    found: dict[str, Any] = {}
    wanted = min(FIRST_ASKED, os.cpu_count() or 1)
    for _ in range(MOST_ASKED):
        cards = _ask(grid, wanted, patience)
        if cards is None:
            return grid
        ray = importlib.import_module("ray")
        for card in cards:
            # From Flower's own actor in this Ray, which unpickles all that its actors say
            found[str(card["name"])] = ray.cloudpickle.loads(card["handle"])
        wanted = _how_many(cards[0])
        if len(found) >= min(wanted, len(list(grid.get_node_ids()))):
            break
    return WorkerGrid(grid, list(found.values()))


def _ask(grid: Grid, count: int, patience: float) -> list[Any] | None:
    """Ask so many nodes at once for their workers; None if one of them cannot tell."""
    deadline = time.monotonic() + patience
    while not (nodes := sorted(grid.get_node_ids())[:count]) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)  # Flower starts the ServerApp before it makes the nodes
    ids = {
        message_id
        for message_id in grid.push_messages(
            [Message(RecordDict(), node, QUERY, ttl=patience + 60, group_id="0") for node in nodes]
        )
        if message_id
    }
    cards: list[Any] = []
    while ids and time.monotonic() < deadline:
        for message in grid.pull_messages(ids):
            process_end.stop_if_told()
            ids.discard(message.metadata.reply_to_message_id)
            if message.has_error() or RECORD not in message.content:
                return None
            cards.append(message.content[RECORD])
        time.sleep(PAUSE_S)
    return None if ids else cards or None


def _how_many(card: Any) -> int:
    """Return how many workers Flower started, each with what this one has."""
    module = importlib.import_module("flwr.simulation.ray_transport.ray_actor")
    resources = {"num_cpus": card["num_cpus"], "num_gpus": card["num_gpus"]}
    count: int = module.pool_size_from_resources(resources)
    return count
