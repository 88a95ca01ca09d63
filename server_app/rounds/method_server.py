"""A run's server half at work: it gets its context here, and its state is kept here."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flwr.app import Message, RecordDict

from models import ModelError
from server_app.rounds.example_limit import example_limit, limited
from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.unlike_clients import (
    unlike_columns,
    unlike_data,
    unlike_public_data,
    unlike_tokenisers,
)
from strategies.base.bounds import Sizes, refuse_large, sizes_of
from strategies.base.messages import TRAINED, ClientInfo, ClientUpdate, Control
from strategies.base.method import Method
from strategies.base.payload import PayloadError
from strategies.base.received_text import visible
from strategies.base.replies import read_reply
from strategies.base.run_config import RunConfig
from strategies.base.server import RegistrationError, ServerContext, ServerHalf
from strategies.common import robust


class MethodServer:
    """Calls the running method's server half, which itself holds nothing.

    Attributes
    ----------
    run : RunConfig
        The run's configuration.
    half : ServerHalf
        The method's.
    clients : dict of int to ClientInfo
        The clients admitted so far, by id.
    state : dataclass or None
        Everything of the server that survives a round; None before `begin`.
    server_round, exchange : int
        What is going on now; the half is told in its context.
    devices : bool
        Whether clients are devices of their own, so that not all they say is believed.
    """

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.half: ServerHalf[Any, Any] = run.chosen_method.server()
        self.clients: dict[int, ClientInfo] = {}
        self.state: Any = None
        self.server_round = 0
        self.exchange = 1
        self.devices = False
        self.remarks = [*self.half.check_run(run), *robust.remarks(run)]
        self._received: dict[int, Sizes] = {}

    @property
    def method(self) -> Method:
        """The running method."""
        return self.run.chosen_method

    @property
    def context(self) -> ServerContext:
        """What the half is given now."""
        return ServerContext(self.run, self.clients, self.server_round, self.exchange)

    @property
    def most_examples(self) -> int | None:
        """With how many examples an update counts at most; None where there is no limit."""
        infos = self.clients.values()
        return example_limit(self.run.max_examples, infos, devices=self.devices)

    def begin(self) -> None:
        """Make the state of before round 1, whatever is going on; the clients are known by then."""
        self.state = self.half.initial_state(ServerContext(self.run, self.clients))

    def admit(self, infos: Iterable[ClientInfo]) -> None:
        """Add clients after checking them; raises `RegistrationError` with every problem found."""
        infos = list(infos)
        problems = [text for _, text in self._contradictions(infos) or self._checked(infos)]
        if problems:
            raise RegistrationError("; ".join(list(dict.fromkeys(problems))[:5]))
        self.clients = self.clients | {info.client_id: info for info in infos}

    def unfit(self, infos: Sequence[ClientInfo]) -> dict[int, str]:
        """Return who has to be left out so that the others can be admitted, and why, by id.

        Left out is who contradicts most of the others; and where clients do not go together,
        those with the models that fewer have.
        """
        unfit = dict(reversed(self._contradictions(infos)))
        rest = [info for info in infos if info.client_id not in unfit]
        if not self._checked(rest):
            return unfit
        often = Counter(info.model for info in rest)
        fitting: list[ClientInfo] = []
        for info in sorted(rest, key=lambda info: (-often[info.model], info.client_id)):
            together = [*fitting, info]
            if problems := self._checked(together):
                unfit[info.client_id] = problems[0][1]
            else:
                fitting = together
        return unfit

    def _checked(self, infos: Iterable[ClientInfo]) -> list[tuple[int, str]]:
        """Return which of these clients the method cannot use together, and why."""
        infos = list(infos)
        known = {**self.clients, **{info.client_id: info for info in infos}}
        context = ServerContext(self.run, known, self.server_round, self.exchange)
        found = [(info.client_id, self._problem(context, info)) for info in infos]
        return [(client, problem) for client, problem in found if problem is not None]

    def _problem(self, context: ServerContext, info: ClientInfo) -> str | None:
        try:
            return self.half.check(context, self.state, info)
        except RegistrationError:
            raise
        except (ModelError, RuntimeError, MemoryError) as error:  # of a model that it only names
            said = visible(str(error))
            return f"client {info.client_id}: model {info.model} cannot be built here: {said:.300}"

    def _contradictions(self, infos: Sequence[ClientInfo]) -> list[tuple[int, str]]:
        """Return where new clients contradict the other clients."""
        known = list(self.clients.values())
        problems = [] if self.method.any_task else unlike_data(known, infos)
        if self.method.shares_reader and not problems:
            problems = unlike_tokenisers(known, infos) or unlike_columns(known, infos)
        return problems + (unlike_public_data(known, infos) if self.method.public_data else [])

    def messages(
        self,
        factory: MessageFactory,
        kind: str,
        clients: Sequence[int],
        tests: Iterable[int],
        control: Control,
    ) -> Iterator[Message]:
        """Yield the `train` or `evaluate` message of every client, lazily, one at a time.

        Those in `tests` measure the test split if they evaluate. A common downlink is made once.
        """
        tests = set(tests)
        context = self.context
        common = self.half.downlink(context, self.state, None) if clients else None
        common_sizes = {} if common is None else sizes_of(common)
        for client_id in clients:
            downlink = common
            if downlink is None:
                downlink = self.half.downlink(context, self.state, self.clients[client_id])
            if kind == "train":
                sizes = sizes_of(downlink) if common is None else common_sizes
                self._received[client_id] = sizes
            told = dataclasses.replace(control, test=client_id in tests)
            yield factory.build(kind, client_id, told, downlink)

    def read(
        self, client_id: int, content: RecordDict, asked_phase: str | None = None
    ) -> ClientUpdate:
        """Check one client's reply of this round; raises `PayloadError` naming the key.

        With `asked_phase`, measured values of another phase are refused, but for training's and
        those after it that the run wants beside the main ones.
        """
        info, context = self.clients[client_id], self.context
        templates = self.half.templates(context, self.state, info)
        update = read_reply(
            self.method, content, client_id, self.server_round, context.dims, templates
        )
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
        trained = (TRAINED,) if self.run.evaluates_trained else ()
        for row in update.rows:
            beside = row.phase == "post" and row.metric.startswith(trained)
            if row.phase not in ("train", asked_phase or row.phase) and not beside:
                raise PayloadError(f"{row.phase}/{row.metric}: phase was not asked for")
        if update.uplink is None:
            return update
        update = dataclasses.replace(update, sizes=sizes_of(update.uplink))
        refuse_large(update.sizes, self._received.get(client_id, {}), self.run.max_update)
        self.half.check_uplink(context, self.state, update)
        return update

    def aggregate(self, updates: Iterable[ClientUpdate]) -> dict[str, float]:
        """Let the half work the updates into the state; return its metrics.

        None of them counts with more examples than `max-examples` allows.
        """
        if (most := self.most_examples) is not None:
            updates = map(functools.partial(limited, most=most), updates)
        return self.half.aggregate(self.context, self.state, updates)
