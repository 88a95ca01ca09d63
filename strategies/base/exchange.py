"""The messages of a run: what server and client say to each other around the payloads.

Server to client: the record `control` (run name, round, what to do) and the downlink's records.
Client to server: the record `info` (who answers, for which round, examples, seconds), the record
`metrics`, and after training the uplink's records. Nothing else; an unknown record is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from strategies.base.method import Method
from strategies.base.payload import (
    ARRAYS,
    MANIFEST,
    PayloadError,
    Template,
    count_scalars,
    pack,
    unpack,
)

CONTROL = "control"
INFO = "info"
METRICS = "metrics"
CARD = "card"
INFO_KEYS = frozenset(
    ("client-id", "round", "num-examples", "compute-s", "worker", "rounds-trained")
)
MOST_METRICS, LONGEST_NAME = 200, 100
"""Bounds of what one reply may report."""
PHASES = ("train", "pre", "post", "final")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Card:
    """A client's answer to the roll call.

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

    def to_record(self) -> ConfigRecord:
        """Return the card as a record."""
        return ConfigRecord(dataclasses.asdict(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Card:
        """Check a received card; raises `PayloadError` naming the field."""
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
                raise PayloadError(f"card: {field.name} = {value!r:.100}, expected {field.type}")
            values[field.name] = value
        card = cls(**values)
        card._check_classes()
        return card

    def _check_classes(self) -> None:
        counts_fit = len(self.classes) == len(self.class_counts)
        if not counts_fit or sum(self.class_counts) != self.train_examples:
            raise PayloadError(
                f"card: class_counts {self.class_counts} of classes {self.classes} contradict "
                f"train_examples = {self.train_examples}"
            )
        if any(c >= self.num_classes for c in self.classes):
            raise PayloadError(
                f"card: classes {self.classes} contradict num_classes = {self.num_classes}"
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
        """Return the roll call's question to one node."""
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


def read_reply(
    method: Method,
    content: RecordDict,
    client_id: int,
    server_round: int,
    dims: Mapping[str, int],
    templates: Mapping[str, Template],
) -> ClientUpdate:
    """Check a reply's records and return them as a `ClientUpdate`.

    Raises
    ------
    PayloadError
        Naming the key, if anything differs from what was declared.
    """
    unknown = set(content) - {ARRAYS, MANIFEST, INFO, METRICS}
    if unknown:
        raise PayloadError(f"{sorted(unknown)[0]!r:.100}: record is not declared")
    # Not through `content.config_records`: see `read_payload`.
    info = content.get(INFO)
    info = info if isinstance(info, ConfigRecord) else ConfigRecord()
    if undeclared := sorted(set(info) - INFO_KEYS):
        raise PayloadError(f"{INFO}: {undeclared[0]!r:.100}: key is not declared")
    for key, expected in (("client-id", client_id), ("round", server_round)):
        if info.get(key) != expected:
            raise PayloadError(f"{key}: the reply says {info.get(key)!r}, expected {expected}")
    examples, seconds = info.get("num-examples"), info.get("compute-s")
    if type(examples) is not int or examples < 0:
        raise PayloadError(f"num-examples: {examples!r} is not a count")
    if not isinstance(seconds, float) or not isfinite(seconds) or seconds < 0:
        raise PayloadError(f"compute-s: {seconds!r} is not a duration")
    worker = info.get("worker")
    if not isinstance(worker, str) or not worker:  # Flower cannot count the bytes of ""
        raise PayloadError(f"worker: {worker!r} is not a name")
    trained = info.get("rounds-trained")
    if type(trained) is not int or trained < 0:
        raise PayloadError(f"rounds-trained: {trained!r} is not a count")
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        raise PayloadError(f"{METRICS}: record is missing, or holds no metrics")
    rows = read_metrics(metrics)
    # A client that had nothing to train on answers without arrays.
    uplink = read_payload(method.uplink, content, dims, templates) if examples else None
    if uplink is None and (ARRAYS in content or MANIFEST in content):
        raise PayloadError("num-examples: 0, but arrays were sent")
    scalars = count_scalars(uplink)[0] if uplink is not None else 0
    return ClientUpdate(
        client_id, examples, uplink, rows, seconds, count_bytes(content), scalars, worker, trained
    )


def read_payload(
    cls: type[T],
    content: RecordDict,
    dims: Mapping[str, int],
    templates: Mapping[str, Template] | None = None,
) -> T:
    """Unpack a payload (see `unpack`) so that only it keeps the received bytes from then on.

    Flower's `RecordDict.array_records` and its like, which `unpack` looks through, leave a
    reference cycle behind: the bytes of a whole model would stay in memory until Python's
    collector comes by. So they are looked for in a copy of the records, which is emptied.
    """
    copy = RecordDict({name: content[name] for name in (ARRAYS, MANIFEST) if name in content})
    arrays = copy.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        return unpack(cls, copy, dims, templates)
    copy[ARRAYS] = held = ArrayRecord(dict(arrays.items()))
    try:
        return unpack(cls, copy, dims, templates)
    finally:
        held.clear()


def read_metrics(record: Mapping[str, Any]) -> list[MetricRow]:
    """Check received metrics: finite values, whole example counts, known phases."""
    if len(record) > MOST_METRICS:
        raise PayloadError(f"{METRICS}: {len(record)} values, at most {MOST_METRICS} are accepted")
    rows = []
    for key, pair in record.items():
        phase, _, metric = key.partition("/")
        finite = isinstance(pair, list) and all(type(v) is float and isfinite(v) for v in pair)
        named = phase in PHASES and 0 < len(metric) <= LONGEST_NAME and metric.isprintable()
        if not finite or len(pair) != 2 or not named:
            shown = f"{key!r:.100} = {pair!r:.100}"
            raise PayloadError(f"{METRICS}: {shown} is not [value, examples] of a phase")
        if pair[1] < 0 or pair[1] != int(pair[1]):
            raise PayloadError(f"{METRICS}: {key} rests on {pair[1]} examples")
        if "accuracy" in metric and not 0 <= pair[0] <= 1:
            raise PayloadError(f"{METRICS}: {key} = {pair[0]} is not between 0 and 1")
        rows.append(MetricRow(phase, metric, float(pair[0]), int(pair[1])))
    return rows
