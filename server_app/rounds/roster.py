"""Who takes part: waiting for nodes, the registration, late joiners and who is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from flwr.serverapp import Grid

from server_app.console import say
from server_app.records.client_tasks import named_clients
from server_app.rounds.client_answers import Problem, grouped, read_answer
from server_app.rounds.in_process import InProcessGrid
from server_app.rounds.key_names import KeyNames
from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.method_server import MethodServer
from server_app.rounds.transport import Answer, Sent, Transport, is_simulation
from strategies.base.messages import ClientInfo
from strategies.base.server import RegistrationError

ALL_THERE_S = 5.0
"""A simulation makes its nodes at once, so that none is new for so long only when all are there."""


class Roster:
    """The clients of a run by their own ids; Flower's node ids are random and only an address.

    Parameters
    ----------
    server, transport, messages
        Of the run.
    refuse : callable, optional
        Returns why a client information cannot be accepted, or None.
    barred : set of int, optional
        Clients that take no part, whether they are there or not; may grow while the run goes on.
    """

    def __init__(
        self,
        server: MethodServer,
        transport: Transport,
        messages: MessageFactory,
        refuse: Callable[[ClientInfo], str | None] = lambda info: None,
        barred: AbstractSet[int] = frozenset(),
    ) -> None:
        self.server = server
        self.barred = barred
        self.refuse = refuse
        self.run = server.run
        self.transport = transport
        self.messages = messages
        self.problems: list[tuple[int | None, str]] = []
        self._key_names = KeyNames(transport.grid)
        grid = transport.grid
        self._one_machine = is_simulation(grid) or isinstance(grid, InProcessGrid)
        server.devices = not self._one_machine
        self._asked: dict[int, float] = {}
        self._failed: set[int] = set()
        self._reported: set[tuple[int, str]] = set()

    @property
    def grid(self) -> Grid:
        """The Grid that reaches the nodes."""
        return self.transport.grid

    def assemble(self) -> None:
        """Wait for `min-clients` nodes, call the roll, and admit who fits.

        Who is left out is in `problems`: a client that failed, and on devices also one whose set-up
        or answer is wrong, a second node with one id, and who does not fit the others. Where all
        clients are one person's, in a simulation, these are mistakes in the run's settings, and
        end it before it has cost anything; so does every problem with `on-client-error = "stop"`.

        Raises
        ------
        RegistrationError
            Too few clients in time, or a problem that ends the run.
        """
        deadline = time.monotonic() + self.run.wait_timeout
        self._wait_for_nodes()
        self.invite()
        infos, refused = self._call_roll()
        while True:
            fitting, unfit = self._fitting(infos)
            ends = [problem for problem in refused + unfit if self._ends_the_run(problem)]
            if ends:
                mistakes = [problem for problem in ends if problem.mistake]
                raise RegistrationError(grouped(problem.text for problem in mistakes or ends))
            if len(fitting) >= self.run.min_clients or not self._may_come(deadline):
                break
            self._hear_newcomers(infos, refused)
        if len(fitting) < self.run.min_clients:
            reasons = grouped(problem.text for problem in refused + unfit)
            raise RegistrationError(
                f"{len(fitting)} of {self.run.min_clients} clients answered the registration"
                + (f"; {reasons}" if reasons else "")
            )
        for problem in refused + unfit:
            self._complain(problem)
        self._admit(fitting)

    def _ends_the_run(self, problem: Problem) -> bool:
        """Say whether the run is not to start because of one client, whoever else is there."""
        return self.run.on_client_error == "stop" or (problem.mistake and self._one_machine)

    def _may_come(self, deadline: float) -> bool:
        """Say whether there is time, and whether more clients can come, to take a place."""
        return time.monotonic() < deadline and not self._one_machine

    def _hear_newcomers(self, infos: list[tuple[int, ClientInfo]], refused: list[Problem]) -> None:
        """Ask nodes that came since, and take what answers are there."""
        self.invite(again=False)
        time.sleep(0.2)
        for answer in self.transport.arrived():
            self._sort(answer, infos, refused)
        infos.sort(key=lambda pair: pair[1].client_id)

    def _fitting(
        self, infos: list[tuple[int, ClientInfo]]
    ) -> tuple[list[tuple[int, ClientInfo]], list[Problem]]:
        """Return who can take part together, and why others cannot.

        Of nodes with one id the first to answer stays.
        """
        nodes: dict[int, int] = {}
        single: list[tuple[int, ClientInfo]] = []
        problems: list[Problem] = []
        for node, info in infos:
            if nodes.setdefault(info.client_id, node) != node:
                problems.append(Problem(node, None, _duplicate(info.client_id)))
            elif (reason := self.refuse(info)) is not None:
                problems.append(Problem(node, info.client_id, reason))
            else:
                single.append((node, info))
        unfit = self.server.unfit([info for _, info in single])
        problems += [
            Problem(node, info.client_id, unfit[info.client_id])
            for node, info in single
            if info.client_id in unfit
        ]
        return [pair for pair in single if pair[1].client_id not in unfit], problems

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
        infos: list[tuple[int, ClientInfo]] = []
        refused: list[Problem] = []
        self._sort(answer, infos, refused)
        try:
            self._admit(infos)
        except RegistrationError as problem:
            # Often a restarted client that is back before Flower notices that its old node is
            # gone (up to a minute).
            refused += [Problem(node, info.client_id, str(problem)) for node, info in infos]
        for complaint in refused:
            self._complain(complaint)

    def _complain(self, problem: Problem) -> None:
        """Note a node that cannot join, once for every reason; it is asked again next round."""
        self._failed.add(problem.node)
        if (problem.node, problem.text) not in self._reported:
            self._reported.add((problem.node, problem.text))
            self.problems.append((problem.client_id, problem.text))

    def online(self) -> list[int]:
        """Return the ids of the clients that can be reached now and may take part, ascending."""
        nodes = set(self.grid.get_node_ids())
        there = {c for c, node in self.messages.nodes.items() if node in nodes}
        return sorted(there - self.barred)

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
                out = f"; in quarantine: {named_clients(sorted(self.barred))}" * bool(self.barred)
                raise RegistrationError(
                    f"{len(online)} of {self.run.min_clients} clients{lack} after "
                    f"{self.run.wait_timeout:g} s (min-clients, wait-timeout){out}"
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
                say(f"waiting for {self.run.min_clients} clients, {count} here")
                told = True
            time.sleep(0.2)

    def _call_roll(self) -> tuple[list[tuple[int, ClientInfo]], list[Problem]]:
        """Collect infos until all have answered, or enough have and the rest stay silent."""
        infos: list[tuple[int, ClientInfo]] = []
        refused: list[Problem] = []
        limit = time.monotonic() + self.run.round_timeout
        while True:
            enough = len(infos) >= self.run.min_clients
            patience = time.monotonic() + self.run.wait_timeout if enough else limit
            answer = self.transport.receive(min(patience, limit), "query")
            if answer is None:
                break  # whoever answers later joins later
            self._sort(answer, infos, refused)
        return sorted(infos, key=lambda pair: pair[1].client_id), refused

    def _sort(
        self, answer: Answer, infos: list[tuple[int, ClientInfo]], refused: list[Problem]
    ) -> None:
        """Put an answer among the infos, if it is one of the client whose key it has."""
        node = answer.sent.node_id
        info = read_answer(answer, self._key_names.who)
        if isinstance(info, ClientInfo):
            refusal = self._key_names.refusal(node, info.client_id)
            if refusal is None:
                infos.append((node, info))
                return
            info = Problem(node, None, refusal, mistake=False)
        refused.append(info)
        self._failed.add(node)

    def _admit(self, infos: list[tuple[int, ClientInfo]]) -> None:
        online = set(self.grid.get_node_ids())
        nodes = {c: n for c, n in self.messages.nodes.items() if n in online}
        for node, info in infos:
            if nodes.get(info.client_id, node) != node:
                raise RegistrationError(_duplicate(info.client_id))
            nodes[info.client_id] = node
        for _, info in infos:
            if (problem := self.refuse(info)) is not None:
                raise RegistrationError(problem)
        self.server.admit(info for _, info in infos)
        self.messages.nodes |= nodes


def _duplicate(client_id: int) -> str:
    return (
        f"client {client_id}: two connected nodes have this id; give each its own client-id (or "
        "partition-id) in its node-config"
    )
