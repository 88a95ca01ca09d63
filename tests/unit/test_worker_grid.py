"""The Grid that hands messages to a simulation's workers, on workers that answer when told to."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from client_app.app import app as client_app
from server_app.rounds import worker_grid
from server_app.rounds.in_process import InProcessGrid
from server_app.rounds.transport import Transport, is_simulation, reason_of
from server_app.rounds.worker_grid import WorkerGrid, with_workers
from strategies.base import ray_worker
from strategies.base.ray_worker import QUERY, RECORD, Seat, remembered_app

NODES = (300, 100, 200)


class RayError(Exception):
    """As `ray.exceptions` has it."""


class RayActorError(RayError):
    """The same."""


class FakeWorker:
    """An actor: keeps what it is called with, in order, until it is told to answer."""

    def __init__(self, ray: FakeRay) -> None:
        self.ray = ray
        self.given: list[tuple[str, Message, Seat]] = []
        self.run = SimpleNamespace(remote=self._called)

    def _called(self, app_fn: Any, message: Message, name: str, seat: Seat) -> str:
        assert app_fn is remembered_app
        assert name == str(seat.node_id) == str(message.metadata.dst_node_id)
        self.given.append((f"reply {next(self.ray.numbers)}", message, seat))
        return self.given[-1][0]

    def nodes(self) -> list[int]:
        """Return whom it is to be, the next first."""
        return [seat.node_id for _, _, seat in self.given]

    def answer(self) -> None:
        """Finish the oldest message."""
        reply, message, seat = self.given.pop(0)
        out = Message(RecordDict({"of": ConfigRecord({"node": seat.node_id})}), reply_to=message)
        self.ray.results[reply] = (str(seat.node_id), out, seat)

    def fail(self, error: RayError, *, all_of_them: bool = False) -> None:
        """Finish the oldest message, or all, by an error."""
        for reply, _, _ in self.given if all_of_them else self.given[:1]:
            self.ray.results[reply] = error
        self.given = [] if all_of_them else self.given[1:]


class FakeRay:
    """What `WorkerGrid` uses of Ray."""

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError)

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.numbers: Iterator[int] = iter(range(1000))
        self.cloudpickle = SimpleNamespace(loads=self._loaded)
        self.workers: dict[bytes, FakeWorker] = {}

    def _loaded(self, handle: bytes) -> FakeWorker:
        return self.workers.setdefault(handle, FakeWorker(self))

    def is_initialized(self) -> bool:
        return True

    def wait(self, refs: list[str], **options: Any) -> tuple[list[str], list[str]]:
        done = [ref for ref in refs if ref in self.results]
        return done, [ref for ref in refs if ref not in self.results]

    def get(self, ref: str) -> Any:
        if isinstance(found := self.results.pop(ref), RayError):
            raise found
        return found


class FlowerGrid(InProcessGrid):
    """Flower's Grid of three nodes; what workers say to the question is up to the test."""

    def __init__(self, cards: list[Any]) -> None:
        super().__init__(client_app, 0, {})
        self.contexts = dict.fromkeys(NODES)  # type: ignore[assignment]
        self.cards = cards
        self.asked: list[int] = []

    def _answer(self, message: Message) -> Message:
        assert message.metadata.message_type == QUERY
        self.asked.append(message.metadata.dst_node_id)
        card = self.cards.pop(0)
        if isinstance(card, Error):
            return Message(card, reply_to=message)
        return Message(RecordDict({RECORD: ConfigRecord(card)} if card else {}), reply_to=message)


def card(name: str) -> dict[str, Any]:
    return {"handle": name.encode(), "name": name, "num_cpus": 1.0, "num_gpus": 0.0}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(worker_grid, "_how_many", lambda card: 2)
    return fake


def message(node: int) -> Message:
    return Message(RecordDict(), node, "train")


def made(ray: FakeRay, workers: int = 2) -> tuple[WorkerGrid, list[FakeWorker]]:
    handles = [FakeWorker(ray) for _ in range(workers)]
    return WorkerGrid(FlowerGrid([]), handles), handles


def nodes_of(replies: Any) -> list[int]:
    return [int(reply.content["of"]["node"]) for reply in replies]


def test_messages_go_out_in_order_to_whoever_is_free(ray: FakeRay) -> None:
    grid, (one, other) = made(ray)
    assert list(grid.get_node_ids()) == [100, 200, 300]
    ids = list(grid.push_messages([message(300), message(100), message(200)]))
    assert (one.nodes(), other.nodes()) == ([300], [100])  # how long they take is not known
    other.answer()
    assert nodes_of(grid.pull_messages(ids)) == [100]
    assert other.nodes() == [200]
    one.answer()
    other.answer()
    assert sorted(nodes_of(grid.pull_messages(ids))) == [200, 300]
    assert list(grid.pull_messages(ids)) == []


def test_clients_are_numbered_by_their_nodes(ray: FakeRay) -> None:
    grid, (one, _) = made(ray)
    grid.push_messages([message(200)])
    (_, _, seat) = one.given[0]
    assert seat.node_config == {"partition-id": 1, "num-partitions": 3}


def test_short_messages_are_queued_at_workers(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, (one, other) = made(ray)
    for _ in range(10):  # the mean of what they took goes below SHORT_S
        ids = list(grid.push_messages([message(100)]))
        one.answer()
        grid.pull_messages(ids)
    grid.push_messages([message(node) for node in (100, 200, 300, 100, 200)])
    assert (one.nodes(), other.nodes()) == ([100, 300], [200, 100])


def test_what_mods_keep_comes_back_to_the_client(ray: FakeRay) -> None:
    grid, (one, _) = made(ray)
    ids = list(grid.push_messages([message(100)]))
    one.given[0][2].state["kept"] = ConfigRecord({"x": 7})
    one.answer()
    grid.pull_messages(ids)
    grid.push_messages([message(100)])
    assert one.given[0][2].state["kept"]["x"] == 7  # type: ignore[index]


def test_replies_that_nobody_waits_for_are_dropped(ray: FakeRay) -> None:
    grid, (one, other) = made(ray)
    first, second = grid.push_messages([message(100), message(200)])
    one.answer()
    other.answer()
    assert nodes_of(grid.pull_messages([second])) == [200]
    assert list(grid.pull_messages([first])) == []


def test_messages_that_nobody_waits_for_are_not_handed_out(ray: FakeRay) -> None:
    grid, (one, other) = made(ray)
    ids = list(grid.push_messages([message(node) for node in (100, 200, 300, 100)]))
    grid.pull_messages(ids[3:])  # the round of the first three is over
    one.answer()
    grid.pull_messages(ids[3:])
    assert (one.nodes(), other.nodes()) == ([100], [200])


def test_a_client_that_fails_is_named_as_flower_does(ray: FakeRay) -> None:
    grid, (one, _) = made(ray)
    ids = list(grid.push_messages([message(100)]))
    one.fail(RayError("ray::ClientAppActor.run()\nValueError: boom"))
    (reply,) = grid.pull_messages(ids)
    assert reply.has_error()
    assert reason_of(reply) == "ValueError: boom"


def test_a_dead_workers_messages_go_to_others(ray: FakeRay) -> None:
    """But for the one that it died of; and it is given no more."""
    grid, (one, other) = made(ray)
    grid._usual_s = 0.0
    ids = list(grid.push_messages([message(node) for node in (100, 200, 300, 100)]))
    assert one.nodes() == [100, 300]
    one.fail(RayActorError("The actor died unexpectedly"), all_of_them=True)
    (reply,) = grid.pull_messages(ids)
    assert reply.metadata.reply_to_message_id == ids[0]
    assert "The actor died unexpectedly" in reason_of(reply)
    other.answer()
    grid.pull_messages(ids)
    assert other.nodes() == [100, 300]
    assert one.nodes() == []


def test_without_workers_every_message_fails(ray: FakeRay) -> None:
    grid, (one,) = made(ray, workers=1)
    ids = list(grid.push_messages([message(100), message(200)]))
    one.fail(RayActorError("died"))
    reasons = [reason_of(reply) for reply in grid.pull_messages(ids)]
    assert reasons[1] == "no worker of the simulation is left"
    later = list(grid.push_messages([message(300)]))
    assert [r.has_error() for r in grid.pull_messages(later)] == [True]


def test_the_transport_waits_for_workers(ray: FakeRay) -> None:
    grid, _ = made(ray)
    assert is_simulation(grid)
    assert Transport(grid)._sleep == grid.wait
    began = time.monotonic()
    grid.wait(0.02)
    assert time.monotonic() - began >= 0.02


def test_every_worker_is_asked_for_its_handle(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    flower = FlowerGrid([card("a"), card("a"), card("b")])
    grid = with_workers(flower)
    assert isinstance(grid, WorkerGrid)
    assert [worker.handle for worker in grid._workers] == [ray.workers[b"a"], ray.workers[b"b"]]
    assert flower.asked == [100, 100, 200]


def test_nodes_may_come_after_the_server(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    flower = FlowerGrid([card("a"), card("b")] * 2)
    seen: list[int] = []

    def nodes() -> list[int]:
        seen.append(1)
        return list(NODES) if len(seen) > 2 else []

    monkeypatch.setattr(flower, "get_node_ids", nodes)
    grid = with_workers(flower)
    assert isinstance(grid, WorkerGrid)
    assert list(grid.get_node_ids()) == [100, 200, 300]


@pytest.mark.parametrize("card", [None, Error(code=2, reason="No query function registered")])
def test_an_app_that_cannot_tell_is_reached_through_flower(ray: FakeRay, card: Any) -> None:
    flower: Grid = FlowerGrid([card] * 4)
    assert with_workers(flower) is flower


def test_silent_workers_are_not_waited_for_forever(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    flower = FlowerGrid([card("a")] * 4)
    monkeypatch.setattr(flower, "pull_messages", lambda ids: [])
    assert with_workers(flower, patience=0.05) is flower


def test_a_worker_answers_as_any_client_with_the_app_it_was_asked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_worker._Remembered, "app", None)
    monkeypatch.setattr(ray_worker._Remembered, "context", None)
    seat = Seat(100, {"partition-id": 1, "num-partitions": 3}, RecordDict())
    with pytest.raises(RuntimeError, match="was not asked"):
        remembered_app()(message(100), seat)
    seen: list[Context] = []

    def answer(message: Message, context: Context) -> Message:
        seen.append(context)
        context.state["kept"] = ConfigRecord({"x": 1})
        return Message(RecordDict(), reply_to=message)

    app = ClientApp()
    app.train()(answer)
    ray_worker.remember(app, Context(1, 5, {"partition-id": 0}, RecordDict(), {"method": "fedre"}))
    given = message(100)
    given.metadata.__dict__["_message_id"] = "m"
    reply = remembered_app()(given, seat)
    assert reply.metadata.reply_to_message_id == "m"
    (context,) = seen
    assert (context.node_id, context.node_config) == (100, seat.node_config)
    assert context.run_config == {"method": "fedre"}
    assert "kept" in seat.state
