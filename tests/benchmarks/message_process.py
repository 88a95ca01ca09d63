"""The process of `tests.benchmarks.message` that answers one message, as a device's does.

It imports Flower's ClientApp process, torch and the app, answers a stored training message with the
stored private state, and prints the seconds of every part as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OTHER = "other"


class Stopwatch:
    """Seconds by part, wall clock and processor; what a part calls counts for the called part."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self._stack = [OTHER]
        self._last = time.perf_counter(), time.process_time()

    def _book(self) -> None:
        now = time.perf_counter(), time.process_time()
        part = self._stack[-1]
        self.wall[part] = self.wall.get(part, 0.0) + now[0] - self._last[0]
        self.cpu[part] = self.cpu.get(part, 0.0) + now[1] - self._last[1]
        self._last = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Book what the block takes on a part."""
        self._book()
        self._stack.append(name)
        try:
            yield
        finally:
            self._book()
            self._stack.pop()

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Book what a function or method takes on a part, whoever calls it."""
        real: Callable[..., Any] = getattr(owner, attribute)

        def watched(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return real(*arguments, **options)

        setattr(owner, attribute, watched)


def answer(place: Path) -> Stopwatch:
    """Answer the message in a directory; see `tests.benchmarks.message.prepare`."""
    watch = Stopwatch()
    with watch.part("imports: Flower's ClientApp process"):
        import flwr.supernode.runtime.run_clientapp  # noqa: F401
        from flwr.app import Context, RecordDict
        from flwr.common.serde import message_from_proto, message_to_proto
        from flwr.proto.message_pb2 import Message as ProtoMessage
        from flwr.supercore.task_identity import TaskIdentity
    with watch.part("imports: torch"):
        import torch  # noqa: F401
    with watch.part("imports: the app"):
        from client_app import handlers as runner
        from client_app import node
        from client_app.app import app
        from client_app.state_store import StateStore
        from strategies.base.method import get_method
    facts = json.loads((place / "facts.json").read_text())
    half = get_method(facts["run_config"]["method"]).client
    for owner, attribute, name in (
        (runner, "client_context", "run-config and device"),
        (node, "_data", "data: open and map"),
        (half, "build", "model: skeleton"),
        (StateStore, "discard_lost", "private state: map"),
        (StateStore, "load", "private state: map"),
        (runner, "unpack", "payload: unpack and check"),
        (half, "receive", "payload: put into the model"),
        (half, "train", "training"),
        (StateStore, "save", "private state: save"),
        (runner, "pack", "payload: pack"),
        (runner, "evaluate_client", "evaluation"),
    ):
        watch.watch(owner, attribute, name)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    context = Context(
        run_id=1, node_id=1, node_config=facts["node_config"], state=RecordDict(),
        run_config=facts["run_config"],
    )  # fmt: skip
    with watch.part("message: Flower's reading and writing"):
        proto = ProtoMessage.FromString((place / "message").read_bytes())
        message = message_from_proto(proto)
    reply = app(message, context)
    with watch.part("message: Flower's reading and writing"):
        message_to_proto(reply).SerializeToString()
    watch.cpu["everything"] = time.process_time()
    compiler = "torch._dynamo" in sys.modules
    assert not compiler, "torch's compiler was imported; see strategies/common/optimizers.py"
    return watch


def main() -> None:
    """Answer the message in the directory that the only argument names."""
    watch = answer(Path(sys.argv[1]))
    print(json.dumps({"wall": watch.wall, "cpu": watch.cpu}))


if __name__ == "__main__":
    main()
