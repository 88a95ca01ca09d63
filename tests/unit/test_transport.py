"""The transport: replies are matched by the message they answer, and no wait is without end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flwr.app import Message
from flwr.serverapp import Grid

from server_app.rounds import transport as transport_module
from server_app.rounds.transport import (
    LONGEST_POLL,
    LONGEST_SIMULATED_POLL,
    PUSH_CHUNK,
    SHORTEST_POLL,
    GridError,
    Sent,
    Transport,
)


class FakeGrid:
    """Gives every message an id in turn and hands out the replies it is told to have."""

    def __init__(self) -> None:
        self.pushed: list[Any] = []
        self.chunks: list[int] = []
        self.replies: list[Any] = []
        self.asked: list[list[str]] = []
        self.refuse: set[int] = set()

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in list(messages):
            number = len(self.pushed)
            self.pushed.append(message)
            ids.append("" if number in self.refuse else f"m{number}")
        self.chunks.append(len(ids))
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        self.asked.append(list(ids))
        there, self.replies = self.replies, []
        return there


def reply(to: str, *, source: int = 100, error: str | None = None, code: int = 2) -> Any:
    return SimpleNamespace(
        metadata=SimpleNamespace(reply_to_message_id=to, src_node_id=source),
        has_error=lambda: error is not None,
        error=SimpleNamespace(code=code, reason=error),
        content=f"content of {to}",
    )


def pushed(*kinds: str) -> tuple[Transport, FakeGrid]:
    grid = FakeGrid()
    transport = Transport(cast(Grid, grid))
    transport.push(
        (cast(Message, f"{kind}-{i}"), Sent(kind, 100 + i, i)) for i, kind in enumerate(kinds)
    )
    return transport, grid


def soon(seconds: float = 0.05) -> float:
    return time.monotonic() + seconds


def test_replies_are_matched_by_what_they_answer() -> None:
    """An error for a dead node comes from node 1, the SuperLink."""
    transport, grid = pushed("train", "train", "train")
    grid.replies = [
        reply("m2", source=102),
        reply("m0", source=1, error="node is gone", code=5),
        reply("m1", source=101),
    ]
    answers = [transport.receive(soon(), "train") for _ in range(3)]
    assert [a.sent.client_id for a in answers if a] == [2, 0, 1]
    assert [a.reason for a in answers if a] == [None, "node is gone", None]
    assert [a.message is None for a in answers if a] == [False, True, False]
    assert transport.receive(soon(), "train") is None
    assert transport.outstanding("train") == 0


@pytest.mark.parametrize(
    ("simulated", "longest"), [(False, LONGEST_POLL), (True, LONGEST_SIMULATED_POLL)]
)
def test_pauses_between_polls_grow_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, simulated: bool, longest: float
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(transport_module, "time", clock)
    monkeypatch.setattr(transport_module, "is_simulation", lambda grid: simulated)
    transport, _ = pushed("train")
    assert transport.receive(10.0, "train") is None
    assert pauses[0] == pytest.approx(1.5 * SHORTEST_POLL)
    assert sorted(pauses[:-1]) == pauses[:-1]
    assert max(pauses) == longest
    assert sum(pauses) == pytest.approx(10.0)


def test_the_deadline_ends_the_wait() -> None:
    transport, grid = pushed("train")
    started = time.monotonic()
    assert transport.receive(soon(0.1), "train") is None
    assert 0.09 <= time.monotonic() - started < 1.0
    assert len(grid.asked) >= 2


def test_a_deadline_in_the_past_still_looks_once() -> None:
    transport, grid = pushed("train")
    grid.replies = [reply("m0")]
    answer = transport.receive(time.monotonic() - 1, "train")
    assert answer is not None
    assert answer.sent.client_id == 0


def test_nothing_out_means_no_wait() -> None:
    transport, grid = pushed("query")
    started = time.monotonic()
    assert transport.receive(soon(60), "train", "evaluate") is None
    assert time.monotonic() - started < 1
    assert grid.asked == []


def test_other_kinds_are_received_on_the_way() -> None:
    transport, grid = pushed("query", "train")
    grid.replies = [reply("m0"), reply("m1")]
    kinds = [transport.receive(soon(), "train"), transport.receive(soon(), "train")]
    assert [a.sent.kind for a in kinds if a] == ["query", "train"]


def test_what_was_pulled_together_is_not_lost() -> None:
    transport, grid = pushed(*["train"] * 5)
    grid.replies = [reply(f"m{i}") for i in range(5)]
    first = transport.receive(soon(), "train")
    assert first is not None
    # Giving up the rest does not take back what has arrived.
    assert transport.give_up("train") == []
    assert [a.sent.client_id for a in transport.arrived()] == [1, 2, 3, 4]


def test_late_replies_to_what_was_given_up_are_ignored() -> None:
    transport, grid = pushed("train", "evaluate", "query")
    lost = transport.give_up("train", "evaluate")
    assert [(a.sent.client_id, a.reason) for a in lost] == [
        (0, "no answer before the deadline"), (1, "no answer before the deadline")
    ]  # fmt: skip
    assert transport.outstanding("train", "evaluate") == 0
    assert transport.outstanding("query") == 1
    grid.replies = [reply("m0"), reply("m1"), reply("m2")]
    assert [a.sent.client_id for a in transport.arrived()] == [2]
    assert grid.asked[-1] == ["m2"]


def test_second_and_unknown_replies_are_ignored() -> None:
    transport, grid = pushed("train", "train")
    grid.replies = [reply("m0"), reply("m0"), reply("m9"), reply("")]
    assert [a.sent.client_id for a in transport.arrived()] == [0]
    grid.replies = [reply("m0", error="late"), reply("m1")]
    assert [a.sent.client_id for a in transport.arrived()] == [1]


def test_messages_are_pushed_a_few_at_a_time_and_lazily() -> None:
    grid = FakeGrid()
    made: list[int] = []

    def messages() -> Any:
        for i in range(2 * PUSH_CHUNK + 3):
            made.append(i)
            assert i - len(grid.pushed) < PUSH_CHUNK
            yield f"train-{i}", Sent("train", i, i)

    transport = Transport(cast(Grid, grid))
    transport.push(messages())
    assert grid.chunks == [PUSH_CHUNK, PUSH_CHUNK, 3]
    assert transport.outstanding("train") == 2 * PUSH_CHUNK + 3


def test_a_node_that_left_is_a_failure_of_its_own() -> None:
    """A SuperNode can sign off between the choice of participants and the push."""
    grid = FakeGrid()
    grid.refuse = {1}
    transport = Transport(cast(Grid, grid))
    transport.push((cast(Message, "x"), Sent("train", i, i)) for i in range(3))
    [gone] = transport.arrived()
    assert (gone.sent.client_id, gone.message) == (1, None)
    assert "left before" in str(gone.reason)
    assert transport.outstanding("train") == 2


def test_one_node_is_given_up_on() -> None:
    transport = Transport(cast(Grid, FakeGrid()))
    transport.push((cast(Message, "x"), Sent("query", i, None)) for i in range(3))
    [lost] = transport.give_up("query", node_id=1)
    assert lost.sent.node_id == 1
    assert transport.outstanding("query") == 2


def test_missing_ids_raise() -> None:
    grid = FakeGrid()
    grid.push_messages = lambda messages: []  # type: ignore[method-assign, assignment]
    with pytest.raises(GridError, match="refused 1 messages of kind query"):
        Transport(cast(Grid, grid)).push([(cast(Message, "x"), Sent("query", 0, None))])


RAY = """<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::\
ClientAppActor.run()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=1)
  File "/x/flwr/clientapp/client_app.py", line 1, in run
    raise KeyError("model")
KeyError: 'model'

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=1, ip=10.0.0.1)
  File "/x/flwr/simulation/ray_transport/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:
Exception ClientAppException occurred. Message: 'model''>
"""


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("<class 'ValueError'>:<'boom in client'>", "ValueError: boom in client"),
        ("<class 'strategies.common.training.TrainingDivergedError'>:<'round 2'>",
         "TrainingDivergedError: round 2"),
        ("RuntimeError: plain", "RuntimeError: plain"),
        ("first\n\nValueError: last\n\n", "ValueError: last"),
        (RAY, "KeyError: 'model'"),
        ("", "error code 2, no reason given"),
        (None, "error code 2, no reason given"),
        ("  \n ", "error code 2, no reason given"),
        ("x" * 2000, "x" * 500),
    ],
)  # fmt: skip
def test_reasons_are_one_telling_line(reason: str | None, expected: str) -> None:
    transport, grid = pushed("train")
    answer = reply("m0", error="")
    answer.error.reason = reason
    grid.replies = [answer]
    received = transport.receive(soon(), "train")
    assert received is not None
    assert received.message is None
    assert received.reason == expected
