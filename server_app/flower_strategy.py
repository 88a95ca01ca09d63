"""A method as Flower's own Strategy, for apps and loops that are written against that class."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.result import Result

from server_app import console
from server_app.console import say
from server_app.records.privacy_ledger import (
    PrivacyLedger,
    missing_accountant,
    privacy_summary,
)
from server_app.records.scores import weighted_mean
from server_app.rounds.exchange import RunError
from server_app.rounds.loop import run_rounds
from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.method_server import MethodServer
from server_app.rounds.participants import choose_participants
from server_app.rounds.roster import Roster
from server_app.rounds.transport import Transport, reason_of
from strategies.base.messages import VALIDATION, ClientUpdate, Control, MetricRow
from strategies.base.options import ConfigError
from strategies.base.payload import PayloadError
from strategies.base.run_config import RunConfig
from strategies.base.schedule import History, load_schedule


class FlowerStrategy(Strategy):
    """The run's method behind Flower's interface.

    `start` runs everything as `flwr run` does, with records, checkpoints and report. The four hooks
    serve a loop of one's own, such as Flower's `Strategy.start`: they register the clients, make
    real messages and aggregate real replies. They keep one record, and only of noise: `privacy.csv`
    in the directory that `start` would have. In such a loop a round has one exchange, participants
    are those of the run's schedule, and the others are evaluated: after the round's aggregation,
    where `start` sends all of a round's messages before it. With `sample-fraction` 1 the two give
    the same numbers.

    Parameters
    ----------
    run : RunConfig
        Names the method, see `strategies.base.parsing.parse_run_config`.

    Raises
    ------
    ConfigError
        If the method cannot run with these settings, or what computes epsilon is not installed.
    """

    def __init__(self, run: RunConfig) -> None:
        if missing := missing_accountant(run.privacy):
            raise ConfigError(missing)
        self.run = run
        self.server = MethodServer(run)
        self.schedule = load_schedule(run)
        self._token, self._session = secrets.token_hex(8), secrets.token_hex(8)
        name = run.run_name or f"{self.server.method.name}-{self._token}"
        self._messages = MessageFactory(name, {}, ttl=run.round_timeout + 30)
        self._roster: Roster | None = None
        self._directory = run.run_root / name
        self._participants: list[int] = []
        self._rows: dict[int, list[MetricRow]] = {}
        self._history = History({}, {})

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run all rounds with their records; what Flower's `start` takes besides is not used."""
        return run_rounds(self.run, grid)

    def summary(self) -> None:
        """Print what is about to run: the method, its options, and what differs from defaults."""
        print(console.settings(self.run, self.server.remarks), flush=True)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the `train` messages of the round's participants, each made as it is sent.

        The clients are registered first. `arrays` and `config` are not used: the server's state is
        kept here, and the settings are the run's.

        Raises
        ------
        RegistrationError
            If too few clients answer, or one does not fit the method.
        RunError
            If the schedule chooses nobody, or a client that cannot train now.
        NotImplementedError
            If the method's round is more than one exchange.
        """
        online = self._online(server_round, grid)
        server = self.server
        if (count := server.half.exchanges(server.context)) > 1:
            raise NotImplementedError(
                f"{server.method.name}: round {server_round} takes {count} exchanges, and Flower's "
                "hooks make one; call start()"
            )
        self._participants = choose_participants(
            self.schedule, server.context, online, self._history
        )
        self._rows = {}
        self._note_privacy(server_round)
        return self._to("train", self._participants, online)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the `evaluate` messages of who did not train, in rounds that evaluate."""
        online = self._online(server_round, grid)
        others = [i for i in online if i not in set(self._participants)]
        return self._to("evaluate", others if self.run.evaluates_in(server_round) else [], online)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and aggregate the valid ones in client order.

        Returns no arrays, which stay in `server.state`, and the server's metrics. Raises `RunError`
        if no reply is valid.
        """
        updates = [update for update in self._read(replies) if update.uplink is not None]
        if not updates:
            raise RunError(f"round {server_round}: no participant answered validly")
        for update in updates:
            known = self._history.rounds_trained.get(update.client_id, 0)
            self._history.rounds_trained[update.client_id] = known + 1
        metrics = self.server.aggregate(iter(sorted(updates, key=lambda u: u.client_id)))
        return None, MetricRecord(dict(metrics))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the round's mean of every evaluated metric, weighted by examples.

        Over the participants, which evaluate while they train, and all others.
        """
        self._read(replies)
        # In the order of clients, so that a sum does not depend on who was first.
        rows = [row for client in sorted(self._rows) for row in self._rows[client]]
        names = sorted({row.metric for row in rows})
        pairs = {n: [(r.value, r.examples) for r in rows if r.metric == n] for n in names}
        means = {name: weighted_mean(values) for name, values in pairs.items()}
        known = {name: mean for name, mean in means.items() if mean is not None}
        return MetricRecord(dict(known)) if known else None

    @property
    def privacy(self) -> dict[str, Any] | None:
        """What clients have told so far: epsilon and what it is of, as in a run's summary.

        None without clipping.
        """
        return privacy_summary(self._directory, self.run.privacy)

    def _note_privacy(self, server_round: int) -> None:
        """Count, before they are asked, what the participants are about to send."""
        if self.run.privacy.noisy:
            self._directory.mkdir(parents=True, exist_ok=True)
            devices = self.server.devices
            ledger = PrivacyLedger(self._directory, self.run.privacy, devices=devices)
            ledger.note(server_round, 1, self._participants)

    def _online(self, server_round: int, grid: Grid) -> list[int]:
        """Register who is new and return who can be reached; at first wait for enough clients."""
        self.server.server_round = server_round
        if self._roster is None:
            roster = Roster(self.server, Transport(grid), self._messages)
            roster.assemble()
            self.server.begin()
            self._roster = roster
        else:
            self._roster.invite()
            for answer in self._roster.transport.arrived():
                self._roster.take(answer)
        return self._roster.wait_online()

    def _to(self, kind: str, clients: list[int], online: list[int]) -> Iterable[Message]:
        tests = self.server.half.evaluates_test(self.server.context, online)
        control = Control(
            run_name=self._messages.run_name,
            token=self._token,
            session=self._session,
            round=self.server.server_round,
            evaluate=self.run.evaluates_in(self.server.server_round),
            phase="pre" if self.run.evaluates_before_training else "post",
        )
        return self.server.messages(self._messages, kind, clients, tests, control)

    def _read(self, replies: Iterable[Message]) -> list[ClientUpdate]:
        """Return the valid replies; one that is an error or refused is named and left out."""
        clients = {node: client for client, node in self._messages.nodes.items()}
        updates = []
        for reply in replies:
            client = clients.get(reply.metadata.src_node_id)
            try:
                if client is None:
                    raise PayloadError("no client of this run is at the node that answered")
                if reply.has_error():
                    raise PayloadError(reason_of(reply))
                update = self.server.read(client, reply.content)
            except PayloadError as error:
                say(f"round {self.server.server_round}: client {client}: left out: {error}")
                continue
            updates.append(update)
            self._note(update)
        return updates

    def _note(self, update: ClientUpdate) -> None:
        """Remember what a client evaluated, and its main score for the schedule."""
        measured = [row for row in update.rows if row.phase != "train"]
        self._rows[update.client_id] = measured
        main = self.server.clients[update.client_id].metric
        for metric in (main, f"{VALIDATION}{main}"):  # the latter counts where there is one
            for row in measured:
                if row.metric == metric:
                    self._history.scores[update.client_id] = row.value
