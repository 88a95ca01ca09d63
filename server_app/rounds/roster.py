"""Who takes part: waiting for nodes, the registration, late joiners and who is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.serverapp import Grid

from server_app.rounds.key_names import KeyNames
from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.method_server import MethodServer
from server_app.rounds.transport import Answer, Sent, Transport, is_simulation
from strategies.base.messages import CLIENT_INFO, ClientInfo, SetUpProblem
from strategies.base.payload import PayloadError
from strategies.base.server import RegistrationError

ALL_THERE_S = 5.0
"""A simulation makes its nodes at once, so that none is new for so long only when all are there."""


class DuplicateClientError(RegistrationError):
    """Two connected nodes say that they are the same client."""


class Roster:
    """The clients of a run by their own ids; Flower's node ids are random and only an address.

    Parameters
    ----------
    server, transport, messages
        Of the run.
    refuse : callable, optional
        Returns why a client information cannot be accepted, or None.
    """

    def __init__(
        self,
        server: MethodServer,
        transport: Transport,
        messages: MessageFactory,
        refuse: Callable[[ClientInfo], str | None] = lambda info: None,
    ) -> None:
        self.server = server
        self.refuse = refuse
        self.run = server.run
        self.transport = transport
        self.messages = messages
        self.problems: list[tuple[int | None, str]] = []
        self._key_names = KeyNames(transport.grid)
        self._asked: dict[int, float] = {}
        self._failed: set[int] = set()
        self._reported: set[tuple[int, str]] = set()

    @property
    def grid(self) -> Grid:
        """The Grid that reaches the nodes."""
        return self.transport.grid

    def assemble(self) -> None:
        """Wait for `min-clients` nodes, call the roll, and admit who fits.

        Raises
        ------
        RegistrationError
            Too few clients in time, a set-up mistake, two clients with one id, or a client that
            does not fit the method.
        """
        self._wait_for_nodes()
        self.invite()
        infos, errors = self._call_roll()
        mistakes = [text for kind, text in errors if kind == "set-up"]
        if mistakes or (errors and self.run.on_client_error == "stop"):
            texts = mistakes or [text for _, text in errors]
            raise RegistrationError(_grouped(texts))
        self.problems += [(None, text) for _, text in errors]
        if len(infos) < self.run.min_clients:
            reasons = f"; {_grouped([text for _, text in errors])}" if errors else ""
            raise RegistrationError(
                f"{len(infos)} of {self.run.min_clients} clients answered the registration{reasons}"
            )
        self._admit(infos)

    def invite(self, *, again: bool = True) -> None:
        """Ask nodes for their client information, without waiting.

        New nodes are asked, and, unless `again` is false, also those whose last answer was a
        failure, or that have not answered within `wait-timeout`: a restarted node can lose the
        question, and keeps its node id.
        """
        now = time.monotonic()
        online = set(self.grid.get_node_ids())
        if again:
            for node, since in self._asked.items():
                silent = now - since > self.run.wait_timeout
                if silent and self.transport.give_up("query", node_id=node):
                    self._failed.add(node)
            online_failed = self._failed & online
            self._failed -= online_failed
        else:
            online_failed = set()
        # A node that went away is asked again when it is back.
        self._asked = {n: t for n, t in self._asked.items() if n in online - online_failed}
        new = sorted(online - set(self._asked))
        self._asked |= dict.fromkeys(new, now)
        self.transport.push((self.messages.query(node), Sent("query", node, None)) for node in new)

    def take(self, answer: Answer) -> None:
        """Admit a late joiner, who takes part from the next round, or note why not."""
        info, error = self._read(answer)
        node = answer.sent.node_id
        if info is None:
            self._complain(node, None, error[1] if error else "no info")
            return
        try:
            self._admit([(node, info)])
        except RegistrationError as problem:
            # Often a restarted client that is back before Flower notices that its old node is
            # gone (up to a minute).
            self._complain(node, info.client_id, str(problem))

    def _complain(self, node: int, client_id: int | None, reason: str) -> None:
        """Note a node that cannot join, once for every reason; it is asked again next round."""
        self._failed.add(node)
        if (node, reason) not in self._reported:
            self._reported.add((node, reason))
            self.problems.append((client_id, reason))

    def online(self) -> list[int]:
        """Return the ids of the clients that can be reached now, ascending."""
        nodes = set(self.grid.get_node_ids())
        return sorted(c for c, node in self.messages.nodes.items() if node in nodes)

    def wait_online(self) -> list[int]:
        """Return who is online, once there are `min-clients` and one of them can train.

        Raises
        ------
        RegistrationError
            If that does not happen within `wait-timeout`.
        """
        deadline = time.monotonic() + self.run.wait_timeout
        if not any(info.train_examples for info in self.server.clients.values()):
            raise RegistrationError(
                "no client has training examples; lower min-examples, or add data"
            )
        while True:
            online = self.online()
            can_train = any(self.server.clients[i].train_examples for i in online)
            if len(online) >= self.run.min_clients and can_train:
                return online
            if time.monotonic() >= deadline:
                lack = "" if can_train else ", none of them with training examples,"
                raise RegistrationError(
                    f"{len(online)} of {self.run.min_clients} clients{lack} after "
                    f"{self.run.wait_timeout:g} s (min-clients, wait-timeout)"
                )
            self.invite(again=False)
            for answer in self.transport.arrived():
                if answer.sent.kind == "query":
                    self.take(answer)
            time.sleep(0.5)

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + self.run.wait_timeout
        told, seen, since = False, 0, time.monotonic()
        while (count := len(list(self.grid.get_node_ids()))) < self.run.min_clients:
            if time.monotonic() >= deadline:
                raise RegistrationError(
                    f"{count} of {self.run.min_clients} clients after {self.run.wait_timeout:g} s "
                    "(min-clients, wait-timeout)"
                )
            if count != seen:
                seen, since = count, time.monotonic()
            if count and is_simulation(self.grid) and time.monotonic() - since > ALL_THERE_S:
                raise RegistrationError(
                    f"min-clients = {self.run.min_clients}: expected at most {count}, the number "
                    "of clients that are simulated (num-supernodes); no more can come"
                )
            if not told:
                print(f"waiting for {self.run.min_clients} clients, {count} here", flush=True)
                told = True
            time.sleep(0.2)

    def _call_roll(self) -> tuple[list[tuple[int, ClientInfo]], list[tuple[str, str]]]:
        """Collect infos until all have answered, or enough have and the rest stay silent."""
        infos: list[tuple[int, ClientInfo]] = []
        errors: list[tuple[str, str]] = []
        limit = time.monotonic() + self.run.round_timeout
        while True:
            enough = len(infos) >= self.run.min_clients
            patience = time.monotonic() + self.run.wait_timeout if enough else limit
            answer = self.transport.receive(min(patience, limit), "query")
            if answer is None:
                break  # whoever answers later joins later
            info, error = self._read(answer)
            if info is not None:
                infos.append((answer.sent.node_id, info))
            if error is not None:
                errors.append(error)
                self._failed.add(answer.sent.node_id)
        return sorted(infos, key=lambda pair: pair[1].client_id), errors

    def _read(self, answer: Answer) -> tuple[ClientInfo | None, tuple[str, str] | None]:
        """Return the client information of a node whose key is that client's, or what is wrong."""
        info, error = _read_client_info(answer)
        if info is not None:
            refusal = self._key_names.refusal(answer.sent.node_id, info.client_id)
            if refusal is not None:
                return None, ("failure", refusal)
        return info, error

    def _admit(self, infos: list[tuple[int, ClientInfo]]) -> None:
        online = set(self.grid.get_node_ids())
        nodes = {c: n for c, n in self.messages.nodes.items() if n in online}
        for node, info in infos:
            if nodes.get(info.client_id, node) != node:
                raise DuplicateClientError(
                    f"client {info.client_id}: two connected nodes have this id; give each its "
                    "own client-id (or partition-id) in its node-config"
                )
            nodes[info.client_id] = node
        for _, info in infos:
            if (problem := self.refuse(info)) is not None:
                raise RegistrationError(problem)
        self.server.admit(info for _, info in infos)
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


def _read_client_info(answer: Answer) -> tuple[ClientInfo | None, tuple[str, str] | None]:
    """Return the client information, or the kind of problem ("set-up", "failure") and its text."""
    node = f"node {answer.sent.node_id}"
    if answer.message is None:
        return None, ("failure", f"{node}: {answer.reason}")
    record: Mapping[str, Any] = answer.message.content.config_records.get(CLIENT_INFO, {})
    try:
        if "problem" in record:
            wrong = SetUpProblem.from_record(record)
            return None, ("set-up", f"client {wrong.who}: {wrong.problem}")
        return ClientInfo.from_record(record), None
    except PayloadError as error:
        return None, ("set-up", f"{node}: {error}")
