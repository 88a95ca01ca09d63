"""Narrow and compressed payloads: what is lost, what is not, and what is refused unexpanded."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, RecordDict
from numpy.typing import NDArray

from strategies.base.messages import count_bytes
from strategies.base.narrowing import narrowed
from strategies.base.payload import (
    ARRAYS,
    MANIFEST,
    PayloadError,
    Template,
    WireFormat,
    array,
    arrays,
    pack,
    unpack,
)  # fmt: skip
from strategies.base.wire import MOST_EXPANSION, ZLIB

HALF, INT8 = WireFormat("float16"), WireFormat("int8")
ZIPPED = WireFormat(compress=True)


@dataclasses.dataclass
class Mixed:
    """What must be exact beside what need not be."""

    rep: NDArray[np.float32] = array("n")
    share: NDArray[np.float32] = array("C", minimum=0)
    effort: NDArray[np.float32] = array(1, degree=0)
    ids: NDArray[np.int64] = array("m", dtype="int64")
    state: dict[str, NDArray[Any]] = arrays()


def mixed(rep: NDArray[Any]) -> Mixed:
    draw = np.random.default_rng(0)
    state = {
        "weight": draw.standard_normal((8, 9)).astype(np.float32),
        "bias": draw.standard_normal(8).astype(np.float32),
        "double": draw.standard_normal((3, 3)),
        "none": np.zeros((0, 4), np.float32),
        "steps": np.array(2**53 + 1),
    }
    share = np.array([0.1, 0.2, 0.7], np.float32)
    return Mixed(rep, share, np.array([1e3], np.float32), np.array([5, 2**40]), state)


def sent(payload: Mixed, wire: WireFormat) -> Mixed:
    template: Template = {k: (v.shape, v.dtype.name) for k, v in payload.state.items()}
    return unpack(Mixed, pack(payload, wire), {}, {"state": template})


def rep_after(rep: NDArray[Any], wire: WireFormat) -> NDArray[Any]:
    return sent(mixed(rep), wire).rep


@pytest.mark.parametrize(("wire", "error"), [(HALF, 2**-11), (INT8, 1 / 254)])
def test_only_weights_and_representations_lose_and_no_more_than_said(
    wire: WireFormat, error: float
) -> None:
    payload = mixed(np.random.default_rng(1).standard_normal(100).astype(np.float32))
    back = sent(payload, wire)
    for name in ("share", "effort", "ids"):
        assert np.array_equal(getattr(back, name), getattr(payload, name)), name
    assert back.state["steps"] == 2**53 + 1
    assert back.state["none"].shape == (0, 4)
    lossy = {"rep": (payload.rep, back.rep)} | {
        name: (payload.state[name], back.state[name]) for name in ("weight", "bias", "double")
    }
    for name, (before, after) in lossy.items():
        assert after.dtype == before.dtype
        assert not after.flags.writeable
        off = np.abs(after - before).max() / np.abs(before).max()
        assert 0 < off <= error * 1.001, name
    # a bias is worth two bytes a value with int8 as well
    assert np.abs(back.state["bias"] - payload.state["bias"]).max() < 2**-9


def test_float32_is_as_ever_and_what_is_narrow_counts_as_narrow() -> None:
    payload = mixed(np.ones(4000, np.float32))
    assert pack(payload, WireFormat())[ARRAYS] == pack(payload)[ARRAYS]
    size = {wire.dtype: count_bytes(pack(payload, wire)) for wire in (WireFormat(), HALF, INT8)}
    assert size["float32"] - size["float16"] > 8000
    assert size["float16"] - size["int8"] > 3900


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wire", [HALF, INT8])
def test_huge_and_tiny_values_neither_overflow_nor_vanish(wire: WireFormat, dtype: str) -> None:
    top = np.finfo(dtype).max
    for scale in (top, top / 3, 1e5, 1e-20, float(np.finfo(np.float32).tiny)):
        item = np.array([scale, -scale, scale / 2, 0], dtype)
        found = narrowed(item, wire.dtype)
        if found is None:  # the very largest, of which rounding up would make infinity
            assert scale == top
            continue
        assert np.abs(found.widened() - item).max() <= scale / 250, scale


@pytest.mark.parametrize("wire", [HALF, INT8])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_a_number_stays_so_and_is_refused_by_name(wire: WireFormat, bad: float) -> None:
    with pytest.raises(PayloadError, match="rep: 1 of 3 values are NaN or infinite"):
        rep_after(np.array([1, bad, 2], np.float32), wire)


@pytest.mark.parametrize("wire", [HALF, INT8, ZIPPED])
@pytest.mark.parametrize("rep", [np.zeros(0), np.zeros(5000), np.full(1, 1e-45)])
def test_empty_constant_and_vanishing_arrays_come_back(wire: WireFormat, rep: NDArray[Any]) -> None:
    rep = rep.astype(np.float32)
    assert np.allclose(rep_after(rep, wire), rep, atol=1e-45)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_zlib_loses_nothing_and_is_left_out_where_it_wins_nothing(dtype: str) -> None:
    draw = np.random.default_rng(0)
    features = np.maximum(draw.standard_normal(20_000), 0).astype(np.float32)
    noise = draw.integers(0, 256, 80_000, dtype=np.uint8).view(np.float32)
    noise = np.where(np.isfinite(noise), noise, 1).astype(np.float32)
    plain, zipped = WireFormat(dtype), WireFormat(dtype, compress=True)
    assert np.array_equal(rep_after(features, plain), rep_after(features, zipped))
    assert count_bytes(pack(mixed(features), zipped)) < 0.7 * count_bytes(
        pack(mixed(features), plain)
    )
    if dtype == "float32":
        floats = pack(mixed(noise), zipped)[ARRAYS]["float32"]
        assert floats == pack(mixed(noise))[ARRAYS]["float32"]


# What a sender may not send ---------------------------------------------------------------------


def bomb(body: bytes, elements: int, dtype: str = "float32") -> RecordDict:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({elements},), }}\n".encode()
    data = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + body
    content = pack(mixed(np.zeros(3, np.float32)))
    manifest = [["rep", dtype, [elements]]]
    content[MANIFEST] = ConfigRecord({"entries": json.dumps(manifest)})
    content[ARRAYS].clear()
    content[ARRAYS]["float32"] = Array("float32", (elements,), ZLIB, data)
    return content


VALUES = np.arange(1000, dtype=np.float32)
GOOD = zlib.compress(VALUES.tobytes())
BOMBS: dict[str, tuple[bytes, int, str]] = {
    "much of nothing": (zlib.compress(bytes(50_000_000)), 12_500_000, "compressed bytes are said"),
    "more than said": (zlib.compress(bytes(50_000_000)), 20_000, "are not the 80000 bytes"),
    "less than said": (GOOD, 1001, "are not the 4004 bytes"),
    "cut off": (GOOD[:-20], 1000, "are not the 4000 bytes"),
    "no check sum": (GOOD[:-1], 1000, "are not the 4000 bytes"),
    "more after it": (GOOD + b"x", 1000, "are not the 4000 bytes"),
    "noise": (bytes(range(256)) * 16, 1000, "not readable as zlib"),
    "nothing": (b"", 0, "compressed bytes are said to be 0"),
    "a dictionary is needed": (b"\x78\xbb" + bytes(4000), 1000, "not readable as zlib"),
    "negative": (GOOD, -1000, "compressed bytes are said to be -4000|shape"),
    "enormous": (GOOD, 10**14, "at most 16 times"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_before_it_is_expanded(case: str) -> None:
    body, elements, message = BOMBS[case]
    content = bomb(body, elements)
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError, match=message):
            unpack(Mixed, content, {}, {"state": {}})
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_zeros_alone_are_padded_to_what_a_receiver_accepts() -> None:
    content = pack(mixed(np.zeros(100_000, np.float32)), ZIPPED)
    assert content[ARRAYS]["float32"].stype == ZLIB
    assert len(content[ARRAYS]["float32"].data) >= 400_000 / MOST_EXPANSION


@pytest.mark.parametrize(
    "entry",
    [
        ["rep", "int64", [4], "int8", 1.0],
        ["rep", "float32", [4], "float64", 1.0],
        ["rep", "float32", [4], "int8", 0.0],
        ["rep", "float32", [4], "int8", -1.0],
        ["rep", "float32", [4], "int8", 1],
        ["rep", "float32", [4], "int8", None],
        ["rep", "float32", [4], "int8"],
        ["rep", "float32", [4], ["int8"], 1.0],
    ],
)
def test_scales_and_dtypes_that_cannot_be_are_refused(entry: list[Any]) -> None:
    content = pack(mixed(np.ones(4, np.float32)), INT8)
    manifest = json.loads(content[MANIFEST]["entries"])
    content[MANIFEST]["entries"] = json.dumps([entry, *manifest[1:]])
    with pytest.raises(PayloadError, match=r"manifest: entry .* is not \[key"):
        unpack(Mixed, content, {}, {"state": {}})


@pytest.mark.parametrize("scale", [1e300, 1e38])
def test_a_scale_that_makes_infinity_is_refused_as_infinity(scale: float) -> None:
    content = pack(mixed(np.ones(4, np.float32)), INT8)
    manifest = json.loads(content[MANIFEST]["entries"])
    manifest[0][4] = scale
    content[MANIFEST]["entries"] = json.dumps(manifest)
    with pytest.raises(PayloadError, match="rep: 4 of 4 values are NaN or infinite"):
        unpack(Mixed, content, {}, {"state": {}})


def test_a_wrong_shape_is_refused_before_it_is_widened() -> None:
    payload = dataclasses.replace(mixed(np.ones(2, np.float32)))
    content = pack(payload, INT8)
    template = {k: (v.shape, v.dtype.name) for k, v in payload.state.items()}
    template["weight"] = ((9, 8), "float32")
    with pytest.raises(PayloadError, match=r"state/weight: shape \(8, 9\), expected \(9, 8\)"):
        unpack(Mixed, content, {}, {"state": template})
    template["weight"] = ((8, 9), "float64")
    with pytest.raises(PayloadError, match="state/weight: dtype float32, expected float64"):
        unpack(Mixed, content, {}, {"state": template})
