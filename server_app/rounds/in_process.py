"""A Grid that runs the ClientApp in this very process: for debugging and for fast tests.

No Ray, no SuperLink, no serialisation over a network; breakpoints in client code are hit. The
numbers are those of any other way to run, because nothing depends on where a client computes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

FIRST_NODE = 1000
"""Node ids start here, so that a node id used in place of a client id shows at once."""


class InProcessGrid(Grid):
    """Answers every message at once by calling the ClientApp.

    Parameters
    ----------
    client_app : ClientApp
        What the clients run.
    num_clients : int
        How many clients there are; client k has partition-id k of num_clients.
    run_config : Mapping
        The run-config that server and clients see.
    node_configs : Mapping of int to Mapping, optional
        Replaces the node-config of single clients.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        run_config: Mapping[str, Any],
        node_configs: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        # Message() reads the identity that Flower sets in processes it starts itself.
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.client_app = client_app
        self._replies: dict[str, Message] = {}
        self.contexts = {
            FIRST_NODE + k: Context(
                run_id=1,
                node_id=FIRST_NODE + k,
                node_config=dict(
                    (node_configs or {}).get(k, {"partition-id": k, "num-partitions": num_clients})
                ),
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for k in range(num_clients)
        }

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """Not available: no SuperLink stands behind this Grid."""
        raise NotImplementedError("an in-process Grid has no run record")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not available: make messages with `Message(...)`."""
        raise NotImplementedError("make messages with Message(...)")

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the ClientApp on every message and keep the replies."""
        ids = []
        for message in messages:
            # Flower's own id is a hash of all that the message holds, which may be a whole model.
            message_id = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = message_id
            self._replies[message_id] = self._answer(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages, each once."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push and pull in one call."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        try:
            return self.client_app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(
                Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message
            )
