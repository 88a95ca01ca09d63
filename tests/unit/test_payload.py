"""Payloads: packing loses nothing, and nothing but what was declared is accepted."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from models import InputShape, build_model, count_parameters, list_models, model_info
from strategies.base.messages import (
    CLIENT_INFO,
    INFO,
    METRICS,
    ClientInfo,
    ClientUpdate,
    MetricRow,
    metrics_record,
)
from strategies.base.method import Method, get_method
from strategies.base.payload import (
    ARRAYS,
    DTYPES,
    MANIFEST,
    PayloadError,
    Template,
    array,
    arrays,
    count_scalars,
    pack,
    unpack,
)
from strategies.base.replies import read_reply

DIMS = {"d": 2, "C": 3}


@dataclasses.dataclass
class Mapped:
    """A model's state."""

    state: dict[str, NDArray[Any]] = arrays()


@dataclasses.dataclass
class Rich:
    """Every kind of declaration at once."""

    prototypes: NDArray[np.float32] = array("m", "d")
    class_ids: NDArray[np.int64] = array(
        "m", dtype="int64", counted=False, minimum=0, below="C", unique=True
    )
    counts: NDArray[np.int64] = array("m", dtype="int64", counted=False, minimum=0)
    flags: NDArray[np.bool_] = array(2, dtype="bool", counted=False)
    state: dict[str, NDArray[Any]] = arrays(counted=False)


TEMPLATE: dict[str, Template] = {
    "state": {"weight": ((2, 2), "float32"), "steps": ((), "int64"), "half": ((3,), "float16")}
}


def rich() -> Rich:
    return Rich(
        prototypes=np.array([[1.5, -2.0], [0.25, 8.0]], dtype=np.float32),
        class_ids=np.array([0, 2]),
        counts=np.array([7, 1]),
        flags=np.array([True, False]),
        state={
            "weight": np.array([[1, 2], [3, 4]], dtype=np.float32),
            "steps": np.array(2**53 + 1, dtype=np.int64),
            "half": np.array([0.5, 1, 2], dtype=np.float16),
        },
    )


def template_of(state: dict[str, NDArray[Any]]) -> Template:
    return {name: (item.shape, item.dtype.name) for name, item in state.items()}


def send_mapped(state: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    content = pack(Mapped(state))
    return unpack(Mapped, content, {}, {"state": template_of(state)}).state


def fields_of(payload: Any) -> dict[str, NDArray[Any]]:
    flat = {}
    for field in dataclasses.fields(payload):
        value = getattr(payload, field.name)
        if isinstance(value, dict):
            flat |= {f"{field.name}/{name}": item for name, item in value.items()}
        else:
            flat[field.name] = value
    return flat


def same_payload(first: Any, second: Any) -> bool:
    a, b = fields_of(first), fields_of(second)
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes()
        for k in a
    )


# Round trips ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 3), (2, 0, 3), (1, 1, 1, 1)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    raw = generator.integers(-100, 100, size=shape)
    item = (raw > 0 if dtype == "bool" else raw).astype(dtype)
    back = send_mapped({"a": item})["a"]
    assert back.dtype == item.dtype
    assert back.shape == item.shape
    assert back.tobytes() == item.tobytes()


def test_extreme_values_come_back() -> None:
    state = {
        "large": np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min]),
        "tiny": np.array([np.finfo(np.float32).tiny, -0.0], dtype=np.float32),
        "double": np.array([math.pi, 1e308]),
        "bool": np.array([[True], [False]]),
        "strided": np.arange(12, dtype=np.float32).reshape(3, 4).T[::2],
        "big-endian": np.arange(3, dtype=">f4"),
    }
    back = send_mapped(state)
    for name, item in state.items():
        assert np.array_equal(back[name], item), name


def test_one_array_per_dtype_and_a_manifest() -> None:
    content = pack(rich())
    assert set(content) == {ARRAYS, MANIFEST}
    assert set(content.array_records[ARRAYS]) == {"float32", "int64", "bool", "float16"}
    manifest = json.loads(content.config_records[MANIFEST]["entries"])
    assert manifest[:2] == [["prototypes", "float32", [2, 2]], ["class_ids", "int64", [2]]]
    # NumPy itself reads what is on the wire.
    assert content.array_records[ARRAYS]["float32"].numpy().tolist() == [
        1.5, -2.0, 0.25, 8.0, 1.0, 2.0, 3.0, 4.0,
    ]  # fmt: skip


def test_rich_payload_comes_back_through_flowers_serialisation() -> None:
    content = pack(rich())
    for name, item in content.array_records[ARRAYS].items():
        children = dict(item.slice_array())
        content.array_records[ARRAYS][name] = Array.inflate(item.deflate(), children)
    assert same_payload(unpack(Rich, content, DIMS, TEMPLATE), rich())


def test_received_arrays_are_read_only_views() -> None:
    content = pack(rich())
    back = unpack(Rich, content, DIMS, TEMPLATE)
    for item in fields_of(back).values():
        assert not item.flags.writeable
        assert not item.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        back.prototypes[0, 0] = 1


def test_paper_and_wire_scalars() -> None:
    # prototypes 4; ids 2, counts 2, flags 2, state 4 + 1 + 3 are not counted
    assert count_scalars(rich()) == (4, 18)
    fedre = get_method("fedre")
    up = fedre.uplink(np.zeros(512, np.float32), np.zeros(100, np.float32))
    assert count_scalars(up) == (512, 612)
    down = fedre.downlink(np.zeros((100, 512), np.float32), np.zeros(100, np.float32))
    assert count_scalars(down) == (51_300, 51_300)
    assert count_scalars(get_method("local").uplink()) == (0, 0)


def test_an_empty_payload_travels() -> None:
    uplink = get_method("local").uplink
    assert unpack(uplink, pack(uplink()), DIMS) == uplink()


@pytest.mark.parametrize("name", list_models(modality="image"))
def test_the_state_of_every_model_travels(name: str) -> None:
    if not model_info(name).is_installed:
        pytest.skip(f"needs the extra {model_info(name).extra}")
    shape = InputShape(3, 32, 10)
    with torch.device("meta"):
        model = build_model(name, shape)
    if count_parameters(model) > 8_000_000:
        # The names, shapes and dtypes alone; the values of models this size take seconds.
        state = {k: np.zeros(v.shape[:0], str(v.dtype)[6:]) for k, v in model.state_dict().items()}
    else:
        real = build_model(name, shape, seed=0)
        state = {k: v.numpy().copy() for k, v in real.state_dict().items()}
    back = send_mapped(state)
    assert list(back) == list(state)
    for key, item in state.items():
        assert back[key].dtype == item.dtype, key
        assert back[key].tobytes() == item.tobytes(), key
    counters = [k for k in state if k.endswith("num_batches_tracked")]
    assert all(back[k].shape == () and back[k].dtype == np.int64 for k in counters)


def test_batchnorm_counters_stay_integers() -> None:
    model = build_model("resnet10-w4", InputShape(1, 32, 10), seed=0)
    model.train()(torch.zeros(2, 1, 32, 32))
    state = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    counters = {k: v for k, v in send_mapped(state).items() if k.endswith("num_batches_tracked")}
    assert counters
    for item in counters.values():
        assert (item.shape, item.dtype, int(item)) == ((), np.dtype("int64"), 1)


# What a sender may not send ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [np.array([None]), np.array(["a"]), np.array([1j]), np.array([b"a"]), np.array([1], ">M8[s]")],
)
def test_strange_dtypes_do_not_travel(item: NDArray[Any]) -> None:
    with pytest.raises(PayloadError, match="state/a"):
        pack(Mapped({"a": item}))


@pytest.mark.parametrize(
    "ids", [np.array([1.7]), np.array([None]), np.array(["1"]), np.array([1j])]
)
def test_a_declared_dtype_is_never_reached_by_losing_something(ids: NDArray[Any]) -> None:
    with pytest.raises(PayloadError, match="class_ids"):
        pack(dataclasses.replace(rich(), class_ids=ids))


def test_plain_lists_take_the_declared_dtype() -> None:
    content = pack(Rich([[1.0, 2.0]], [0], [3], [True, True], rich().state))  # type: ignore[arg-type]
    back = unpack(Rich, content, DIMS, TEMPLATE)
    assert back.prototypes.dtype == np.float32
    nothing = Rich(np.zeros((0, 2)), [], [], [True, True], rich().state)  # type: ignore[arg-type]
    assert unpack(Rich, pack(nothing), DIMS, TEMPLATE).class_ids.shape == (0,)


# Values against the declaration -----------------------------------------------------------------


def changed(**fields: Any) -> Callable[[], RecordDict]:
    return lambda: pack(dataclasses.replace(rich(), **fields))


def changed_state(**entries: Any) -> Callable[[], RecordDict]:
    return lambda: pack(dataclasses.replace(rich(), state={**rich().state, **entries}))


VALUE_CASES: dict[str, tuple[Callable[[], RecordDict], str]] = {
    "nan": (changed(prototypes=np.array([[np.nan, 1], [1, 1]])), "prototypes: 1 of 4 values"),
    "inf": (changed(prototypes=np.array([[np.inf, 1], [-np.inf, 1]])), "prototypes: 2 of 4"),
    "width": (changed(prototypes=np.ones((2, 3))), r"prototypes: shape \(2, 3\)"),
    "rank": (changed(prototypes=np.ones(2)), "prototypes: shape"),
    "scalar": (changed(prototypes=np.ones(())), "prototypes: shape"),
    "m": (changed(class_ids=np.array([0])), r"class_ids: shape \(1,\), expected \(2,\)"),
    "id large": (changed(class_ids=np.array([0, 3])), "class_ids: value 3 is not below 3"),
    "id negative": (changed(class_ids=np.array([-1, 2])), "class_ids: value -1 is below 0"),
    "id twice": (changed(class_ids=np.array([2, 2])), "class_ids: values repeat"),
    "count negative": (changed(counts=np.array([-1, 2])), "counts: value -1 is below 0"),
    "fixed size": (changed(flags=np.array([True])), "flags: shape"),
    "state dtype": (
        changed_state(weight=np.ones((2, 2))), "state/weight: dtype float64, expected float32"
    ),
    "state counter": (changed_state(steps=np.array(1.0)), "state/steps: dtype float64"),
    "state shape": (changed_state(weight=np.ones(4, np.float32)), "state/weight: shape"),
    "state nan": (changed_state(half=np.array([np.nan, 1, 2], np.float16)), "state/half: 1 of 3"),
    "state extra": (changed_state(extra=np.ones(1)), "state/extra: key is not declared"),
    "state missing": (
        lambda: pack(dataclasses.replace(rich(), state={"weight": rich().state["weight"]})),
        "state/steps: key is missing",
    ),
    "another payload": (lambda: pack(Mapped(rich().state)), "prototypes: key is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUE_CASES)
def test_values_unlike_the_declaration_are_refused(case: str) -> None:
    make, message = VALUE_CASES[case]
    with pytest.raises(PayloadError, match=message):
        unpack(Rich, make(), DIMS, TEMPLATE)


def test_a_mapping_needs_a_template() -> None:
    with pytest.raises(PayloadError, match="state: the receiver has no template"):
        unpack(Rich, pack(rich()), DIMS)


# The bytes and the manifest ---------------------------------------------------------------------


def npy(item: NDArray[Any], *, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, item, allow_pickle=pickled)
    return stream.getvalue()


def header(text: str, body: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    data = text.encode("latin1")
    return b"\x93NUMPY" + bytes(version) + len(data).to_bytes(2, "little") + data + body


def with_data(content: RecordDict, dtype: str, data: bytes) -> None:
    content.array_records[ARRAYS][dtype] = Array(dtype, (1,), "numpy.ndarray", data)


FLOATS = np.arange(8, dtype=np.float32)
SAYS = "{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"

DATA_CASES: dict[str, bytes] = {
    "empty": b"",
    "short": b"\x93NUM",
    "noise": bytes(range(256)),
    "truncated body": npy(FLOATS)[:-1],
    "truncated header": npy(FLOATS)[:40],
    "body too long": npy(FLOATS) + b"\0",
    "fewer": npy(FLOATS[:-1]),
    "more": npy(np.arange(9, dtype=np.float32)),
    "float64": npy(FLOATS.astype(np.float64)),
    "big endian": npy(FLOATS.astype(">f4")),
    "two dimensions": npy(FLOATS.reshape(2, 4)),
    "scalar": npy(FLOATS[0]),
    "objects": npy(np.array([1.0] * 8, dtype=object), pickled=True),
    "structured": npy(np.zeros(8, dtype=[("a", "<f4")])),
    "pickle": pickle.dumps(FLOATS),
    "version 2": header("", npy(FLOATS), version=(2, 0)),
    "version 9": header(SAYS.format(descr="'<f4'", shape="(8,)"), FLOATS.tobytes(), (9, 9)),
    "says more": header(SAYS.format(descr="'<f4'", shape="(9,)"), FLOATS.tobytes()),
    "says enormous": header(SAYS.format(descr="'<f4'", shape=f"({10**12},)"), FLOATS.tobytes()),
    "says negative": header(SAYS.format(descr="'<f4'", shape="(-8,)"), FLOATS.tobytes()),
    "says text": header(SAYS.format(descr="'<f4'", shape="('8',)"), FLOATS.tobytes()),
    "says object": header(SAYS.format(descr="'|O'", shape="(8,)"), FLOATS.tobytes()),
    "no such dtype": header(SAYS.format(descr="'zz'", shape="(8,)"), FLOATS.tobytes()),
    "dtype is a number": header(SAYS.format(descr="4", shape="(8,)"), FLOATS.tobytes()),
    "unclosed": header("{'descr': (", FLOATS.tobytes()),
    "unclosed text": header("{'descr': '''", FLOATS.tobytes()),
    "unhashable": header("{[]: 1}", FLOATS.tobytes()),
    "deep": header("(" * 3000, FLOATS.tobytes()),
    "deep minus": header("-" * 9000 + "1", FLOATS.tobytes()),
    "a call": header("__import__('os').abort()", FLOATS.tobytes()),
    "NUL": header("{\0}", FLOATS.tobytes()),
    "header too long": header("{" + " " * 20_000 + "}", FLOATS.tobytes()),
    "many digits": header(
        SAYS.format(descr="'<f4'", shape="(" + "9" * 4000 + ",)"), FLOATS.tobytes()
    ),
}


@pytest.mark.parametrize("case", DATA_CASES)
def test_damaged_bytes_are_refused(case: str) -> None:
    content = pack(rich())
    with_data(content, "float32", DATA_CASES[case])
    with pytest.raises(PayloadError, match=r"float32|prototypes|state/weight"):
        unpack(Rich, content, DIMS, TEMPLATE)


def test_a_bool_is_0_or_1() -> None:
    content = pack(rich())
    with_data(content, "bool", npy(np.array([True, False]))[:-2] + b"\x02\x00")
    with pytest.raises(PayloadError, match="flags: bytes other than 0 and 1"):
        unpack(Rich, content, DIMS, TEMPLATE)


def entry(index: int, value: Any) -> Callable[[list[Any]], Any]:
    def change(manifest: list[Any]) -> list[Any]:
        manifest[0][index] = value
        return manifest

    return change


MANIFEST_CASES: dict[str, Callable[[list[Any]], Any]] = {
    "a mapping": lambda m: {"entries": m},
    "null": lambda m: None,
    "a number": lambda m: 1,
    "empty": lambda m: [],
    "key twice": lambda m: [m[0], *m],
    "short entry": lambda m: [m[0][:2], *m[1:]],
    "long entry": lambda m: [[*m[0], 1], *m[1:]],
    "entry is text": lambda m: ["prototypes", *m],
    "one less": lambda m: m[1:],
    "one more": lambda m: [*m, ["more", "float32", [0]]],
    "reordered": lambda m: m[::-1],
    "key is a number": entry(0, 1),
    "key empty": entry(0, ""),
    "key undeclared": entry(0, "weights"),
    "key multi-line": entry(0, "prototypes\nround 3: all is well"),
    "key surrogate": entry(0, "\ud800"),
    "key long": entry(0, "k" * 100_000),
    "dtype unknown": entry(1, "complex64"),
    "dtype object": entry(1, "object"),
    "dtype other": entry(1, "int64"),
    "dtype null": entry(1, None),
    "dtype surrogate": entry(1, "\udfff"),
    "dims negative": entry(2, [-2, -2]),
    "dims bool": entry(2, [True, 4]),
    "dims float": entry(2, [2.0, 2.0]),
    "dims text": entry(2, "22"),
    "dims null": entry(2, None),
    "dims nested": entry(2, [[2, 2]]),
    "dims swapped": entry(2, [4, 1]),
    "dims flat": entry(2, [4]),
    "dims less": entry(2, [1, 2]),
    "dims none": entry(2, []),
    "enormous": entry(2, [10**12]),
    "enormous twice": entry(2, [10**12, 10**12]),
    "many digits": entry(2, [10**4000, 10**4000]),
    "empty but enormous": entry(2, [0, 2**62]),
    "empty but enormous twice": entry(2, [0, 2**47, 2**47, 2**47]),
    "empty beyond int64": entry(2, [0, 10**30]),
    "too many dims": entry(2, [1] * 100),
    "dims ever more": entry(2, [2] * 10_000),
}


@pytest.mark.parametrize("case", MANIFEST_CASES)
def test_manifests_that_lie_are_refused(case: str) -> None:
    content = pack(rich())
    manifest = json.loads(content.config_records[MANIFEST]["entries"])
    content[MANIFEST] = ConfigRecord({"entries": json.dumps(MANIFEST_CASES[case](manifest))})
    with pytest.raises(PayloadError) as caught:
        unpack(Rich, content, DIMS, TEMPLATE)
    text = str(caught.value)
    text.encode()  # printable on any terminal and writable to failures.csv
    assert len(text) < 2000
    assert "\n" not in text


TEXT_CASES = ["", "{", "[[", "[" * 100_000, "nul", "[NaN", "\x00", '["a", "b", []', "9" * 5000]


@pytest.mark.parametrize("text", TEXT_CASES, ids=range(len(TEXT_CASES)))
def test_manifests_that_are_not_json_are_refused(text: str) -> None:
    content = pack(rich())
    content[MANIFEST] = ConfigRecord({"entries": text})
    with pytest.raises(PayloadError, match=MANIFEST):
        unpack(Rich, content, DIMS, TEMPLATE)


def test_manifests_of_every_depth_are_refused() -> None:
    content = pack(rich())
    for depth in range(900, 1100):
        content[MANIFEST] = ConfigRecord({"entries": "[" * depth + "]" * depth})
        with pytest.raises(PayloadError, match=MANIFEST):
            unpack(Rich, content, DIMS, TEMPLATE)


@pytest.mark.parametrize("value", [1, 1.5, True, b"[]", ["[]"], [1, 2]])
def test_manifests_that_are_not_a_text_are_refused(value: Any) -> None:
    content = pack(rich())
    content[MANIFEST] = ConfigRecord({"entries": value})
    with pytest.raises(PayloadError, match="manifest: missing, or not a text"):
        unpack(Rich, content, DIMS, TEMPLATE)


# Whole replies ------------------------------------------------------------------------------------

FEDRE_DIMS = {"d": 4, "C": 3}


def fedre() -> Method:
    return get_method("fedre")


def reply() -> RecordDict:
    content = pack(
        fedre().uplink(
            np.array([1.0, -2.0, 0.5, 3.0], np.float32), np.array([0.25, 0.75, 0], np.float32)
        )
    )
    content[METRICS] = metrics_record(
        [MetricRow("train", "loss", 1.25, 40), MetricRow("pre", "accuracy", 0.5, 10)]
    )
    content[INFO] = ConfigRecord(
        {
            "client-id": 3,
            "round": 2,
            "num-examples": 40,
            "compute-s": 0.5,
            "worker": "0a1b2c3d",
            "rounds-trained": 1,
        }
    )
    return content


def read(content: RecordDict) -> ClientUpdate:
    return read_reply(fedre(), content, 3, 2, FEDRE_DIMS, {})


def test_a_valid_reply_is_read() -> None:
    update = read(reply())
    assert (update.client_id, update.num_examples, update.scalars) == (3, 40, 4)
    assert update.rows == [
        MetricRow("train", "loss", 1.25, 40), MetricRow("pre", "accuracy", 0.5, 10)
    ]  # fmt: skip
    assert update.num_bytes == sum(r.count_bytes() for r in reply().values())
    assert update.uplink.entangled_label.tolist() == [0.25, 0.75, 0]


def info(**values: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        for key, value in values.items():
            name = key.replace("_", "-")
            if value is None:
                del content[INFO][name]
            else:
                content[INFO][name] = value

    return change


def metric(key: str, value: Any) -> Callable[[RecordDict], None]:
    return lambda content: content[METRICS].update({key: value})


def record(name: str, value: Any) -> Callable[[RecordDict], None]:
    return lambda content: content.update({name: value})


def drop(name: str) -> Callable[[RecordDict], None]:
    return lambda content: content.pop(name) and None


REPLY_CASES: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "undeclared record": (record("weights", ConfigRecord()), "weights.*not declared"),
    "undeclared model": (record("model", ArrayRecord([np.ones(2)])), "model.*not declared"),
    "client information": (record(CLIENT_INFO, ConfigRecord()), "client.*not declared"),
    "record with a strange name": (record("a\nb", ConfigRecord()), r"a\\nb.*not declared"),
    "no info": (drop(INFO), "client-id"),
    "info of another kind": (record(INFO, MetricRecord()), "client-id"),
    "undeclared info": (info(labels="0 1 2"), "labels.*not declared"),
    "another client": (info(client_id=4), "client-id: .* 4, expected 3"),
    "client as text": (info(client_id="3"), "client-id"),
    "no client": (info(client_id=None), "client-id"),
    "another round": (info(round=1), "round: .* 1, expected 2"),
    "no round": (info(round=None), "round"),
    "examples negative": (info(num_examples=-1), "num-examples: -1"),
    "examples real": (info(num_examples=40.0), "num-examples"),
    "examples true": (info(num_examples=True), "num-examples"),
    "examples text": (info(num_examples="40"), "num-examples"),
    "examples list": (info(num_examples=[40]), "num-examples"),
    "no examples": (info(num_examples=None), "num-examples"),
    "zero examples with arrays": (info(num_examples=0), "num-examples: 0, but arrays"),
    "seconds nan": (info(compute_s=math.nan), "compute-s"),
    "seconds inf": (info(compute_s=math.inf), "compute-s"),
    "seconds negative": (info(compute_s=-1.0), "compute-s"),
    "seconds text": (info(compute_s="1"), "compute-s"),
    "no seconds": (info(compute_s=None), "compute-s"),
    "worker number": (info(worker=1), "worker"),
    "no worker": (info(worker=None), "worker"),
    "no metrics": (drop(METRICS), "metrics: record is missing"),
    "metrics of another kind": (record(METRICS, ConfigRecord()), "metrics: record is missing"),
    "metric nan": (metric("train/loss", [math.nan, 40.0]), "metrics: 'train/loss'"),
    "metric inf": (metric("train/loss", [math.inf, 40.0]), "metrics: 'train/loss'"),
    "metric examples nan": (metric("train/loss", [1.0, math.nan]), "train/loss"),
    "metric examples negative": (metric("train/loss", [1.0, -1.0]), "train/loss rests on -1"),
    "metric examples half": (metric("train/loss", [1.0, 0.5]), "train/loss rests on 0.5"),
    "metric alone": (metric("train/loss", 1.0), "train/loss"),
    "metric empty": (metric("train/loss", []), "train/loss"),
    "metric triple": (metric("train/loss", [1.0, 1.0, 1.0]), "train/loss"),
    "metric integers": (metric("train/loss", [10**400, 1]), "train/loss"),
    "metric without phase": (metric("loss", [1.0, 1.0]), "'loss'"),
    "metric without name": (metric("train/", [1.0, 1.0]), "'train/'"),
    "unknown phase": (metric("test/accuracy", [1.0, 1.0]), "test/accuracy"),
    "the server's phase": (metric("aggregate/loss", [1.0, 1.0]), "aggregate/loss"),
    "metric of two lines": (metric("train/a\nb", [1.0, 1.0]), "train/a"),
    "metric surrogate": (metric("train/\ud800", [1.0, 1.0]), "train/"),
    "no arrays": (drop(ARRAYS), "entangled_rep: no array"),
    "arrays of another kind": (record(ARRAYS, ConfigRecord()), "entangled_rep: no array"),
    "no manifest": (drop(MANIFEST), "manifest: missing"),
    "manifest of another kind": (record(MANIFEST, ArrayRecord()), "manifest: missing"),
    "extra array": (
        lambda c: c[ARRAYS].update({"int64": Array(np.ones(1, np.int64))}),
        "int64: 1 elements are in no key",
    ),
    "extra object array": (
        lambda c: c[ARRAYS].update({"object": Array(np.ones(1))}), "object: dtype does not travel"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REPLY_CASES)
def test_replies_unlike_the_declaration_are_refused(case: str) -> None:
    change, message = REPLY_CASES[case]
    content = reply()
    change(content)
    with pytest.raises(PayloadError, match=message) as caught:
        read(content)
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0.5, 0.5, math.nan], "entangled_label: 1 of 3 values"),
        ([1.5, -0.5, 0.0], "entangled_label: value -0.5 is below 0"),
        ([0.5, 0.5], r"entangled_label: shape \(2,\), expected \(3,\)"),
        ([[0.5, 0.5, 0]], r"entangled_label: shape \(1, 3\)"),
    ],
)
def test_bad_labels_are_refused(label: Any, message: str) -> None:
    content = reply()
    uplink = fedre().uplink(np.ones(4, np.float32), np.array(label, np.float32))
    content.update(pack(uplink))
    with pytest.raises(PayloadError, match=message):
        read(content)


def test_a_client_without_examples_sends_no_arrays() -> None:
    content = reply()
    del content[ARRAYS], content[MANIFEST]
    content[INFO]["num-examples"] = 0
    update = read(content)
    assert (update.uplink, update.num_examples, update.scalars) == (None, 0, 0)


# Random damage ------------------------------------------------------------------------------------

ODD_VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**62, -(2**62), 0.5, -0.0, math.nan, math.inf, "", "x",
    "float32", "entangled_rep", "\ud800", "a" * 600, [], [1], [0.5], {}, [[]],
]  # fmt: skip
RECORD_VALUES: list[Any] = [
    True, -1, 0, 10**12, 0.5, math.nan, math.inf, "", "3", b"", b"\x80", [], [3], [0.5], ["a"],
]  # fmt: skip


def damage_structure(content: RecordDict, draw: random.Random) -> None:
    """Change one thing that is not the value of a float inside an array."""
    kind = draw.choice(
        ["header", "length", "manifest", "manifest", "text", "info", "metrics", "record"]
    )
    data = content[ARRAYS]["float32"].data
    if kind == "header":
        place = draw.randrange(64)
        byte = bytes([draw.randrange(256)])
        with_data(content, "float32", data[:place] + byte + data[place + 1 :])
    elif kind == "length":
        cut = draw.randrange(len(data))
        pieces = [data[:cut], data + data[:cut], data[cut:], data[:cut] + data, b"\0" * cut]
        with_data(content, "float32", draw.choice(pieces))
    elif kind == "manifest":
        manifest = json.loads(content[MANIFEST]["entries"])
        row = draw.choice(manifest)
        spot = draw.randrange(4)
        if spot < 3:
            row[spot] = draw.choice(ODD_VALUES)
        else:
            row[2] = [draw.choice(ODD_VALUES) for _ in range(draw.randrange(4))]
        content[MANIFEST] = ConfigRecord({"entries": json.dumps(manifest)})
    elif kind == "text":
        text = content[MANIFEST]["entries"]
        cut = draw.randrange(len(text))
        content[MANIFEST]["entries"] = text[:cut] + chr(draw.randrange(0x250)) + text[cut + 1 :]
    elif kind == "info":
        content[INFO][draw.choice([*content[INFO], "more"])] = draw.choice(RECORD_VALUES)
    elif kind == "metrics":
        value = draw.choice([math.nan, -1.0, [], [1.0], [1.0, -1.0], [math.inf, 1.0], [1, 2], 7])
        content[METRICS][draw.choice([*content[METRICS], "more", "x/y", "pre/"])] = value
    else:
        name = draw.choice([*content, "more"])
        content[name] = draw.choice([ConfigRecord(), MetricRecord(), ArrayRecord()])


@pytest.mark.parametrize("seed", range(10))
def test_random_damage_is_refused_or_harmless(seed: int) -> None:
    """1000 damaged replies: an error that names something, or the very same uplink."""
    draw = random.Random(seed)
    original = read(reply())
    refused = 0
    for number in range(100):
        content = copy.deepcopy(reply())
        for _ in range(draw.choice([1, 1, 2, 5])):
            try:
                damage_structure(content, draw)
            except (KeyError, ValueError, TypeError, AttributeError):
                continue  # the record to damage is gone or refuses the value itself
        try:
            update = read(content)
        except PayloadError as error:
            refused += 1
            message = str(error)
            assert message, (seed, number)
            message.encode()
        else:
            assert same_payload(update.uplink, original.uplink), (seed, number)
    assert refused >= 60


def test_random_values_are_refused_or_well_formed() -> None:
    """Another float is another payload: it is accepted only as the declaration allows it."""
    draw = random.Random(0)
    refused = 0
    for _ in range(400):
        content = reply()
        data = bytearray(content[ARRAYS]["float32"].data)
        data[draw.randrange(64, len(data))] = draw.choice([0x00, 0x7F, 0x80, 0xFF])
        with_data(content, "float32", bytes(data))
        try:
            uplink = read(content).uplink
        except PayloadError as error:
            refused += 1
            message = str(error)
            assert message.startswith("entangled_")
            continue
        assert uplink.entangled_rep.shape == (4,)
        assert np.isfinite(uplink.entangled_rep).all()
        assert (uplink.entangled_label >= 0).all()
    assert refused > 20


# Client information -----------------------------------------------------------------------------


def a_client_info() -> ClientInfo:
    return ClientInfo(
        client_id=1, model="cnn5", parameters=10, raw_dim=500, feature_dim=512, num_classes=3,
        channels=1, image_size=8, class_hash="h", classes=[0, 2], class_counts=[4, 1],
        train_examples=5, validation_examples=0, test_examples=2, device="cpu", data_hash="x",
    )  # fmt: skip


def test_a_card_comes_back() -> None:
    untold = dataclasses.replace(a_client_info(), class_counts=[])
    nothing = dataclasses.replace(untold, classes=[], train_examples=0)
    for info in (a_client_info(), untold, nothing):
        assert ClientInfo.from_record(info.to_record()) == info
    for wrong in ({"classes": []}, {"train_examples": 0}, {"train_examples": 1}):
        with pytest.raises(PayloadError, match="contradict train_examples"):
            ClientInfo.from_record({**untold.to_record(), **wrong})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("client_id", -1, "client_id = -1"),
        ("client_id", True, "client_id = True"),
        ("client_id", None, "client_id = None"),
        ("model", 5, "model = 5"),
        ("classes", [0, -2], r"classes = \[0, -2\]"),
        ("classes", "0 2", "classes = '0 2'"),
        ("classes", [0, 3], "contradict num_classes = 3"),
        ("class_counts", [4, 4], "contradict train_examples = 5"),
        ("class_counts", [5], "contradict train_examples"),
        ("train_examples", 7, "contradict train_examples = 7"),
        ("num_classes", 2, "contradict num_classes = 2"),
    ],
)
def test_contradicting_cards_are_refused(field: str, value: Any, message: str) -> None:
    values = dict(a_client_info().to_record())
    if value is None:
        del values[field]
    else:
        values[field] = value
    with pytest.raises(PayloadError, match=message):
        ClientInfo.from_record(values)
