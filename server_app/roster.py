"""Who takes part: waiting for nodes, the roll call, late joiners and who is away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from flwr.serverapp import Grid

from server_app.inbox import Answer, Inbox, Sent
from strategies.base.exchange import CARD, Card, MessageFactory
from strategies.base.payload import PayloadError
from strategies.base.server import RosterError, ServerHalf


class DuplicateClientError(RosterError):
    """Two connected nodes say that they are the same client."""


class Roster:
    """The clients of a run by their own ids; Flower's node ids are random and only an address."""

    def __init__(self, strategy: ServerHalf[Any], inbox: Inbox, messages: MessageFactory) -> None:
        self.strategy = strategy
        self.run = strategy.run
        self.inbox = inbox
        self.messages = messages
        self.problems: list[tuple[int | None, str]] = []
        self._asked: set[int] = set()
        self._duplicates: set[int] = set()

    @property
    def grid(self) -> Grid:
        """The Grid that reaches the nodes."""
        return self.inbox.grid

    def assemble(self) -> None:
        """Wait for `min-clients` nodes, call the roll, and admit who fits.

        Raises
        ------
        RosterError
            Too few clients in time, a set-up mistake, two clients with one id, or a client that
            does not fit the method.
        """
        self._wait_for_nodes()
        self.invite()
        cards, errors = self._call_roll()
        mistakes = [text for kind, text in errors if kind == "set-up"]
        if mistakes or (errors and self.run.on_client_error == "stop"):
            texts = mistakes or [text for _, text in errors]
            raise RosterError(_grouped(texts))
        self.problems += [(None, text) for _, text in errors]
        if len(cards) < self.run.min_clients:
            reasons = f"; {_grouped([text for _, text in errors])}" if errors else ""
            raise RosterError(
                f"{len(cards)} of {self.run.min_clients} clients answered the roll call{reasons}"
            )
        self._admit(cards)

    def invite(self) -> None:
        """Ask every node that was not asked before for its card, without waiting."""
        new = sorted(set(self.grid.get_node_ids()) - self._asked)
        self._asked |= set(new)
        self.inbox.push((self.messages.query(node), Sent("query", node, None)) for node in new)

    def take(self, answer: Answer) -> None:
        """Admit a late joiner, who takes part from the next round, or note why not."""
        card, error = _read_card(answer)
        if card is None:
            self.problems.append((None, error[1] if error else "no card"))
            return
        node = answer.sent.node_id
        try:
            self._admit([(node, card)])
        except DuplicateClientError as problem:
            # A restarted client is back before Flower notices that its old node is gone (up to
            # a minute): it is asked again, and complained about once.
            self._asked.discard(node)
            if node not in self._duplicates:
                self._duplicates.add(node)
                self.problems.append((card.client_id, str(problem)))
        except RosterError as problem:
            self.problems.append((card.client_id, str(problem)))

    def online(self) -> list[int]:
        """Return the ids of the clients that can be reached now, ascending."""
        nodes = set(self.grid.get_node_ids())
        return sorted(c for c, node in self.messages.nodes.items() if node in nodes)

    def wait_online(self) -> list[int]:
        """Return who is online, once there are `min-clients`; raises `RosterError` in time."""
        deadline = time.monotonic() + self.run.wait_timeout
        while True:
            online = self.online()
            if len(online) >= self.run.min_clients:
                return online
            if time.monotonic() >= deadline:
                raise RosterError(
                    f"{len(online)} of {self.run.min_clients} clients after "
                    f"{self.run.wait_timeout:g} s (min-clients, wait-timeout)"
                )
            self.invite()
            for answer in self.inbox.arrived():
                if answer.sent.kind == "query":
                    self.take(answer)
            time.sleep(0.5)

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + self.run.wait_timeout
        told = False
        while (count := len(list(self.grid.get_node_ids()))) < self.run.min_clients:
            if time.monotonic() >= deadline:
                raise RosterError(
                    f"{count} of {self.run.min_clients} clients after {self.run.wait_timeout:g} s "
                    "(min-clients, wait-timeout)"
                )
            if not told:
                print(f"waiting for {self.run.min_clients} clients, {count} here", flush=True)
                told = True
            time.sleep(0.2)

    def _call_roll(self) -> tuple[list[tuple[int, Card]], list[tuple[str, str]]]:
        """Collect cards until all have answered, or enough have and the rest stay silent."""
        cards: list[tuple[int, Card]] = []
        errors: list[tuple[str, str]] = []
        limit = time.monotonic() + self.run.round_timeout
        while True:
            enough = len(cards) >= self.run.min_clients
            patience = time.monotonic() + self.run.wait_timeout if enough else limit
            answer = self.inbox.receive(min(patience, limit), "query")
            if answer is None:
                break  # whoever answers later joins later
            card, error = _read_card(answer)
            if card is not None:
                cards.append((answer.sent.node_id, card))
            if error is not None:
                errors.append(error)
        return sorted(cards, key=lambda pair: pair[1].client_id), errors

    def _admit(self, cards: list[tuple[int, Card]]) -> None:
        online = set(self.grid.get_node_ids())
        nodes = {c: n for c, n in self.messages.nodes.items() if n in online}
        for node, card in cards:
            if nodes.get(card.client_id, node) != node:
                raise DuplicateClientError(
                    f"client {card.client_id}: two connected nodes have this id; give each its "
                    "own client-id (or partition-id) in its node-config"
                )
            nodes[card.client_id] = node
        self.strategy.admit(card for _, card in cards)
        self.messages.nodes |= nodes


def _grouped(texts: list[str]) -> str:
    """Join problems `who: what`, naming once what several clients have in common."""
    by_problem: dict[str, list[str]] = {}
    for text in texts:
        who, _, what = text.partition(": ")
        by_problem.setdefault(what, []).append(who)
    parts = [
        ", ".join(who[:3]) + (f" and {len(who) - 3} more" if len(who) > 3 else "") + f": {what}"
        for what, who in by_problem.items()
    ]
    return "; ".join(parts[:3]) + (f"; and {len(parts) - 3} more" if len(parts) > 3 else "")


def _read_card(answer: Answer) -> tuple[Card | None, tuple[str, str] | None]:
    """Return the card, or the kind of problem ("set-up" or "failure") and its text."""
    node = f"node {answer.sent.node_id}"
    if answer.message is None:
        return None, ("failure", f"{node}: {answer.reason}")
    record: Mapping[str, Any] = answer.message.content.config_records.get(CARD, {})
    if "problem" in record:
        return None, ("set-up", f"client {record.get('who')}: {record['problem']}")
    try:
        return Card.from_record(record), None
    except PayloadError as error:
        return None, ("set-up", f"{node}: {error}")
