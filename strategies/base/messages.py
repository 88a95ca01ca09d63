"""The messages of a run: what server and client say to each other around the payloads.

Server to client: the record `control` (run name, round, what to do) and the downlink's records.
Client to server: the record `info` (who answers, for which round, examples, seconds), the record
`metrics`, and after training the uplink's records. Nothing else; an unknown record is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from flwr.app import MetricRecord, RecordDict

from data.tasks import METRIC_OF, task_name
from strategies.base.checked import Checked, flag, real, text, whole, wholes
from strategies.base.payload import PayloadError
from strategies.base.received_text import shown

CONTROL = "control"
INFO = "info"
METRICS = "metrics"
CLIENT_INFO = "client"
PHASES = ("train", "pre", "post", "final")
VALIDATION, TRAINED = "validation_", "trained_"
"""Begin the names of scores: on the validation split; on the test split, after local training,
where the main score was measured before it (`evaluate-when = "both"`)."""
LONGEST_PROBLEM = 2000
"""Signs of what a client says is wrong with its set-up."""
MOST_CLASSES, MOST_SIZE = 10**5, 10**6
MOST_ROUNDS, MOST_EXAMPLES, MOST = 10**9, 10**12, 2**62
"""Bounds of what is believed. All integers fit into 64 bits, and so does a sum of examples."""
LONGEST_TIME = 1e9
"""Seconds (30 years) that a client may have worked on a message."""


@dataclasses.dataclass(frozen=True)
class Control(Checked):
    """What the server says with every downlink; a client acts on it only after checking it.

    Attributes
    ----------
    run_name : str
        Names the run, and with it the place of a client's private states.
    token, session : str
        Of the run, from its first start on, and of the server's process.
    round, exchange, resumed_at : int
        The current round and exchange of it, from 1, and the round after which this process
        resumed the run.
    keep_from : int
        The earliest round that a resume may go back to: older private states are not needed.
    evaluate, test : bool
        Whether the client evaluates, and whether the test split is part of that.
    phase : str
        What an evaluation is recorded as, one of `PHASES`.
    final : bool
        Whether this is the evaluation that closes the run, after the last round.
    """

    wording: ClassVar[str] = "control record: {} ="

    run_name: str = text(longest=100, shortest=1)
    token: str = text(longest=100)
    session: str = text(longest=100)
    round: int = whole(most=MOST_ROUNDS)
    exchange: int = whole(most=MOST_ROUNDS, least=1, default=1)
    resumed_at: int = whole(most=MOST_ROUNDS, default=0)
    keep_from: int = whole(most=MOST_ROUNDS, default=0)
    evaluate: bool = flag(default=False)
    test: bool = flag(default=True)
    phase: str = text(*PHASES, default="pre")
    final: bool = flag(default=False)


@dataclasses.dataclass(frozen=True)
class ReplyInfo(Checked):
    """What a client says about its reply to `train` or `evaluate`.

    Attributes
    ----------
    client_id, round : int
        Who answers, for which round.
    num_examples : int
        On how many training examples the uplink rests; 0 without an uplink.
    compute_s : float
        Seconds the client worked on the message.
    worker : str
        Names the process that did the work.
    rounds_trained : int
        In how many rounds the private state had been trained before the message.
    """

    wording: ClassVar[str] = "{}:"

    client_id: int = whole(most=MOST)
    round: int = whole(most=MOST_ROUNDS)
    num_examples: int = whole(most=MOST_EXAMPLES)
    compute_s: float = real(most=LONGEST_TIME)
    worker: str = text(longest=100, shortest=1)
    rounds_trained: int = whole(most=MOST_ROUNDS)


@dataclasses.dataclass(frozen=True)
class SetUpProblem(Checked):
    """A client's answer to the registration where its set-up is wrong: who, and what to mend."""

    wording: ClassVar[str] = "set-up problem: {} ="

    problem: str = text(longest=LONGEST_PROBLEM)
    who: str = text(longest=100)


@dataclasses.dataclass(frozen=True)
class ClientInfo(Checked):
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
        Classes among the training examples; and how many of each, empty where the client does not
        tell (`share-class-counts`).
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
    features, steps : int
        Inputs of a row, or channels and steps of a window; 0 for others.
    columns_hash : str
        Equal exactly where cells become the same inputs; empty but for tables and series.
    data_notes : str
        What its own files were read as and what was left out; empty for a published data set.
    machine : str
        On a device: its version of Wildflower, free disk and free memory.
    rate : float
        How much of the one network that all clients share it trains, by its own node-config; 0
        where the run decides.
    """

    wording: ClassVar[str] = "client information: {} ="
    dashes: ClassVar[bool] = False

    client_id: int = whole(most=MOST)
    model: str = text()
    parameters: int = whole(most=MOST)
    raw_dim: int = whole(most=MOST)
    feature_dim: int = whole(most=MOST)
    num_classes: int = whole(most=MOST_CLASSES)
    channels: int = whole(most=MOST_SIZE)
    image_size: int = whole(most=MOST_SIZE)
    class_hash: str = text()
    classes: list[int] = wholes(most=MOST_CLASSES, longest=MOST_CLASSES)
    class_counts: list[int] = wholes(most=MOST_EXAMPLES, longest=MOST_CLASSES)
    train_examples: int = whole(most=MOST_EXAMPLES)
    validation_examples: int = whole(most=MOST_EXAMPLES)
    test_examples: int = whole(most=MOST_EXAMPLES)
    device: str = text()
    data_hash: str = text()
    task: str = text(default="classification")
    metric: str = text(default="accuracy")
    public_hash: str = text(default="")
    vocabulary: int = whole(most=MOST_SIZE, default=0)
    text_length: int = whole(most=MOST_SIZE, default=0)
    tokeniser: str = text(default="")
    data_notes: str = text(default="")
    machine: str = text(default="")
    rate: float = real(most=1.0, default=0.0)
    features: int = whole(most=MOST_SIZE, default=0)
    steps: int = whole(most=MOST_SIZE, default=0)
    columns_hash: str = text(default="")

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Self:
        """Check received client information; raises `PayloadError` naming the field."""
        info = super().from_record(record)
        info._check_task()
        info._check_classes()
        return info

    def _check_task(self) -> None:
        task = task_name(self.task)
        if METRIC_OF.get(task) != self.metric:
            raise PayloadError(
                f"client information: task = {shown(self.task)} contradicts metric = "
                f"{shown(self.metric)}, expected one of {METRIC_OF}"
            )

    def _check_classes(self) -> None:
        if not self._counts_fit():
            raise PayloadError(
                f"client information: class_counts {shown(self.class_counts)} of classes "
                f"{shown(self.classes)} "
                f"contradict train_examples = {self.train_examples}"
            )
        if len(set(self.classes)) != len(self.classes):
            raise PayloadError(f"client information: classes {shown(self.classes)} repeat")
        if any(c >= self.num_classes for c in self.classes):
            raise PayloadError(
                f"client information: classes {shown(self.classes)} contradict "
                f"num_classes = {self.num_classes}"
            )

    def _counts_fit(self) -> bool:
        exclusive = self.metric == "accuracy"  # elsewhere an example may be of several classes
        if not self.class_counts:  # not told
            held, examples = len(self.classes), self.train_examples
            return not exclusive or (held <= examples and (held > 0) == (examples > 0))
        if len(self.classes) != len(self.class_counts):
            return False
        if exclusive:
            return sum(self.class_counts) == self.train_examples
        return max(self.class_counts) <= self.train_examples


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
    sizes : Mapping of str to float
        Root mean square of the uplink's fields, see `bounds`.
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
    sizes: Mapping[str, float] = dataclasses.field(default_factory=dict)


def count_bytes(content: RecordDict) -> int:
    """Return the size of a message's records in bytes.

    The control record (about 150 bytes) is left out: it names the run, and with it two runs of
    one seed would differ in their traffic.
    """
    return sum(record.count_bytes() for name, record in content.items() if name != CONTROL)


def metrics_record(rows: Iterable[MetricRow]) -> MetricRecord:
    """Return measured values as a record keyed `phase/metric`."""
    return MetricRecord({f"{r.phase}/{r.metric}": [r.value, float(r.examples)] for r in rows})
