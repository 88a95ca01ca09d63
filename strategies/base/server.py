"""The server half's base class: a Flower Strategy that knows clients by id."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.result import Result

from strategies.base.messages import INFO, ClientInfo, ClientUpdate, MessageFactory
from strategies.base.method import Method
from strategies.base.options import option_keys
from strategies.base.payload import PayloadError, Template
from strategies.base.replies import read_reply
from strategies.base.rng import SERVER, numpy_generator, torch_generator
from strategies.base.run_config import RunConfig, payload_sizes
from strategies.base.unlike_clients import unlike_data, unlike_public_data, unlike_tokenisers

ServerState = TypeVar("ServerState")


class RegistrationError(RuntimeError):
    """The clients that answered the registration do not fit the method."""


class ServerHalf(Strategy, Generic[ServerState]):
    """What a method does on the server.

    A method overrides `initial_state`, `aggregate` and one of `common_downlink` and
    `make_downlink`; `select`, `should_stop`, `check` and `templates` where it differs. The round
    loop (`server_app.rounds.loop`) does the rest.

    Attributes
    ----------
    state : dataclass
        Everything of the server that survives a round; checkpoints hold all its fields.
    infos : dict of int to ClientInfo
        The clients known so far.
    exchange : int
        Which exchange of the round is going on, from 1; see `exchanges`.
    """

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.config = run.method_config
        self.clients: dict[int, ClientInfo] = {}
        self.messages: MessageFactory | None = None
        self.state: Any = None
        self.exchange = 1

    # What a method defines --------------------------------------------------------------------

    @abstractmethod
    def initial_state(self) -> ServerState:
        """Return the state before round 1; `dims` is known by then."""

    def common_downlink(self, server_round: int) -> Any:
        """Return the payload of a round, where it is the same for all clients.

        It is made and packed once. None, the default, asks `make_downlink` for each client.
        """
        return None

    def make_downlink(self, info: ClientInfo, server_round: int) -> Any:
        """Return the payload for one client in one round, where clients get different ones."""
        raise NotImplementedError(f"{type(self).__name__} needs common_downlink or make_downlink")

    @abstractmethod
    def aggregate(self, server_round: int, updates: Iterable[ClientUpdate]) -> dict[str, float]:
        """Aggregate the round's valid uplinks into the state and return metrics of the server.

        `updates` yields at least one update, in ascending client id, each as soon as it and all
        before it have arrived, so that a method can aggregate without holding them all. Read it to
        its end before changing what downlinks are made of: in a simulation, the round's later
        messages are made while its first updates are read. An update that is let go of is freed.
        In a round of several exchanges this is called after each, see `exchange`.
        """

    def exchanges(self, server_round: int) -> int:
        """Return how many exchanges a round takes; by default one.

        In each, the round's participants get a `train` message and answer it. A participant that
        does not answer one in time takes no part in the others of this round; one whose answer was
        an error or was refused is asked again. All exchanges are made on the same private state,
        which the client saves after each; what it measures is averaged over them, and operations
        and examples are added up. A deployed exchange costs about 6 s, whatever it carries.
        """
        return 1

    def evaluated_exchange(self, server_round: int) -> int:
        """Return in which exchange of a round clients are evaluated.

        With `pre` the first, before its training; with `post` by default the last, after its
        training. A method whose local training is in an earlier one names that.
        """
        return 1 if self.run.evaluates_before_training else self.exchanges(server_round)

    def select(
        self, server_round: int, available: Sequence[int], history: Mapping[int, float]
    ) -> list[int]:
        """Choose the participants of a round.

        Parameters
        ----------
        server_round : int
            The round, from 1.
        available : sequence of int
            Ids of the clients that can train now, ascending.
        history : Mapping[int, float]
            Each client's last evaluated accuracy, where there is one.

        Returns
        -------
        list of int
            By default a seeded uniform draw of `sample-fraction` of all known clients that have
            training examples (rounded to the nearest, at least one), by client id.
        """
        known = sorted(i for i, info in self.clients.items() if info.train_examples > 0)
        count = max(1, math.floor(self.run.sample_fraction * len(known) + 0.5))
        order = numpy_generator(self.run.seed, SERVER, server_round, "sample").permutation(known)
        # Ranking everyone known, then passing over who is away, keeps the draw stable.
        present = set(available)
        return sorted([int(i) for i in order if int(i) in present][:count])

    def should_stop(self, server_round: int, history: Mapping[int, float]) -> str | None:
        """Return a reason to end the run after this round, or None to go on."""
        return None

    def evaluates_test(self, clients: Sequence[int]) -> set[int]:
        """Return which of these clients measure the test split; by default all.

        Where several clients evaluate one model on one test set (`test-split = "global"`), one of
        them is enough. All clients measure their own validation splits in any case.
        """
        return set(clients)

    def check(self, info: ClientInfo) -> str | None:
        """Return what makes a client unfit for the method, or None."""
        wanted = self.run.feature_dim
        if self.method.common_feature_dim and info.feature_dim != wanted:
            return (
                f"client {info.client_id}: model {info.model} has representation width "
                f"{info.feature_dim}, {self.method.name} needs {wanted} (feature-dim); give the "
                "model a mapping, or set feature-dim to its width for all clients"
            )
        return None

    def templates(self, info: ClientInfo) -> Mapping[str, Template]:
        """Return the expected entries of the uplink's `arrays` fields for one client."""
        return {}

    @property
    def method(self) -> Method:
        """The registered method this is the server half of."""
        return self.run.chosen_method

    # What methods use ---------------------------------------------------------------------------

    @property
    def dims(self) -> dict[str, int]:
        """Sizes of the named dimensions of payloads, known after the registration."""
        info = next(iter(self.clients.values()), None)  # `admit` saw to it that all agree
        if info is None:
            raise RegistrationError("no client is known yet, so neither is the number of classes")
        return payload_sizes(self.run, info.num_classes)

    def generator(self, server_round: int, purpose: str) -> Any:
        """Return the server's private torch generator for one round and purpose."""
        return torch_generator(self.run.seed, SERVER, server_round, purpose)

    def admit(self, infos: Iterable[ClientInfo]) -> None:
        """Add clients after checking them; raises `RegistrationError` with every problem found."""
        infos = list(infos)
        problems = self._contradictions(infos)
        problems += [problem for info in infos if (problem := self.check(info)) is not None]
        if problems:
            raise RegistrationError("; ".join(problems[:5]))
        self.clients |= {info.client_id: info for info in infos}

    def _contradictions(self, infos: list[ClientInfo]) -> list[str]:
        """Return where new clients contradict those of the other clients."""
        known = list(self.clients.values())
        problems = [] if self.method.any_task else unlike_data(known, infos)
        if self.method.shares_reader and not problems:
            problems = unlike_tokenisers(known, infos)
        return problems + (unlike_public_data(known, infos) if self.method.public_data else [])

    # Flower's Strategy ----------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Yield the `train` message of every client in config["participants"], lazily.

        Those in config["test"], all if it is left out, measure the test split in rounds that
        evaluate.
        """
        return self._messages("train", server_round, config)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Yield `evaluate` messages, see `configure_train`."""
        return self._messages("evaluate", server_round, config)

    def _messages(self, kind: str, server_round: int, config: ConfigRecord) -> Iterator[Message]:
        if self.messages is None:
            raise RuntimeError(f"{type(self).__name__}: messages need a round loop; call start()")
        participants: Any = config["participants"]
        tests: Any = config.get("test", participants)
        tests = set(tests)
        common = self.common_downlink(server_round) if participants else None
        for client_id in participants:
            downlink = common
            if downlink is None:
                downlink = self.make_downlink(self.clients[client_id], server_round)
            yield self.messages.build(
                kind, client_id, server_round, downlink, test=client_id in tests
            )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check raw replies, aggregate the valid ones in client order; arrays stay in `state`."""
        updates = []
        for reply in replies:
            if reply.has_content():
                client_id: Any = reply.content[INFO]["client-id"]
                updates.append(self.read(client_id, server_round, reply.content))
        metrics = self.aggregate(server_round, iter(sorted(updates, key=lambda u: u.client_id)))
        return None, MetricRecord(dict(metrics))

    def read(self, client_id: int, server_round: int, content: RecordDict) -> ClientUpdate:
        """Check one client's reply; raises `PayloadError` naming the key."""
        info = self.clients[client_id]
        templates = self.templates(info)
        update = read_reply(self.method, content, client_id, server_round, self.dims, templates)
        # Means are weighted by examples, so a client must not have more than it said it had.
        most = max(info.train_examples, info.validation_examples, info.test_examples)
        claims = [("num-examples", update.num_examples, info.train_examples)]
        claims += [(f"{row.phase}/{row.metric}", row.examples, most) for row in update.rows]
        for key, claimed, limit in claims:
            if claimed > limit:
                raise PayloadError(
                    f"{key}: rests on {claimed} examples, at the registration there were {limit}; "
                    "data must not change during a run"
                )
        asked = self.messages.control.get("phase") if self.messages else None
        for row in update.rows:
            if row.phase not in ("train", asked or row.phase):
                raise PayloadError(f"{row.phase}/{row.metric}: phase was not asked for")
        if update.uplink is not None:
            self.check_uplink(update)
        return update

    def check_uplink(self, update: ClientUpdate) -> None:
        """Raise `PayloadError` for what declared shapes and ranges cannot say.

        Called on every uplink that is well formed, before any is aggregated: what passes must
        not make `aggregate` fail. By default everything passes.
        """

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing: evaluation rows are recorded per client by the round loop."""
        return None

    def summary(self) -> None:
        """Print what is about to run: the method, its options, and what differs from defaults."""
        defaults = option_keys(RunConfig)
        values = self.run.flat()
        own = {k: v for k, v in values.items() if k.startswith(self.method.name + ".")}
        changed = {k: v for k, v in values.items() if defaults.get(k, v) != v}
        print(f"{self.method.name}: {self.method.summary}", flush=True)
        for title, settings in (("options", own), ("settings other than defaults", changed)):
            if settings:
                text = ", ".join(f"{k}={v!r}" for k, v in settings.items())
                print(f"  {title}: {text}", flush=True)

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run all rounds through `server_app.rounds.loop`, with its records and checkpoints."""
        from server_app.rounds.loop import run_rounds

        return run_rounds(self, grid)
