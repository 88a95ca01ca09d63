"""One round: its messages go out, their replies are checked and put in client order."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

from flwr.app import Message

from server_app.console import say
from server_app.records.payload_files import PayloadFiles
from server_app.records.round_result import REFUSED, Failure, RoundResult, Traffic
from server_app.records.soundness import DIVERGED_KIND
from server_app.rounds.method_server import MethodServer
from server_app.rounds.progress import RoundProgress
from server_app.rounds.roster import Roster
from server_app.rounds.send_order import SendOrder
from server_app.rounds.send_queue import SendQueue
from server_app.rounds.server_steps import smaller_steps
from server_app.rounds.transport import Answer, Sent, Transport, window_of
from strategies.base.bounds import unlike_others
from strategies.base.messages import ClientUpdate, Control, count_bytes
from strategies.base.payload import PayloadError
from strategies.base.state import non_finite_entries


class RunError(RuntimeError):
    """The run cannot go on."""


class Exchange:
    """Sends one round's messages and receives the replies.

    Parameters
    ----------
    server, transport, roster
        Of the run.
    control : Control
        What all messages say: which round it is, and which exchange of it, among others.
    participants : list of int
        Clients that train.
    others : list of int
        Clients that are evaluated only.
    tests : set of int, optional
        Which of both measure the test split; all by default.
    send_order : SendOrder, optional
        What clients needed for earlier messages of the run.
    payloads : PayloadFiles, optional
        Where uplinks are kept, if they are.
    """

    def __init__(
        self,
        server: MethodServer,
        transport: Transport,
        roster: Roster,
        control: Control,
        participants: list[int],
        others: list[int],
        tests: set[int] | None = None,
        send_order: SendOrder | None = None,
        payloads: PayloadFiles | None = None,
    ) -> None:
        self.server = server
        self._payloads = payloads
        self.control = control
        self.transport = transport
        self.roster = roster
        self.result = RoundResult(control.round, sorted(participants))
        window = window_of(transport.grid)
        # Devices work all at once, and one process on one message: no order leaves any idle.
        self._send_order = send_order if send_order and window not in (None, 1) else SendOrder()
        order = {"train": self.result.participants, "evaluate": others}
        self._order = {
            kind: self._send_order.ordered(kind, clients) for kind, clients in order.items()
        }
        self._tests = {*participants, *others} if tests is None else tests
        self._deadline = time.monotonic() + server.run.round_timeout
        planned = [(kind, i) for kind, clients in self._order.items() for i in clients]
        self._queue = SendQueue(transport, window, self._send_order, planned, self._messages())
        name = "closing evaluation" if control.final else f"round {control.round}"
        name += f", exchange {control.exchange}" if control.exchange > 1 else ""
        self._progress = RoundProgress(name, len(planned))
        self._answered: set[int] = set()
        self._ready: dict[int, ClientUpdate] = {}
        self._all_read = False

    def run(self) -> RoundResult:
        """Send, receive and aggregate; raises `RunError` if no participant answers validly."""
        started = time.perf_counter()
        self._queue.fill(self._deadline)
        if self.result.participants:
            self._aggregate()
        while self._receive("train", "evaluate"):
            pass
        self._close_overdue()
        self.result.seconds = time.perf_counter() - started
        return self.result

    def _messages(self) -> Generator[tuple[Message, Sent], None, None]:
        """Build the round's messages as they are asked for, and count their traffic."""
        try:
            for kind, clients in self._order.items():
                yield from self._built(kind, clients)
        finally:
            self.roster.messages.forget()

    def _built(self, kind: str, clients: list[int]) -> Iterator[tuple[Message, Sent]]:
        messages = self.server.messages(
            self.roster.messages, kind, clients, self._tests, self.control
        )
        for client_id, message in zip(clients, messages, strict=True):
            scalars, size = self.roster.messages.last_scalars, count_bytes(message.content)
            self.result.traffic.append(Traffic(client_id, "downlink", scalars, size, kind))
            self._send_order.weigh(size)
            yield message, Sent(kind, message.metadata.dst_node_id, client_id)

    def _aggregate(self) -> None:
        number = self.result.server_round
        updates = self._in_client_order()
        self.result.server_metrics = self.server.aggregate(updates)
        if self._queue.left and not self._all_read:
            raise RunError(
                f"round {number}: {self.server.method.name} aggregated before it had read all "
                f"updates, so {len(self._queue.left)} messages would carry its new state; its "
                "aggregate must read on to the end"
            )
        broken = non_finite_entries(self.server.state)
        if broken:
            reason = (
                f"the server's {', '.join(broken[:3])} became NaN or infinite; "
                f"{smaller_steps(self.server.run)}"
            )
            self.result.failures.append(Failure(None, DIVERGED_KIND, reason))
            raise RunError(f"round {number}: {reason}")
        for _ in updates:
            pass  # a method may stop reading early; the replies are still awaited

    def _in_client_order(self) -> Iterator[ClientUpdate]:
        """Yield valid uplinks by ascending client id, each as soon as its turn has come.

        A fixed order makes sums independent of who answers first; early replies wait here. Nothing
        here refers to an update once it was given away. At the end all messages have been sent,
        so that none is made of the state that comes out of the aggregation.

        Raises
        ------
        RunError
            If there is no valid uplink at all.
        """
        valid = 0
        if self._queue.window is None:
            self._compare()
        for number, client_id in enumerate(self.result.participants):
            self._queue.aggregated = number
            self._keep_workers_busy()
            while client_id not in self._answered:
                if not self._receive("train"):
                    self._close_overdue()
                    break
            if client_id in self._ready:
                valid += 1
                yield self._ready.pop(client_id)
        self._queue.aggregated = len(self.result.participants)
        if not valid:
            self._refuse_empty_round()
        while self._queue.left and self._receive("train", "evaluate"):
            pass
        self._all_read = True

    def _compare(self) -> None:
        """Wait for all participants, and refuse who sends what is far larger than the others do.

        On devices, which work all at once: in a simulation replies are aggregated as they come,
        and most are not asked for before others are done with.
        """
        while not self._answered >= {*self.result.participants} and self._receive("train"):
            pass
        sizes = {client: update.sizes for client, update in sorted(self._ready.items())}
        for client_id, reason in unlike_others(sizes, self.server.run.max_update).items():
            del self._ready[client_id]
            self.result.rows = [row for row in self.result.rows if row[0] != client_id]
            self._fail(client_id, "train", f"{REFUSED}: {reason}")

    def _refuse_empty_round(self) -> None:
        reasons = "; ".join(f"client {f.client_id}: {f.reason}" for f in self.result.failures[:5])
        raise RunError(
            f"round {self.result.server_round}: none of {len(self.result.participants)} "
            f"participants answered validly ({reasons or 'none had training examples'})"
        )

    def _receive(self, *kinds: str) -> bool:
        """Send what there is room for, then take one reply; false if there is none to come."""
        self._queue.fill(self._deadline)
        answer = self.transport.receive(self._deadline, *kinds)
        if answer is None:
            return False
        self._take(answer)
        return True

    def _keep_workers_busy(self) -> None:
        """Take what is there and send more before an update is aggregated, which may take long."""
        if self._queue.window is not None:
            for answer in self.transport.arrived():
                self._take(answer)
            self._queue.fill(self._deadline)

    def _take(self, answer: Answer) -> None:
        if answer.sent.kind == "query":
            self.roster.take(answer)
            return
        self._queue.answered()
        self._progress.answered()
        client_id = answer.sent.client_id
        if client_id is None:
            raise RunError(f"a {answer.sent.kind} reply came from no known client")
        if answer.message is None:
            self._fail(client_id, answer.sent.kind, answer.reason or "no reason given")
            return
        try:
            update = self.server.read(client_id, answer.message.content, self.control.phase)
        except PayloadError as error:
            self._fail(client_id, answer.sent.kind, f"{REFUSED}: {error}")
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
        self._send_order.note(kind, update)
        result.rounds_trained[update.client_id] = update.rounds_trained
        if kind == "train":
            self._answered.add(update.client_id)
            if update.uplink is None:
                self._fail(update.client_id, "skipped", "no training examples", stop=False)
            else:
                self._ready[update.client_id] = update
                if self._payloads is not None:
                    self._payloads.keep(update, self.control.round, self.control.exchange)

    def _fail(self, client_id: int, kind: str, reason: str, *, stop: bool = True) -> None:
        number = self.result.server_round
        say(f"round {number}: client {client_id} ({kind}): {reason}")
        self.result.failures.append(Failure(client_id, kind, reason))
        self._answered.add(client_id)
        if stop and self.server.run.on_client_error == "stop":
            raise RunError(f"round {number}: client {client_id}: {reason} (on-client-error = stop)")

    def _close_overdue(self) -> None:
        """Name who did not answer in time, and who was to be asked later."""
        late = [
            (a.sent.kind, a.sent.client_id) for a in self.transport.give_up("train", "evaluate")
        ]
        for _ in late:
            self._queue.answered()
        reason = f"no answer within {self.server.run.round_timeout:g} s (round-timeout)"
        for kind, client_id in [*late, *self._queue.drop()]:
            if client_id is not None:
                self.result.late.add(client_id)
                self._fail(client_id, kind, reason)
