"""One round: one push of messages, their replies, checked and put in client order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message

from server_app.inbox import Answer, Inbox, Sent
from server_app.roster import Roster
from strategies.base.exchange import ClientUpdate, MetricRow, count_bytes
from strategies.base.payload import PayloadError
from strategies.base.server import ServerHalf
from strategies.base.state import non_finite_entries


class RunError(RuntimeError):
    """The run cannot go on."""


@dataclass(frozen=True)
class Failure:
    """A client that did not contribute to a round, and why."""

    client_id: int | None
    kind: str
    reason: str


@dataclass(frozen=True)
class Traffic:
    """One message's cost: scalars in the paper's convention and bytes of the real records."""

    client_id: int
    direction: str
    scalars: int
    num_bytes: int
    purpose: str


@dataclass
class RoundResult:
    """Everything a round produced."""

    server_round: int
    participants: list[int]
    rows: list[tuple[int, MetricRow]] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    server_metrics: dict[str, float] = field(default_factory=dict)
    compute_s: float = 0.0
    seconds: float = 0.0
    workers: set[str] = field(default_factory=set)
    rounds_trained: dict[int, int] = field(default_factory=dict)


class Round:
    """Sends one round's messages and receives the replies.

    Parameters
    ----------
    strategy, inbox, roster
        Of the run.
    server_round : int
        The round; 0 is never used.
    participants : list of int
        Clients that train.
    others : list of int
        Clients that are evaluated only.
    """

    def __init__(
        self,
        strategy: ServerHalf[Any],
        inbox: Inbox,
        roster: Roster,
        server_round: int,
        participants: list[int],
        others: list[int],
    ) -> None:
        self.strategy = strategy
        self.inbox = inbox
        self.roster = roster
        self.result = RoundResult(server_round, participants)
        self._others = others
        self._deadline = time.monotonic() + strategy.run.round_timeout
        self._ready: dict[int, ClientUpdate | None] = {}

    def exchange(self) -> RoundResult:
        """Send, receive and aggregate; raises `RunError` if no participant answers validly."""
        started = time.perf_counter()
        self._send("train", self.result.participants)
        self._send("evaluate", self._others)
        if self.result.participants:
            self._aggregate()
        while answer := self.inbox.receive(self._deadline, "train", "evaluate"):
            self._take(answer)
        self._close_overdue()
        self.result.seconds = time.perf_counter() - started
        return self.result

    def _send(self, kind: str, clients: list[int]) -> None:
        configure = getattr(self.strategy, f"configure_{kind}")
        messages = configure(
            self.result.server_round,
            ArrayRecord(),
            ConfigRecord({"participants": list(clients)}),
            self.inbox.grid,
        )
        self.inbox.push(self._note(kind, clients, messages))

    def _note(
        self, kind: str, clients: list[int], messages: Iterable[Message]
    ) -> Iterator[tuple[Message, Sent]]:
        """Count each message's traffic as it goes out."""
        for client_id, message in zip(clients, messages, strict=True):
            factory = self.roster.messages
            size = count_bytes(message.content)
            self.result.traffic.append(
                Traffic(client_id, "downlink", factory.last_scalars, size, kind)
            )
            yield message, Sent(kind, message.metadata.dst_node_id, client_id)

    def _aggregate(self) -> None:
        updates = self._in_client_order()
        first = next(updates, None)
        if first is None:
            reasons = "; ".join(
                f"client {f.client_id}: {f.reason}" for f in self.result.failures[:5]
            )
            raise RunError(
                f"round {self.result.server_round}: none of {len(self.result.participants)} "
                f"participants answered validly ({reasons or 'none had training examples'})"
            )
        self.result.server_metrics = self.strategy.aggregate(
            self.result.server_round, _chain(first, updates)
        )
        broken = non_finite_entries(self.strategy.state)
        if broken:
            raise RunError(
                f"round {self.result.server_round}: the server's {', '.join(broken[:3])} became "
                f"NaN or infinite; lower the learning rates ({self.strategy.method.name}.server-lr)"
            )
        for _ in updates:
            pass  # a method may stop reading early; the replies are still awaited

    def _in_client_order(self) -> Iterator[ClientUpdate]:
        """Yield valid uplinks by ascending client id, each as soon as its turn has come.

        A fixed order makes sums independent of who answers first; early replies wait here.
        """
        for client_id in sorted(self.result.participants):
            while client_id not in self._ready:
                answer = self.inbox.receive(self._deadline, "train")
                if answer is None:
                    self._close_overdue()
                    break
                self._take(answer)
            update = self._ready.pop(client_id, None)
            if update is not None and update.uplink is not None:
                yield update

    def _take(self, answer: Answer) -> None:
        if answer.sent.kind == "query":
            self.roster.take(answer)
            return
        client_id = answer.sent.client_id
        if client_id is None:
            raise RunError(f"a {answer.sent.kind} reply came from no known client")
        if answer.message is None:
            self._fail(client_id, answer.sent.kind, answer.reason or "no reason given")
            return
        try:
            update = self.strategy.read(client_id, self.result.server_round, answer.message.content)
        except PayloadError as error:
            self._fail(client_id, answer.sent.kind, f"refused payload: {error}")
            return
        self._accept(update, answer.sent.kind)

    def _accept(self, update: ClientUpdate, kind: str) -> None:
        result = self.result
        result.rows += [(update.client_id, row) for row in update.rows]
        result.traffic.append(
            Traffic(update.client_id, "uplink", update.scalars, update.num_bytes, kind)
        )
        result.compute_s += update.compute_s
        result.workers.add(update.worker)
        result.rounds_trained[update.client_id] = update.rounds_trained
        if kind == "train":
            self._ready[update.client_id] = update
            if update.uplink is None:
                self._fail(update.client_id, "skipped", "no training examples", stop=False)

    def _fail(self, client_id: int, kind: str, reason: str, *, stop: bool = True) -> None:
        number = self.result.server_round
        print(f"round {number}: client {client_id} ({kind}): {reason}", flush=True)
        self.result.failures.append(Failure(client_id, kind, reason))
        self._ready.setdefault(client_id, None)
        if stop and self.strategy.run.on_client_error == "stop":
            raise RunError(f"round {number}: client {client_id}: {reason} (on-client-error = stop)")

    def _close_overdue(self) -> None:
        seconds = self.strategy.run.round_timeout
        for answer in self.inbox.give_up("train", "evaluate"):
            if answer.sent.client_id is not None:
                self._fail(
                    answer.sent.client_id,
                    answer.sent.kind,
                    f"no answer within {seconds:g} s (round-timeout)",
                )


def _chain(first: ClientUpdate, rest: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
    yield first
    yield from rest
