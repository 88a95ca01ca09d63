"""Damages of a client's answer: each changes one and returns what the refusal has to name."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, RecordDict
from numpy.typing import NDArray

from strategies.base.messages import INFO
from strategies.base.narrowing import Narrowed
from strategies.base.payload import ARRAYS, DTYPES, MANIFEST, rules_of
from strategies.base.wire import read_entries, write_entries

ENORMOUS = 4_000_000
"""Elements of an array that is really sent; others only claim a size."""

sprung: list[str] = []


def spring(text: str) -> str:
    """Run when a pickle in an answer is loaded, which must not happen."""
    sprung.append(text)
    return text


class Trap:
    """Runs `spring` when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return spring, ("an answer was unpickled",)


Entries = dict[str, NDArray[Any]]


@dataclasses.dataclass
class Answer:
    """A client's answer and what its method declares, to be damaged."""

    content: RecordDict
    uplink: type
    draw: np.random.Generator

    @property
    def entries(self) -> Entries:
        """The arrays by key, as copies, in their own dtypes however they travelled."""
        return {
            key: item.widened() if isinstance(item, Narrowed) else item.copy()
            for key, item in read_entries(self.content).items()
        }

    def write(self, entries: Entries) -> None:
        """Put arrays in place of those there are."""
        self.content.update(write_entries(list(entries.items())))

    def pick(self, among: list[str]) -> str:
        """Draw one of several names."""
        return among[int(self.draw.integers(len(among)))]

    def bounded(self, side: str) -> list[str]:
        """Return the fields with values whose declaration has a smallest or a largest one."""
        rules, entries = rules_of(self.uplink), self.entries
        return [
            k for k, rule in rules.items() if getattr(rule, side) is not None and entries[k].size
        ]


def put(value: float) -> Callable[[Answer], str]:
    """Return a damage that puts a value into an array of floats."""

    def damage(answer: Answer) -> str:
        entries = answer.entries
        floats = [k for k, item in entries.items() if item.dtype.kind == "f" and item.size]
        key = answer.pick(floats)
        flat = entries[key].reshape(-1)
        flat[answer.draw.integers(flat.size)] = value
        answer.write(entries)
        return f"{key}: 1 of {flat.size} values"

    return damage


def another_shape(answer: Answer) -> str:
    """Give an array another shape."""
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
    """Give an array another dtype."""
    entries = answer.entries
    key = answer.pick(list(entries))
    dtype = answer.pick([name for name in DTYPES if name != entries[key].dtype.name])
    entries[key] = entries[key].astype(dtype)
    answer.write(entries)
    return f"{key}: dtype {dtype}"


def class_id(answer: Answer) -> str:
    """Put an impossible class id among those sent."""
    fields = answer.bounded("below")
    if not fields:
        return claims_more(answer)  # the method sends no class ids
    entries, key = answer.entries, answer.pick(fields)
    value = int(answer.draw.choice([-1, 10, 11, 2**40, -(2**63), 2**63 - 1]))
    entries[key][answer.draw.integers(len(entries[key]))] = value
    answer.write(entries)
    return f"{key}: value {value} is"


def negative_count(answer: Answer) -> str:
    """Make a count negative."""
    fields = answer.bounded("minimum")
    if not fields or answer.draw.random() < 0.3:
        answer.content.config_records[INFO]["num-examples"] = -int(answer.draw.integers(1, 1000))
        return "num-examples: -"
    entries, key = answer.entries, answer.pick(fields)
    entries[key][answer.draw.integers(len(entries[key]))] = -1
    answer.write(entries)
    return f"{key}: value -1"


def missing_key(answer: Answer) -> str:
    """Leave an array out."""
    entries = answer.entries
    key = answer.pick(list(entries))
    del entries[key]
    answer.write(entries)
    return f"{key}: key is missing"


def extra_key(answer: Answer) -> str:
    """Send an array that is not declared."""
    entries = answer.entries
    key = answer.pick(["model", "weights/more", "s_in2", "labels", next(iter(entries)) + "/x"])
    entries[key] = np.ones(3, np.float32)
    answer.write(entries)
    return f"{key}: key is not declared"


def object_array(answer: Answer) -> str:
    """Send a pickle in place of an array."""
    stream = io.BytesIO()
    np.save(stream, np.array([Trap()] * 3, dtype=object), allow_pickle=True)
    data = answer.pick(["whole", "bare"])
    dtype = answer.pick(sorted(answer.content.array_records[ARRAYS]))
    answer.content.array_records[ARRAYS][dtype] = Array(
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
    """Send an array far larger than declared, or say so."""
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
