"""Cache entries of rows and windows; their description is written by `data.dataset`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from data.annotated import read_array
from data.vectors import Quantity, VectorDataset, Vectors

_ARRAYS = ("inputs", "targets", "groups")


def write_vectors(target: Path, raw: Vectors) -> tuple[dict[str, Any], Any]:
    """Write the arrays of an entry; return its description and the hash over its content."""
    quantity = None if raw.quantity is None else dataclasses.asdict(raw.quantity)
    held = [name for name in _ARRAYS if getattr(raw, name) is not None]
    meta = {
        "train_size": raw.train_size, "class_names": list(raw.class_names), "vectors": held,
        "columns_hash": raw.columns_hash, "quantity": quantity, "continuous": raw.continuous,
        "group_names": list(raw.group_names), "shape": list(raw.inputs.shape),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(meta).encode())
    for name in ("labels", *held):
        array = getattr(raw, name)
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(little.data)
        np.save(target / f"{name}.npy", little)
    return meta, digest


def read_vectors(entry: Path, meta: dict[str, Any], common: dict[str, Any]) -> VectorDataset:
    """Map an entry.

    Raises
    ------
    OSError, ValueError, KeyError
        If a file is missing or cut off.
    """
    arrays: dict[str, Any] = {name: read_array(entry / f"{name}.npy") for name in meta["vectors"]}
    lengths = {len(array) for array in arrays.values()}
    if lengths != {len(common["labels"])} or list(arrays["inputs"].shape) != meta["shape"]:
        raise ValueError(f"{entry} is damaged")
    quantity = meta["quantity"]
    return VectorDataset(
        **common,
        **arrays,
        columns_hash=str(meta["columns_hash"]),
        quantity=None if quantity is None else Quantity(**quantity),
        continuous=bool(meta["continuous"]),
        group_names=tuple(meta["group_names"]),
    )
