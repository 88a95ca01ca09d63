"""The messages of a run: what server and client say to each other around the payloads.

Server to client: the record `control` (run name, round, what to do) and the downlink's records.
Client to server: the record `info` (who answers, for which round, examples, seconds), the record
`metrics`, and after training the uplink's records. Nothing else; an unknown record is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from strategies.base.payload import PayloadError, count_scalars, pack

CONTROL = "control"
INFO = "info"
METRICS = "metrics"
CLIENT_INFO = "client"
PHASES = ("train", "pre", "post", "final")


@dataclasses.dataclass(frozen=True)
class ClientInfo:
    """A client's answer to the registration.

    Attributes
    ----------
    client_id : int
        Stable identity.
    model, parameters, raw_dim, feature_dim
        Architecture, its number of parameters, width before and after its mapping.
    num_classes, channels, image_size, class_hash
        What the client takes the data set to be; must be equal on all clients. `class_hash`
        stands for the class names in order.
    classes, class_counts : list of int
        Classes among the training examples, and how many of each.
    train_examples, validation_examples, test_examples : int
        Sizes of the client's splits.
    device : str
        Where it computes.
    data_hash : str
        Equal exactly when a client has the same examples in the same splits.
    task, metric : str
        What the client learns (`data.tasks`), and the metric its main score is named by.
    public_hash : str
        Stands for the public data it has, item by item; empty where the method needs none.
    vocabulary, text_length : int
        What its model reads of sentences: token ids below the one, the other many; 0 for images.
    tokeniser : str
        Equal exactly where sentences become the same tokens; empty for images.
    data_notes : str
        What its own files were read as and what was left out; empty for a published data set.
    """

    client_id: int
    model: str
    parameters: int
    raw_dim: int
    feature_dim: int
    num_classes: int
    channels: int
    image_size: int
    class_hash: str
    classes: list[int]
    class_counts: list[int]
    train_examples: int
    validation_examples: int
    test_examples: int
    device: str
    data_hash: str
    task: str = "classification"
    metric: str = "accuracy"
    public_hash: str = ""
    vocabulary: int = 0
    text_length: int = 0
    tokeniser: str = ""
    data_notes: str = ""

    def to_record(self) -> ConfigRecord:
        """Return it as a record."""
        return ConfigRecord(dataclasses.asdict(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ClientInfo:
        """Check received client information; raises `PayloadError` naming the field."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = record.get(field.name)
            if field.type == "list[int]":
                fits = isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)
            elif field.type == "int":
                fits = type(value) is int and value >= 0
            else:
                # The texts are printed and written to files.
                fits = isinstance(value, str) and len(value) <= 500 and value.isprintable()
            if not fits:
                raise PayloadError(
                    f"client information: {field.name} = {value!r:.100}, expected {field.type}"
                )
            values[field.name] = value
        info = cls(**values)
        info._check_classes()
        return info

    def _check_classes(self) -> None:
        counts_fit = len(self.classes) == len(self.class_counts)
        if self.metric == "accuracy":
            counts_fit = counts_fit and sum(self.class_counts) == self.train_examples
        else:  # an example may belong to several classes
            counts_fit = counts_fit and max(self.class_counts, default=0) <= self.train_examples
        if not counts_fit:
            raise PayloadError(
                f"client information: class_counts {self.class_counts} of classes {self.classes} "
                f"contradict train_examples = {self.train_examples}"
            )
        if any(c >= self.num_classes for c in self.classes):
            raise PayloadError(
                f"client information: classes {self.classes} contradict "
                f"num_classes = {self.num_classes}"
            )


@dataclasses.dataclass(frozen=True)
class MetricRow:
    """One measured value; `examples` is how many examples are behind it."""

    phase: str
    metric: str
    value: float
    examples: int


@dataclasses.dataclass(frozen=True)
class ClientUpdate:
    """A client's checked reply.

    Attributes
    ----------
    client_id, num_examples : int
        Who answered, and on how many training examples the uplink rests.
    uplink : Any
        The method's `Uplink`; None when the client only evaluated or had nothing to train on.
    rows : list of MetricRow
        Everything the client measured.
    compute_s : float
        Seconds the client worked on the message.
    num_bytes, scalars : int
        Size of the reply's records, and of the uplink in the paper's convention.
    worker : str
        Names the process that did the work, to count how many worked at once.
    rounds_trained : int
        In how many rounds the client's private state had been trained before this message.
    """

    client_id: int
    num_examples: int
    uplink: Any
    rows: list[MetricRow]
    compute_s: float
    num_bytes: int
    scalars: int
    worker: str
    rounds_trained: int = 0


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
    """

    run_name: str
    nodes: dict[int, int]
    ttl: float
    control: dict[str, bool | int | str] = dataclasses.field(default_factory=dict)
    _last: tuple[Any, RecordDict, int] | None = None

    def build(
        self, kind: str, client_id: int, server_round: int, downlink: Any, *, test: bool = True
    ) -> Message:
        """Return one message; a downlink given again as the same object is packed only once.

        `test` says whether the client's evaluation, if it makes one, is to measure the test split.
        """
        if self._last is None or self._last[0] is not downlink:
            self._last = (downlink, pack(downlink), count_scalars(downlink)[0])
        control: dict[str, Any] = {
            "run-name": self.run_name,
            "round": server_round,
            "test": test,
            **self.control,
        }
        return Message(
            RecordDict({**self._last[1], CONTROL: ConfigRecord(control)}),
            self.nodes[client_id],
            kind,
            ttl=self.ttl,
            group_id=str(server_round),
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


def count_bytes(content: RecordDict) -> int:
    """Return the size of a message's records in bytes.

    The control record (about 150 bytes) is left out: it names the run, and with it two runs of
    one seed would differ in their traffic.
    """
    return sum(record.count_bytes() for name, record in content.items() if name != CONTROL)


def metrics_record(rows: Iterable[MetricRow]) -> MetricRecord:
    """Return measured values as a record keyed `phase/metric`."""
    return MetricRecord({f"{r.phase}/{r.metric}": [r.value, float(r.examples)] for r in rows})
