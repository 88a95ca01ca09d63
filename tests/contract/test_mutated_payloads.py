"""Clients that answer with damaged uplinks: each is refused by name, and nothing else happens.

One client of a run answers as it should. The others send its answer again under their own ids,
each with one seeded damage. The server's state must be that of a run with the first client alone.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from safetensors.numpy import load_file

from server_app.rounds.in_process import InProcessGrid
from strategies.base.messages import CLIENT_INFO, INFO
from strategies.base.method import get_method
from strategies.base.payload import ARRAYS, DTYPES, MANIFEST, rules_of
from strategies.base.wire import read_entries, write_entries
from tests.support import Outcome, run_federation

METHODS = ("fedre", "fedproto", "fedavg", "fedin")
DAMAGED = 50
"""Damaged answers for each method; all four make 200."""
SETTINGS: dict[str, Any] = {
    "num_rounds": 1,
    "subset": 0.08,
    "image_size": 16,
    "feature_dim": 32,
    "models": "resnet10-w4",
    "min_clients": 1,
}
ENORMOUS = 4_000_000
"""Elements of an array that is really sent; others only claim a size."""

sprung: list[str] = []


def spring(text: str) -> str:
    """Run when a pickle in an answer is loaded, which must not happen."""
    sprung.append(text)
    return text


class Trap:
    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return spring, ("an answer was unpickled",)


# Damages: each changes an answer and returns what the refusal has to name ------------------------

Entries = dict[str, NDArray[Any]]


@dataclasses.dataclass
class Answer:
    """A client's answer and what its method declares, to be damaged."""

    content: RecordDict
    uplink: type
    draw: np.random.Generator

    @property
    def entries(self) -> Entries:
        return {key: item.copy() for key, item in read_entries(self.content).items()}

    def write(self, entries: Entries) -> None:
        self.content.update(write_entries(list(entries.items())))

    def pick(self, among: list[str]) -> str:
        return among[int(self.draw.integers(len(among)))]

    def bounded(self, side: str) -> list[str]:
        """Return the fields whose declaration has a smallest or a largest value."""
        return [k for k, rule in rules_of(self.uplink).items() if getattr(rule, side) is not None]


def put(value: float) -> Callable[[Answer], str]:
    """Return a damage that puts a value into an array of floats."""

    def damage(answer: Answer) -> str:
        entries = answer.entries
        key = answer.pick([k for k, item in entries.items() if item.dtype.kind == "f"])
        flat = entries[key].reshape(-1)
        flat[answer.draw.integers(flat.size)] = value
        answer.write(entries)
        return f"{key}: 1 of {flat.size} values"

    return damage


def another_shape(answer: Answer) -> str:
    entries = answer.entries
    key = answer.pick(list(entries))
    item = entries[key]
    if item.ndim > 1 and answer.draw.random() < 0.5:
        entries[key] = np.concatenate([item, item[..., :1]], axis=-1)
    else:
        entries[key] = item[None]
    answer.write(entries)
    return f"{key}: shape {entries[key].shape}"


def another_dtype(answer: Answer) -> str:
    entries = answer.entries
    key = answer.pick(list(entries))
    dtype = answer.pick([name for name in DTYPES if name != entries[key].dtype.name])
    entries[key] = entries[key].astype(dtype)
    answer.write(entries)
    return f"{key}: dtype {dtype}"


def class_id(answer: Answer) -> str:
    fields = answer.bounded("below")
    if not fields:
        return claims_more(answer)  # the method sends no class ids
    entries, key = answer.entries, answer.pick(fields)
    value = int(answer.draw.choice([-1, 10, 11, 2**40, -(2**63), 2**63 - 1]))
    entries[key][answer.draw.integers(len(entries[key]))] = value
    answer.write(entries)
    return f"{key}: value {value} is"


def negative_count(answer: Answer) -> str:
    fields = answer.bounded("minimum")
    if not fields or answer.draw.random() < 0.3:
        answer.content[INFO]["num-examples"] = -int(answer.draw.integers(1, 1000))
        return "num-examples: -"
    entries, key = answer.entries, answer.pick(fields)
    entries[key][answer.draw.integers(len(entries[key]))] = -1
    answer.write(entries)
    return f"{key}: value -1"


def missing_key(answer: Answer) -> str:
    entries = answer.entries
    key = answer.pick(list(entries))
    del entries[key]
    answer.write(entries)
    return f"{key}: key is missing"


def extra_key(answer: Answer) -> str:
    entries = answer.entries
    key = answer.pick(["model", "weights/more", "s_in2", "labels", next(iter(entries)) + "/x"])
    entries[key] = np.ones(3, np.float32)
    answer.write(entries)
    return f"{key}: key is not declared"


def object_array(answer: Answer) -> str:
    stream = io.BytesIO()
    np.save(stream, np.array([Trap()] * 3, dtype=object), allow_pickle=True)
    data = answer.pick(["whole", "bare"])
    dtype = answer.pick(sorted(answer.content[ARRAYS]))
    answer.content[ARRAYS][dtype] = Array(
        dtype, (3,), "numpy.ndarray", stream.getvalue() if data == "whole" else pickle.dumps(Trap())
    )
    return f"{dtype}: "


def claims_more(answer: Answer) -> str:
    """Say in the manifest that an array is larger than what was sent, up to 1 PB."""
    sent = answer.entries
    key = answer.pick(list(sent))
    size = int(10 ** answer.draw.integers(8, 15))
    rows = [[k, v.dtype.name, [size] if k == key else list(v.shape)] for k, v in sent.items()]
    text = str(rows).replace("'", '"')
    answer.content[MANIFEST] = ConfigRecord({"entries": text})
    return f"{key}: shape ({size},) needs {size} elements"


def enormous(answer: Answer) -> str:
    if answer.draw.random() < 0.7:
        return claims_more(answer)
    entries = answer.entries
    key = answer.pick(list(entries))
    entries[key] = np.zeros(ENORMOUS, entries[key].dtype)
    answer.write(entries)
    return f"{key}: "


DAMAGES: tuple[Callable[[Answer], str], ...] = (
    put(np.nan), put(np.inf), put(-np.inf), another_shape, another_dtype, class_id,
    negative_count, missing_key, extra_key, object_array, enormous,
)  # fmt: skip


# Runs -----------------------------------------------------------------------------------------


class Recorded(InProcessGrid):
    """Keeps what the only client answers, by the kind of the message."""

    answers: dict[str, RecordDict]

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        self.answers.setdefault(message.metadata.message_type, copy.deepcopy(reply.content))
        return reply


def replaying(method: str, answers: dict[str, RecordDict], named: dict[int, str]) -> ClientApp:
    """Return a ClientApp that gives recorded answers, damaged on all clients but client 0.

    What the refusal of each client's answer has to name is put into `named`.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        kind, client = message.metadata.message_type, int(context.node_config["partition-id"])
        content = copy.deepcopy(answers[kind])
        if kind == "query":
            content[CLIENT_INFO]["client_id"] = client
        else:
            content[INFO]["client-id"] = client
        if kind == "train" and client:
            seed = [METHODS.index(method), client]
            damaged = Answer(content, get_method(method).uplink, np.random.default_rng(seed))
            named[client] = DAMAGES[client % len(DAMAGES)](damaged)
        return Message(content, reply_to=message)

    app.query()(answer)
    app.train()(answer)
    app.evaluate()(answer)
    return app


def server_state(run: Outcome) -> Entries:
    """Return the tensors of the only checkpoint."""
    (path,) = (run.path / "checkpoints").glob("round-*")
    state: Entries = load_file(path)
    return state


@pytest.mark.parametrize("method", METHODS)
def test_damaged_uplinks_are_refused_by_name(method: str, tmp_path: Path) -> None:
    answers: dict[str, RecordDict] = {}
    grid = type("Grid", (Recorded,), {"answers": answers})
    alone = run_federation(tmp_path / "alone", 1, method=method, grid_class=grid, **SETTINGS)
    named: dict[int, str] = {}
    run = run_federation(
        tmp_path / "among",
        1 + DAMAGED,
        method=method,
        app=replaying(method, answers, named),
        **SETTINGS,
    )
    assert run.config["status"] == "completed"
    assert len(named) == DAMAGED
    failures = [row for row in run.rows("failures") if row["kind"] == "train"]
    assert [int(row["client"]) for row in failures] == sorted(named)
    for row in failures:
        expected = f"refused payload: {named[int(row['client'])]}"
        assert row["reason"].startswith(expected), (row, expected)
    assert run.rows("rounds")[0]["failed"] == str(DAMAGED)

    # Nothing of what was refused is in the server's state or among what clients measured.
    expected_state, state = (server_state(outcome) for outcome in (alone, run))
    assert state.keys() == expected_state.keys()
    assert all(state[key].tobytes() == expected_state[key].tobytes() for key in state)
    assert {row["client"] for row in run.metrics(phase="train")} == {"0"}
    assert sprung == []
