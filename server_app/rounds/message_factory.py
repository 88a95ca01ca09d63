"""The server's messages: a control record and a downlink, packed once where clients share it."""

from __future__ import annotations

import dataclasses
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from strategies.base.messages import CONTROL, Control
from strategies.base.payload import AS_IT_IS, WireFormat, count_scalars, pack


@dataclasses.dataclass
class MessageFactory:
    """Builds the server's messages and remembers what each carries.

    Attributes
    ----------
    run_name : str
        Names the run to the clients, whose private state is kept under it.
    nodes : dict of int to int
        Flower's current node id of every client id.
    ttl : float
        Seconds after which Flower drops an undelivered message.
    wire : WireFormat
        How downlinks travel.
    """

    run_name: str
    nodes: dict[int, int]
    ttl: float
    wire: WireFormat = AS_IT_IS
    _last: tuple[Any, RecordDict, int] | None = None

    def build(self, kind: str, client_id: int, control: Control, downlink: Any) -> Message:
        """Return one message; a downlink given again as the same object is packed only once."""
        if self._last is None or self._last[0] is not downlink:
            self._last = (downlink, pack(downlink, self.wire), count_scalars(downlink)[0])
        return Message(
            RecordDict({**self._last[1], CONTROL: control.to_record()}),
            self.nodes[client_id],
            kind,
            ttl=self.ttl,
            group_id=str(control.round),
        )

    def query(self, node_id: int) -> Message:
        """Return the registration's question to one node."""
        control = ConfigRecord({"run-name": self.run_name, "round": 0})
        return Message(RecordDict({CONTROL: control}), node_id, "query", ttl=self.ttl, group_id="0")

    def forget(self) -> None:
        """Let go of the downlink built last, which may be large."""
        self._last = None

    @property
    def last_scalars(self) -> int:
        """Scalars, in the paper's convention, of the downlink built last."""
        return self._last[2] if self._last else 0
