"""The wire format of payloads: named arrays in one flat array per dtype, and a manifest.

Nothing is unpickled, no size in a message is trusted, and reading copies nothing.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from strategies.base.received_text import clipped, shown, visible

ARRAYS = "arrays"
MANIFEST = "manifest"
MOST_ENTRIES, LONGEST_MANIFEST = 10_000, 2_000_000
"""Arrays of one payload, and signs of the manifest that names them. ResNet-152 has 932 entries."""
MOST_DIMS, LARGEST_DIM = 32, 2**48
"""Bounds of a received shape, so that arithmetic on it stays small."""
LONGEST_NAME, LONGEST_SHOWN_NAME = 500, 100
"""Signs of a received key, and of one in a message."""
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


class PayloadError(ValueError):
    """A payload is not what its declaration says; the text names the key."""


def write_entries(entries: list[tuple[str, NDArray[Any]]]) -> RecordDict:
    """Return the records `ARRAYS` and `MANIFEST` of named arrays of dtypes in `DTYPES`.

    Raises
    ------
    PayloadError
        If the receiver would refuse the manifest as too long.
    """
    manifest: list[list[Any]] = []
    by_dtype: dict[str, list[NDArray[Any]]] = {}
    for key, item in entries:
        # ascontiguousarray would turn a scalar into a vector, so the shape is taken first.
        manifest.append([key, item.dtype.name, list(item.shape)])
        by_dtype.setdefault(item.dtype.name, []).append(np.ascontiguousarray(item))
    record = ArrayRecord({dtype: _flat_array(dtype, items) for dtype, items in by_dtype.items()})
    text = json.dumps(manifest, separators=(",", ":"))
    _refuse_long(len(manifest), len(text))
    return RecordDict({ARRAYS: record, MANIFEST: ConfigRecord({"entries": text})})


def _flat_array(dtype: str, items: list[NDArray[Any]]) -> Array:
    """Join arrays into one flat Flower Array in NumPy's format, copying each element once."""
    total = sum(item.size for item in items)
    descr = np.dtype(dtype).newbyteorder("<").str
    # NumPy's own writer pads to 128 bytes, which counts in small messages; 64 keep the alignment.
    text = f"{{'descr':'{descr}','fortran_order':False,'shape':({total},)}}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    header = np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text
    data = b"".join([header, *(i.reshape(-1).view(np.uint8).data for i in items if i.size)])
    return Array(dtype=dtype, shape=(total,), stype="numpy.ndarray", data=data)


def read_entries(content: RecordDict) -> dict[str, NDArray[Any]]:
    """Cut the received flat arrays up into the manifest's entries.

    Raises
    ------
    PayloadError
        If manifest and arrays are not well formed or contradict each other, naming the key.
    """
    manifest = _read_manifest(content)
    # Not through `content.array_records`: Flower's views leave reference cycles behind, in which
    # the bytes of a whole model would wait for Python's collector.
    record = content.get(ARRAYS)
    arrays = record if isinstance(record, ArrayRecord) else ArrayRecord()
    flats = {dtype: _read_flat(dtype, item) for dtype, item in arrays.items()}
    offsets = dict.fromkeys(flats, 0)
    entries: dict[str, NDArray[Any]] = {}
    for key, dtype, shape in manifest:
        name = clipped(key, LONGEST_SHOWN_NAME)
        if key in entries:
            raise PayloadError(f"{name}: key appears twice in the manifest")
        if dtype not in flats:
            raise PayloadError(f"{name}: no array of dtype {clipped(dtype)} was received")
        size = math.prod(shape)
        start = offsets[dtype]
        if start + size > flats[dtype].size:
            raise PayloadError(
                f"{name}: shape {_shown_shape(shape)} needs {clipped(str(size))} elements, "
                f"{flats[dtype].size - start} are left of dtype {dtype}"
            )
        try:
            entries[key] = flats[dtype][start : start + size].reshape(shape)
        except ValueError as error:  # empty, and yet too large: (0, 2**62)
            raise PayloadError(
                f"{name}: impossible shape {_shown_shape(shape)} ({error!s:.60})"
            ) from error
        offsets[dtype] = start + size
    for dtype, flat in flats.items():
        if offsets[dtype] != flat.size:
            raise PayloadError(f"{dtype}: {flat.size - offsets[dtype]} elements are in no key")
    return entries


def _read_manifest(content: RecordDict) -> list[tuple[str, str, list[int]]]:
    record = content.get(MANIFEST)
    text = record.get("entries") if isinstance(record, ConfigRecord) else None
    if not isinstance(record, ConfigRecord) or not isinstance(text, str):
        raise PayloadError(f"{MANIFEST}: missing, or not a text")
    for key in record:
        if key != "entries":
            raise PayloadError(f"{MANIFEST}: {shown(key)}: key is not declared")
    _refuse_long(0, len(text))
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{MANIFEST}: not readable as JSON ({error!s:.100})") from error
    if not isinstance(manifest, list):
        raise PayloadError(f"{MANIFEST}: not a list")
    _refuse_long(len(manifest), len(text))
    for entry in manifest:
        well_formed = (
            isinstance(entry, list)
            and len(entry) == 3
            and _is_name(entry[0])
            and _is_name(entry[1])
            and isinstance(entry[2], list)
            and len(entry[2]) <= MOST_DIMS
            and all(type(n) is int and 0 <= n < LARGEST_DIM for n in entry[2])
        )
        if not well_formed:
            raise PayloadError(f"{MANIFEST}: entry {shown(entry)} is not [key, dtype, shape]")
    return manifest


def _refuse_long(entries: int, signs: int) -> None:
    """Refuse a manifest that would take seconds and gigabytes to read."""
    if entries > MOST_ENTRIES or signs > LONGEST_MANIFEST:
        said = f"{entries} entries" if entries else f"{signs} signs"
        raise PayloadError(
            f"{MANIFEST}: {said}, at most {MOST_ENTRIES} entries in {LONGEST_MANIFEST} signs travel"
        )


def _shown_shape(shape: Sequence[int]) -> str:
    return clipped(str(tuple(shape)))


def _is_name(text: object) -> bool:
    """Say whether a received text may appear in logs and files: short, one line, no surrogates."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def _read_flat(dtype: str, item: Array) -> NDArray[Any]:
    """View a Flower Array's bytes as a flat NumPy array without copying or unpickling."""
    if dtype not in DTYPES:
        name = visible(clipped(dtype))
        raise PayloadError(f"{name}: dtype does not travel; expected {', '.join(DTYPES)}")
    stream = io.BytesIO(item.data[:4096])
    try:
        version = np.lib.format.read_magic(stream)
        shape, _, found = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # NumPy's parser lets more than ValueError through
        raise PayloadError(f"{dtype}: array is not in NumPy's format ({error!r:.100})") from error
    if version != (1, 0):
        raise PayloadError(f"{dtype}: array is in NumPy's format {version}, expected (1, 0)")
    body = len(item.data) - stream.tell()
    if found != np.dtype(dtype).newbyteorder("<") or len(shape) != 1:
        raise PayloadError(
            f"{dtype}: received dtype {clipped(str(found))} with shape {_shown_shape(shape)}"
        )
    if body != shape[0] * found.itemsize:
        raise PayloadError(f"{dtype}: header says {shape[0]} elements, {body} bytes follow")
    return np.frombuffer(item.data, dtype=found, offset=stream.tell())
