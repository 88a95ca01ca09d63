"""The wire format of payloads: named arrays in one flat array per dtype, and a manifest.

Nothing is unpickled, no size in a message is trusted, and reading copies nothing but what is
compressed. A flat array of stype `ZLIB` has its values, after the header, compressed; the header
says how many there are, and they are refused before they are expanded if they would be more than
`MOST_EXPANSION` times as large.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from strategies.base.narrowing import FLOATS, NARROW, Narrowed
from strategies.base.received_text import clipped, shown, visible

ARRAYS = "arrays"
MANIFEST = "manifest"
MOST_ENTRIES, LONGEST_MANIFEST = 10_000, 2_000_000
"""Arrays of one payload, and signs of the manifest that names them. ResNet-152 has 932 entries."""
MOST_DIMS, LARGEST_DIM = 32, 2**48
"""Bounds of a received shape, so that arithmetic on it stays small."""
LONGEST_NAME, LONGEST_SHOWN_NAME = 500, 100
"""Signs of a received key, and of one in a message."""
NUMPY, ZLIB = "numpy.ndarray", "zlib"
"""Flower's name of an array's serialisation, and ours of a compressed one."""
MOST_EXPANSION = 16
"""Times its own size to which a compressed array may expand; a sender sends no denser one."""
WORTH_WHILE = 0.95
"""Of its size: an array that zlib does not bring below that travels as it is."""
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


class PayloadError(ValueError):
    """A payload is not what its declaration says; the text names the key."""


def write_entries(
    entries: Sequence[tuple[str, NDArray[Any] | Narrowed]], *, compress: bool = False
) -> RecordDict:
    """Return the records `ARRAYS` and `MANIFEST` of named arrays of dtypes in `DTYPES`.

    Parameters
    ----------
    entries : sequence of (str, NDArray or Narrowed)
        Keys and what travels of them.
    compress : bool
        Whether to compress with zlib what gets smaller by it.

    Raises
    ------
    PayloadError
        If the receiver would refuse the manifest as too long.
    """
    manifest: list[list[Any]] = []
    by_dtype: dict[str, list[NDArray[Any]]] = {}
    for key, entry in entries:
        narrow = entry if isinstance(entry, Narrowed) else None
        item = entry.values if isinstance(entry, Narrowed) else entry
        dtype = item.dtype.name
        # ascontiguousarray would turn a scalar into a vector, so the shape is taken first.
        line = [key, narrow.dtype if narrow else dtype, list(item.shape)]
        manifest.append([*line, dtype, narrow.scale] if narrow else line)
        by_dtype.setdefault(dtype, []).append(np.ascontiguousarray(item))
    record = ArrayRecord(
        {dtype: _flat_array(dtype, items, compress) for dtype, items in by_dtype.items()}
    )
    text = json.dumps(manifest, separators=(",", ":"))
    _refuse_long(len(manifest), len(text))
    return RecordDict({ARRAYS: record, MANIFEST: ConfigRecord({"entries": text})})


def _flat_array(dtype: str, items: list[NDArray[Any]], compress: bool) -> Array:
    """Join arrays into one flat Flower Array in NumPy's format, copying each element once."""
    total = sum(item.size for item in items)
    descr = np.dtype(dtype).newbyteorder("<").str
    # NumPy's own writer pads to 128 bytes, which counts in small messages; 64 keep the alignment.
    text = f"{{'descr':'{descr}','fortran_order':False,'shape':({total},)}}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    header = np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text
    parts = [i.reshape(-1).view(np.uint8).data for i in items if i.size]
    smaller = _compressed(parts) if compress else None
    data = b"".join([header, *parts] if smaller is None else [header, smaller])
    stype = NUMPY if smaller is None else ZLIB
    return Array(dtype=dtype, shape=(total,), stype=stype, data=data)


def _compressed(parts: list[memoryview]) -> bytes | None:
    """Return the parts compressed together, or None where that is not worth while.

    Level 1: on weights and features 6 takes twice as long or more and gives 1 to 4 % less.
    """
    packer = zlib.compressobj(1)
    data = b"".join([*map(packer.compress, parts), packer.flush()])
    size = sum(len(part) for part in parts)
    # Zeros alone get 1000 times smaller, and then the receiver could not tell them from a bomb.
    data = data.ljust(-(-size // MOST_EXPANSION), b"\0")
    return data if len(data) < WORTH_WHILE * size else None


def read_entries(content: RecordDict) -> dict[str, NDArray[Any] | Narrowed]:
    """Cut the received flat arrays up into the manifest's entries; narrowed ones stay narrow.

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
    entries: dict[str, NDArray[Any] | Narrowed] = {}
    for key, own, shape, *narrow in manifest:
        dtype = narrow[0] if narrow else own
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
            item = flats[dtype][start : start + size].reshape(shape)
        except ValueError as error:  # empty, and yet too large: (0, 2**62)
            raise PayloadError(
                f"{name}: impossible shape {_shown_shape(shape)} ({error!s:.60})"
            ) from error
        entries[key] = Narrowed(item, own, narrow[1]) if narrow else item
        offsets[dtype] = start + size
    for dtype, flat in flats.items():
        if offsets[dtype] != flat.size:
            raise PayloadError(f"{dtype}: {flat.size - offsets[dtype]} elements are in no key")
    return entries


def _read_manifest(content: RecordDict) -> list[list[Any]]:
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
            and len(entry) in (3, 5)
            and _is_name(entry[0])
            and _is_name(entry[1])
            and isinstance(entry[2], list)
            and len(entry[2]) <= MOST_DIMS
            and all(type(n) is int and 0 <= n < LARGEST_DIM for n in entry[2])
            and (len(entry) == 3 or _is_narrowing(entry[1], *entry[3:]))
        )
        if not well_formed:
            raise PayloadError(f"{MANIFEST}: entry {shown(entry)} is not [key, dtype, shape]")
    return manifest


def _is_narrowing(own: str, dtype: object, scale: object) -> bool:
    """Say whether an array of dtype `own` may have travelled as `dtype` times `scale`."""
    return own in FLOATS and dtype in NARROW and type(scale) is float and 0 < scale < math.inf


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
    start = stream.tell()
    if found != np.dtype(dtype).newbyteorder("<") or len(shape) != 1:
        raise PayloadError(
            f"{dtype}: received dtype {clipped(str(found))} with shape {_shown_shape(shape)}"
        )
    size = shape[0] * found.itemsize
    if item.stype == ZLIB:
        return np.frombuffer(_expanded(dtype, memoryview(item.data)[start:], size), dtype=found)
    body = len(item.data) - start
    if body != size:
        raise PayloadError(f"{dtype}: header says {shape[0]} elements, {body} bytes follow")
    return np.frombuffer(item.data, dtype=found, offset=start)


def _expanded(dtype: str, data: memoryview, size: int) -> bytes:
    """Expand compressed values to exactly `size` bytes, or refuse them."""
    most = MOST_EXPANSION * len(data)
    if not 0 < size <= most:
        raise PayloadError(
            f"{dtype}: {len(data)} compressed bytes are said to be {clipped(str(size))}, at most "
            f"{MOST_EXPANSION} times as many are accepted"
        )
    unpacker = zlib.decompressobj()
    try:
        values = unpacker.decompress(data, size)
        # What is left can only be the end mark: one byte of room shows whether more would come.
        more = unpacker.decompress(unpacker.unconsumed_tail, 1)
    except zlib.error as error:
        raise PayloadError(f"{dtype}: not readable as zlib ({error!s:.100})") from error
    if len(values) != size or more or not unpacker.eof or any(unpacker.unused_data):
        raise PayloadError(f"{dtype}: the compressed values are not the {size} bytes as said")
    return values
