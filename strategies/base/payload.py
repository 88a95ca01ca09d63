"""Typed payloads: what crosses the network, declared once, packed and checked in one place.

A payload is a dataclass whose fields are made with `array` (one array with named dimensions) or
`arrays` (a mapping from names to arrays, such as the state of a model). On the wire all tensors
of one dtype travel as one flat array, because Flower moves every array as an object of its own
and the number of objects, not their size, is what costs time. A manifest (JSON in a ConfigRecord)
says how to cut the flat arrays up again. With the run-config key `wire-dtype` floats travel in
fewer bytes (`narrowing`); the receiver takes what the manifest says, and gives it back in the
declared dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from strategies.base.narrowing import Narrowed, narrowed
from strategies.base.received_text import clipped
from strategies.base.treatments import TREATMENTS
from strategies.base.wire import (
    ARRAYS,
    DTYPES,
    LONGEST_SHOWN_NAME,
    MANIFEST,
    PayloadError,
    read_entries,
    write_entries,
)

__all__ = [
    "ARRAYS", "AS_IT_IS", "DTYPES", "MANIFEST", "ArrayRule", "PayloadError", "Shape", "Template",
    "WireFormat", "array", "arrays", "count_scalars", "named_arrays", "pack", "rules_of", "unpack",
]  # fmt: skip

Shape = tuple[int, ...]
Template = Mapping[str, tuple[Shape, str]]
"""Expected shape and dtype of every entry of an `arrays` field."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class WireFormat:
    """How arrays travel: floats as `dtype` (of `narrowing.WIRE_DTYPES`), and zlib or none."""

    dtype: str = "float32"
    compress: bool = False


AS_IT_IS = WireFormat()


@dataclasses.dataclass(frozen=True)
class ArrayRule:
    """Declaration of a payload field; see `array` and `arrays`."""

    dims: tuple[str | int, ...] = ()
    dtype: str = "float32"
    counted: bool = True
    minimum: float | None = None
    below: str | int | None = None
    unique: bool = False
    nonempty: bool = False
    degree: int = 1
    mapping: bool = False
    protect: str = ""
    absent_with: tuple[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.protect and self.protect not in TREATMENTS:
            raise ValueError(f"protect={self.protect!r}: expected one of {', '.join(TREATMENTS)}")

    def travelling(self, item: NDArray[Any], wire: WireFormat) -> NDArray[Any] | Narrowed:
        """Return what travels of an array of this field.

        Counts (degree 0) and values with a declared least one, such as shares and variances, are
        few and travel exactly. So that int8 spares them too, biases and the vectors of a
        normalisation (entries of a mapping with one dimension) travel as float16 with it.
        """
        if wire.dtype == AS_IT_IS.dtype or not self.degree or self.minimum is not None:
            return item
        coarse = wire.dtype == "int8" and self.mapping and item.ndim < 2
        smaller = narrowed(item, "float16" if coarse else wire.dtype)
        return item if smaller is None else smaller


def array(
    *dims: str | int,
    dtype: str = "float32",
    counted: bool = True,
    minimum: float | None = None,
    below: str | int | None = None,
    unique: bool = False,
    nonempty: bool = False,
    degree: int = 1,
    protect: str = "",
    absent_with: tuple[str, Any] | None = None,
) -> Any:
    """Declare a payload field that holds one NumPy array.

    Parameters
    ----------
    *dims : str or int
        Named or fixed dimensions, for example `array("m", "d")`. A name the receiver knows (such
        as "d" and "C") is checked; any other name is bound by the first field that uses it, and
        every further use must agree.
    dtype : str
        NumPy dtype name.
    counted : bool
        Whether the elements count in the paper's convention (`count_scalars`).
    minimum : float, optional
        Smallest accepted value.
    below : str or int, optional
        Values must be smaller than this number or than the size of this dimension.
    unique : bool
        Whether values must differ from each other (class ids).
    nonempty : bool
        Whether there must be a value.
    degree : int
        How floats grow with the weights or representations they are made of: 2 for products of two,
        as in a kernel; 0 for counts and the like, which may differ by any factor; integers of
        degree 0 are numbers of examples, which `max-examples` bounds. The others' size is
        held against what was received and what others send, see `bounds`.
    protect : str
        How clipping and noise treat it in an uplink, see `treatments`; empty: by its kind.
    absent_with : tuple of str and value, optional
        The option of the method and its value with which a field that cannot be protected is
        left empty.
    """
    rule = ArrayRule(
        dims, dtype, counted, minimum, below, unique, nonempty, degree,
        protect=protect, absent_with=absent_with,
    )  # fmt: skip
    return dataclasses.field(metadata={"array": rule})


def arrays(
    *, counted: bool = True, protect: str = "", absent_with: tuple[str, Any] | None = None
) -> Any:
    """Declare a payload field that maps names to arrays, checked against a `Template`.

    The arguments are those of `array`.
    """
    rule = ArrayRule(counted=counted, mapping=True, protect=protect, absent_with=absent_with)
    return dataclasses.field(metadata={"array": rule})


def rules_of(cls: type) -> dict[str, ArrayRule]:
    """Return the declared fields of a payload class."""
    return {f.name: f.metadata["array"] for f in dataclasses.fields(cls)}


def _entries(payload: Any) -> Iterator[tuple[str, ArrayRule, NDArray[Any]]]:
    """Yield (key, rule, array); entries of a mapping are keyed `field/name`."""
    for name, rule in rules_of(type(payload)).items():
        value = getattr(payload, name)
        if rule.mapping:
            for entry, item in value.items():
                yield f"{name}/{entry}", rule, np.asarray(item)
        else:
            yield name, rule, np.asarray(value)


def named_arrays(payload: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a payload by name; entries of a mapping are named `field/entry`."""
    return {key: item for key, _, item in _entries(payload)}


def count_scalars(payload: Any) -> tuple[int, int]:
    """Return (paper, wire): elements in the paper's convention, and all elements sent."""
    paper = wire = 0
    for _, rule, item in _entries(payload):
        wire += item.size
        paper += item.size if rule.counted else 0
    return paper, wire


def pack(payload: Any, wire: WireFormat = AS_IT_IS) -> RecordDict:
    """Pack a payload into a RecordDict: one flat array per dtype, and a manifest.

    Parameters
    ----------
    payload : dataclass
        Its fields are made with `array` and `arrays`.
    wire : WireFormat
        How floats travel, and whether compressed.

    Raises
    ------
    PayloadError
        If an array has a dtype that does not travel (such as object) or does not fit the
        declared one, naming the key.
    """
    entries: list[tuple[str, NDArray[Any] | Narrowed]] = []
    for key, rule, item in _entries(payload):
        dtype = item.dtype.name if rule.mapping else rule.dtype
        if dtype not in DTYPES:
            raise PayloadError(f"{key}: dtype {dtype} does not travel; use one of {DTYPES}")
        # Class ids given as 1.7 must not arrive as 1; an empty list is float64 to NumPy.
        if item.size and not np.can_cast(item.dtype, dtype, "same_kind"):
            raise PayloadError(f"{key}: dtype {item.dtype.name}, declared {dtype}")
        entries.append((key, rule.travelling(item.astype(dtype, copy=False), wire)))
    return write_entries(entries, compress=wire.compress)


def unpack(
    cls: type[T],
    content: RecordDict,
    dims: Mapping[str, int],
    templates: Mapping[str, Template] | None = None,
) -> T:
    """Rebuild and check a payload; the arrays are read-only views of the received bytes.

    Only what travelled narrowed or compressed is made anew, narrowed arrays when shape and dtype
    are known to be as declared.

    Parameters
    ----------
    cls : type
        The payload dataclass.
    content : RecordDict
        The records received; other records than `ARRAYS` and `MANIFEST` are not looked at.
    dims : Mapping[str, int]
        Sizes the receiver knows.
    templates : Mapping[str, Template], optional
        For every `arrays` field the entries it must have.

    Raises
    ------
    PayloadError
        Naming the key and what was expected and found: missing or undeclared keys, dtype, shape,
        values that are not finite or out of range.
    """
    found = read_entries(content)
    sizes = dict(dims)
    values: dict[str, Any] = {}
    for name, rule in rules_of(cls).items():
        if rule.mapping:
            template = (templates or {}).get(name)
            if template is None:
                raise PayloadError(f"{name}: the receiver has no template to check it against")
            values[name] = {
                entry: _take(found, f"{name}/{entry}", shape, dtype, rule, sizes)
                for entry, (shape, dtype) in template.items()
            }
        else:
            values[name] = _take(found, name, rule.dims, rule.dtype, rule, sizes)
    if found:
        name = clipped(sorted(found)[0], LONGEST_SHOWN_NAME)
        raise PayloadError(f"{name}: key is not declared by {cls.__qualname__}")
    return cls(**values)


def _take(
    found: dict[str, NDArray[Any] | Narrowed],
    key: str,
    dims: tuple[str | int, ...],
    dtype: str,
    rule: ArrayRule,
    sizes: dict[str, int],
) -> NDArray[Any]:
    """Remove `key` from `found` and check it; binds dimension names in `sizes`."""
    if key not in found:
        raise PayloadError(f"{key}: key is missing")
    entry = found.pop(key)
    item, own = (
        (entry.values, entry.dtype) if isinstance(entry, Narrowed) else (entry, entry.dtype.name)
    )
    if own != dtype:
        raise PayloadError(f"{key}: dtype {own}, expected {dtype}")
    expected = tuple(sizes.get(n, n) if isinstance(n, str) else n for n in dims)
    matches = len(item.shape) == len(dims) and all(
        isinstance(want, str) or want == got for want, got in zip(expected, item.shape, strict=True)
    )
    if not matches:
        raise PayloadError(f"{key}: shape {clipped(str(item.shape))}, expected {expected}")
    for name, size in zip(dims, item.shape, strict=True):
        # The same unknown name twice in one shape must agree with itself as well.
        if isinstance(name, str) and sizes.setdefault(name, size) != size:
            raise PayloadError(f"{key}: shape {item.shape}, but {name} is {sizes[name]}")
    if isinstance(entry, Narrowed):
        item = entry.widened()
        item.setflags(write=False)
    _check_values(key, item, rule, sizes)
    return item


def _check_values(key: str, item: NDArray[Any], rule: ArrayRule, sizes: Mapping[str, int]) -> None:
    if item.size == 0:
        if rule.nonempty:
            raise PayloadError(f"{key}: empty, at least one value is needed")
        return
    if item.dtype.kind == "b" and (item.view(np.uint8) > 1).any():
        raise PayloadError(f"{key}: bytes other than 0 and 1 in an array of dtype bool")
    if item.dtype.kind == "f" and not np.isfinite(item).all():
        bad = int(item.size - np.isfinite(item).sum())
        raise PayloadError(f"{key}: {bad} of {item.size} values are NaN or infinite")
    if rule.minimum is not None and item.min() < rule.minimum:
        raise PayloadError(f"{key}: value {item.min()} is below {rule.minimum:g}")
    if rule.below is not None:
        bound = sizes[rule.below] if isinstance(rule.below, str) else rule.below
        if item.max() >= bound:
            raise PayloadError(f"{key}: value {item.max()} is not below {bound}")
    if rule.unique and np.unique(item).size != item.size:
        raise PayloadError(f"{key}: values repeat")
