"""Longest first in a simulation: the order, its limits, and that results do not know of it."""

from __future__ import annotations

import sys

import pytest

from server_app.rounds import exchange as round_module
from server_app.rounds.send_order import (
    NOTICE,
    SPARE_BYTES,
    THREAD_TURN,
    SendOrder,
    short_thread_turns,
)
from strategies.base.messages import ClientUpdate
from tests.unit.test_window import CLIENTS, CountingGrid, W, a_round

KIB = 1024


def an_update(client: int, seconds: float, size: int = KIB, worker: str = "a") -> ClientUpdate:
    return ClientUpdate(client, 1, object(), [], seconds, size, 0, worker, 1)


def an_order(seconds: dict[int, float], size: int = KIB, kind: str = "train") -> SendOrder:
    send_order = SendOrder()
    for client, value in seconds.items():
        send_order.note(kind, an_update(client, value, size))
    return send_order


def test_the_longest_goes_first_and_the_unknown_before_it() -> None:
    send_order = an_order({0: 0.5, 1: 3.0, 2: 0.5, 4: 2.0})
    assert send_order.ordered("train", range(6)) == [3, 5, 1, 4, 0, 2]
    assert send_order.ordered("evaluate", range(6)) == [0, 1, 2, 3, 4, 5]
    send_order.note("train", an_update(1, 0.1))
    assert send_order.ordered("train", range(6)) == [3, 5, 4, 0, 2, 1]


def test_large_replies_change_places_only_while_they_fit_in_memory() -> None:
    """Replies of 16 MB: four may wait. Evaluations answer with no payload: all of them may."""
    seconds = {client: float(client) for client in range(10)}
    send_order = an_order(seconds, size=SPARE_BYTES // 4)
    assert send_order.ordered("train", range(10)) == [3, 2, 1, 0, 7, 6, 5, 4, 9, 8]
    assert send_order.ahead(1) == 4
    assert send_order.ahead(3) == 6
    larger = an_order(seconds, size=SPARE_BYTES + 1)
    assert larger.ordered("train", range(10)) == list(range(10))
    for client, value in seconds.items():
        larger.note("evaluate", an_update(client, value))
    assert larger.ordered("evaluate", range(10)) == list(range(9, -1, -1))


def test_as_many_are_out_as_keep_all_workers_busy() -> None:
    """One that is computed and, for each, what is computed while the server does not notice."""
    planned = [("train", client) for client in range(10)]
    assert SendOrder().window(8, planned) == 8
    send_order = an_order({0: 10 * NOTICE, 1: NOTICE})
    assert send_order.window(8, planned) == 2
    send_order.note("train", an_update(2, NOTICE, worker="b"))
    assert send_order.window(8, planned) == 4
    send_order.note("train", an_update(2, NOTICE, worker="c in place of a"))
    assert send_order.window(8, planned) == 4
    assert send_order.window(8, [("evaluate", 0)]) == 8
    for client in range(3):
        send_order.note("train", an_update(client, NOTICE / 5))
    assert send_order.window(8, planned) == 2 * 6
    send_order.note("train", an_update(0, 0.0))
    assert send_order.window(8, planned) < 30
    send_order.weigh(SPARE_BYTES // 7)
    assert send_order.window(8, planned) == 2 * 3
    send_order.weigh(SPARE_BYTES)
    assert send_order.window(8, planned) == 4


@pytest.mark.parametrize("size", [KIB, SPARE_BYTES // 5, 2 * SPARE_BYTES])
def test_a_round_comes_out_the_same_in_any_order(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Every stretch is longest first, everything is sent, and nothing else changes."""
    monkeypatch.setattr(round_module, "window_of", lambda grid: W)
    seconds = {client: (7 * client) % 30 / 100 for client in range(30)}
    grid, plain = CountingGrid(), CountingGrid()
    send_order = an_order(seconds, size)
    monkeypatch.setattr(send_order, "window", lambda window, planned: window)
    expected = send_order.ordered("train", range(30))
    ordered = a_round(grid, range(30), range(30, CLIENTS), send_order=send_order)
    by_id = a_round(plain, range(30), range(30, CLIENTS))
    assert [client for kind, client in grid.sent if kind == "train"] == expected
    assert len(grid.sent) == CLIENTS
    assert grid.most_out == W
    assert ordered.server_metrics == by_id.server_metrics
    for name in ("rows", "traffic"):
        assert sorted(map(repr, getattr(ordered, name))) == sorted(map(repr, getattr(by_id, name)))
    assert ordered.failures == []


@pytest.mark.parametrize("window", [None, 1])
def test_elsewhere_the_order_is_that_of_the_ids(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """Devices work all at once, and in one process messages are computed as they are sent."""
    monkeypatch.setattr(round_module, "window_of", lambda grid: window)
    grid = CountingGrid()
    a_round(
        grid, range(5), range(5, 8), send_order=an_order({client: client for client in range(5)})
    )
    assert [client for _, client in grid.sent] == list(range(8))
    assert grid.most_out == (window or 8)


def test_a_round_teaches_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute seconds and sizes are those of the replies."""
    monkeypatch.setattr(round_module, "window_of", lambda grid: W)
    send_order = SendOrder()
    a_round(CountingGrid(), range(5), range(5, 8), send_order=send_order)
    assert send_order.ordered("train", [9, 3, 2]) == [9, 3, 2]
    assert send_order.ahead(1) > 2
    send_order.note("train", an_update(2, 1e6))
    assert send_order.ordered("train", [9, 3, 2]) == [9, 2, 3]
    assert send_order.ordered("evaluate", [4, 5]) == [4, 5]  # 4 was never evaluated alone


def test_threads_take_turns_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    with short_thread_turns():
        assert sys.getswitchinterval() == pytest.approx(THREAD_TURN)
    assert sys.getswitchinterval() == before
