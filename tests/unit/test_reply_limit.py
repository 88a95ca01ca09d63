"""A reply that is too large is not taken in whole: Flower's own pull stops in the middle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid

from server_app.records.round_result import REFUSED
from server_app.rounds.in_process import InProcessGrid
from server_app.rounds.reply_limit import MB, MOST_OBJECTS, ReplyLimit
from server_app.rounds.transport import Sent, Transport

PIECE = b"x" * (MB // 2)


class Served(HttpGrid):
    """Flower's Grid in front of a SuperLink that holds one reply of so many pieces."""

    def __init__(self, pieces: int) -> None:
        self.pulled = 0
        self.node = Node(node_id=1)
        self._run = SimpleNamespace(run_id=1)  # type: ignore[assignment]
        self._pieces = pieces

    @property
    def _runtime_client(self) -> Any:
        return self

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802 - Flower's name
        answer = MessageProto()
        answer.metadata.message_id, answer.metadata.reply_to_message_id = "r", "m0"
        children = [ObjectTree(object_id=f"o{i}") for i in range(self._pieces)]
        tree = ObjectTree(object_id="r", children=children)
        return PullAppMessagesResponse(messages_list=[answer], message_object_trees=[tree])

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        self.pulled += 1
        return SimpleNamespace(object_found=True, object_available=True, object_content=PIECE)

    def push_messages(self, messages: Any) -> list[str]:
        return [f"m{i}" for i, _ in enumerate(messages)]


def reason(grid: Served, megabytes: int, sent: int = 0) -> str:
    """Return why there is no reply."""
    plain = http_grid.pull_objects
    limit = ReplyLimit(grid, megabytes)
    limit.sent(sent)
    transport = Transport(grid, limit)
    transport._out["m0"] = Sent("train", 7, 0)
    with limit.applied():
        [answer] = transport.arrived()
    assert http_grid.pull_objects is plain
    return str(answer.reason)


def test_a_large_reply_is_refused_while_it_is_pulled() -> None:
    grid = Served(1200)  # 600 MB
    assert reason(grid, 8) == f"{REFUSED}: its reply is more than 8 MB (max-reply-mb)"
    assert 17 <= grid.pulled <= 20  # of half a MB; some were under way


def test_what_was_sent_raises_the_limit() -> None:
    grid = Served(30)
    assert "more than 12 MB" in reason(grid, 2, sent=6 * MB)


def test_many_objects_are_refused_before_any_is_pulled() -> None:
    grid = Served(MOST_OBJECTS)
    assert reason(grid, 8) == f"{REFUSED}: its reply is more than {MOST_OBJECTS} objects"
    assert grid.pulled == 0


def test_in_one_machine_there_is_nothing_to_limit() -> None:
    limit = ReplyLimit(cast(Any, object.__new__(InProcessGrid)), 1)
    with limit.applied():
        assert not limit.applies
