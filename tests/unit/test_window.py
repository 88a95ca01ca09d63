"""How much of a round is out at once: bounded in a simulation, everything on real devices."""

from __future__ import annotations

import os
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from server_app.records.round_result import RoundResult
from server_app.rounds import exchange as round_module
from server_app.rounds.exchange import Exchange, RunError
from server_app.rounds.in_process import InProcessGrid
from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.method_server import MethodServer
from server_app.rounds.roster import Roster
from server_app.rounds.send_order import SendOrder
from server_app.rounds.transport import Sent, Transport, is_simulation, window_of
from strategies.base.messages import INFO, ClientUpdate
from strategies.base.parsing import parse_run_config
from tests.unit.test_exchange import a_control, a_reply
from tests.unit.test_roster import a_client_info

CLIENTS = 40
W = 3
REASON = "no answer within 1 s (round-timeout)"


class CountingGrid:
    """Answers in a random order; the last to answer are `slow`, and `silent` never do.

    Attributes
    ----------
    most_out : int
        The most messages that were out at once.
    sent, pulled : list of (str, int)
        Kind and client of all messages and of all replies, in order.
    """

    def __init__(self, *, slow: Iterable[int] = (), silent: Iterable[int] = ()) -> None:
        self.slow, self.silent = set(slow), set(silent)
        self.draw = random.Random(0)
        self.out: dict[str, tuple[str, int]] = {}
        self.sent: list[tuple[str, int]] = []
        self.pulled: list[tuple[str, int]] = []
        self.most_out = 0
        self.contents: dict[int, weakref.ref[Any]] = {}

    def get_node_ids(self) -> list[int]:
        return [100 + client for client in range(CLIENTS)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.sent)}")
            at = (message.metadata.message_type, message.metadata.dst_node_id - 100)
            self.sent.append(at)
            self.out[ids[-1]] = at
        self.most_out = max(self.most_out, len(self.out))
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        there = [i for i in ids if i in self.out and self.out[i][1] not in self.silent]
        fast = [i for i in there if self.out[i][1] not in self.slow]
        if not there:
            return []
        chosen = self.draw.choice(fast or there)
        kind, client = self.out.pop(chosen)
        self.pulled.append((kind, client))
        content = a_reply(client % 10, 2, kind)
        content[INFO]["client-id"] = client
        self.contents[client] = weakref.ref(content)
        metadata = SimpleNamespace(reply_to_message_id=chosen)
        return [SimpleNamespace(metadata=metadata, has_error=lambda: False, content=content)]


Aggregate = Callable[[Iterator[ClientUpdate]], dict[str, float]]


def a_round(
    grid: CountingGrid,
    train: Iterable[int],
    evaluate: Iterable[int],
    *,
    aggregate: Callable[[Aggregate], Aggregate] = lambda inner: inner,
    before: Callable[[Transport], None] = lambda transport: None,
    timeout: float = 60.0,
    send_order: SendOrder | None = None,
) -> RoundResult:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    run = parse_run_config({"method": "fedre", "round-timeout": timeout})
    server = MethodServer(run)
    server.admit(a_client_info(client) for client in range(CLIENTS))
    server.begin()
    server.server_round = 2
    messages = MessageFactory("run", {c: 100 + c for c in range(CLIENTS)}, ttl=10)
    server.aggregate = aggregate(server.aggregate)  # type: ignore[method-assign]
    transport = Transport(cast(Grid, grid))
    before(transport)
    roster = Roster(server, transport, messages)
    result = Exchange(
        server, transport, roster, a_control(), list(train), list(evaluate), send_order=send_order
    ).run()
    assert messages.last_scalars == 0  # the last downlink was let go of
    return result


@pytest.fixture
def windowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_module, "window_of", lambda grid: W)


# -- which window ------------------------------------------------------------------------------


def test_flowers_simulation_has_a_window_of_four_messages_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flwr.superlink.grid import InMemoryGrid

    grid = InMemoryGrid(cast(Any, SimpleNamespace(state=lambda: None)))
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert window_of(grid) == 8
    assert is_simulation(grid)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert window_of(grid) == 24
    ray = SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 20.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert window_of(grid) == 80
    ray.is_initialized = lambda: False
    assert window_of(grid) == 24


def test_only_simulations_have_a_window() -> None:
    assert window_of(cast(Grid, CountingGrid())) is None
    assert not is_simulation(cast(Grid, CountingGrid()))
    assert window_of(InProcessGrid(cast(Any, None), 1, {})) == 1


def test_on_devices_everything_goes_out_at_once() -> None:
    grid = CountingGrid()
    a_round(grid, range(30), range(30, 40))
    assert grid.most_out == CLIENTS


# -- what the window does ----------------------------------------------------------------------


@pytest.mark.usefixtures("windowed")
def test_no_more_than_the_window_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes first, in client order; the result is that of sending all at once."""
    grid, free = CountingGrid(), CountingGrid()
    result = a_round(grid, reversed(range(30)), range(30, 40))
    assert grid.most_out == W
    assert grid.sent == [
        *(("train", i) for i in range(30)), *(("evaluate", i) for i in range(30, 40))
    ]  # fmt: skip
    assert grid.out == {}
    monkeypatch.setattr(round_module, "window_of", lambda grid: None)
    whole = a_round(free, range(30), range(30, 40))
    assert result.server_metrics == whole.server_metrics
    assert sorted(map(repr, result.rows)) == sorted(map(repr, whole.rows))
    assert sorted(map(repr, result.traffic)) == sorted(map(repr, whole.traffic))
    assert result.failures == []


@pytest.mark.usefixtures("windowed")
def test_what_waits_for_a_slow_client_is_bounded() -> None:
    """Client 4 answers when nobody else is left to: 5 to 10 may go ahead of it, not 11."""
    grid = CountingGrid(slow=[4])
    waiting = []

    def watch(inner: Aggregate) -> Aggregate:
        def aggregate(updates: Iterator[ClientUpdate]) -> dict[str, float]:
            def seen() -> Iterator[ClientUpdate]:
                for number, update in enumerate(updates, 1):
                    waiting.append(sum(kind == "train" for kind, _ in grid.pulled) - number)
                    yield update

            return inner(seen())

        return aggregate

    a_round(grid, range(30), range(30, 40), aggregate=watch)
    at = grid.pulled.index(("train", 4))
    assert {client for _, client in grid.pulled[:at]} == {0, 1, 2, 3, 5, 6, 7, 8, 9, 10}
    assert grid.most_out == W
    assert max(waiting) <= 2 * W
    assert len(grid.pulled) == CLIENTS


@pytest.mark.usefixtures("windowed")
def test_everything_is_sent_before_the_server_works_on_the_result() -> None:
    """So the downlinks of late evaluations are those of early ones, and workers stay busy."""
    grid = CountingGrid()
    sent = []

    def at_the_end(inner: Aggregate) -> Aggregate:
        def aggregate(updates: Iterator[ClientUpdate]) -> dict[str, float]:
            received = list(updates)
            sent.append(len(grid.sent))
            return inner(iter(received))

        return aggregate

    a_round(grid, range(5), range(5, 40), aggregate=at_the_end)
    assert sent == [CLIENTS]
    assert grid.most_out == W


@pytest.mark.usefixtures("windowed")
def test_a_method_that_stops_reading_early_is_refused() -> None:
    """Its later messages would carry a state in which earlier clients have trained already."""

    def first_only(inner: Aggregate) -> Aggregate:
        return lambda updates: inner(iter([next(updates)]))

    with pytest.raises(
        RunError, match=r"fedre aggregated before it had read all updates, so 3\d messages"
    ):
        a_round(CountingGrid(), range(30), range(30, 40), aggregate=first_only)
    # Where all has been sent, reading on is not needed.
    assert len(a_round(CountingGrid(), range(3), [], aggregate=first_only).rows) == 3


@pytest.mark.usefixtures("windowed")
def test_who_was_never_asked_is_named_at_the_deadline() -> None:
    """Clients 1 and 7 are silent: 1 is waited for, 2 to 7 are asked meanwhile, the others not."""
    grid = CountingGrid(silent=[1, 7])
    result = a_round(grid, range(12), [20, 21], timeout=1.0)
    assert [client for _, client in grid.sent] == list(range(8))
    assert [(f.client_id, f.kind, f.reason) for f in result.failures] == [
        *((i, "train", REASON) for i in (1, 7, 8, 9, 10, 11)),
        (20, "evaluate", REASON), (21, "evaluate", REASON),
    ]  # fmt: skip
    assert {client for client, _ in result.rows} == {0, 2, 3, 4, 5, 6}
    down = [t.client_id for t in result.traffic if t.direction == "downlink"]
    assert down == list(range(8))
    assert 0.95 < result.seconds < 10


@pytest.mark.usefixtures("windowed")
def test_a_silent_evaluation_does_not_keep_others_from_theirs() -> None:
    grid = CountingGrid(silent=[30, 31])
    result = a_round(grid, range(3), range(30, 40), timeout=1.0)
    assert [(f.client_id, f.kind) for f in result.failures] == [(30, "evaluate"), (31, "evaluate")]
    assert {client for client, _ in result.rows} == {0, 1, 2, *range(32, 40)}


@pytest.mark.usefixtures("windowed")
def test_questions_of_the_roll_call_take_no_room() -> None:
    """Silent nodes keep more questions out than the window has room for."""
    grid = CountingGrid(silent=range(20, 25))

    def ask(transport: Transport) -> None:
        transport.push(
            (MessageFactory("run", {}, ttl=10).query(100 + c), Sent("query", 100 + c, None))
            for c in range(20, 25)
        )

    result = a_round(grid, range(10), range(10, 20), before=ask)
    assert {client for client, _ in result.rows} == set(range(20))
    assert result.failures == []
    assert grid.most_out == 5 + W


# -- what is let go of -------------------------------------------------------------------------


@pytest.mark.parametrize("window", [W, None])
def test_nothing_keeps_an_update_that_was_aggregated(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """Neither the update, nor its arrays, nor the message they came in, from the first one on."""
    monkeypatch.setattr(round_module, "window_of", lambda grid: window)
    grid = CountingGrid()
    aggregated = []

    def one_by_one(inner: Aggregate) -> Aggregate:
        def aggregate(updates: Iterator[ClientUpdate]) -> dict[str, float]:
            for _ in range(10):
                update = next(updates)
                client = update.client_id
                watched = weakref.ref(update), weakref.ref(update.uplink.entangled_rep)
                assert grid.contents[client]() is None
                assert watched[0]() is not None
                del update
                assert [reference() for reference in watched] == [None, None]
                aggregated.append(client)
            assert next(updates, None) is None
            return {}

        return aggregate

    a_round(grid, range(10), range(10, 20), aggregate=one_by_one)
    assert aggregated == list(range(10))
