"""Cache entries of data sets: arrays and texts beside their description, `meta.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.annotated import (
    AnnotatedDataset,
    RawAnnotated,
    RawTexts,
    TextDataset,
    read_array,
    read_texts,
    write_texts,
)
from data.image_dataset import ImageDataset
from data.raw import RawImages
from data.spec import DataError
from data.vector_files import read_vectors
from data.vectors import VectorDataset

AnyDataset = ImageDataset | TextDataset | VectorDataset

_OPTIONAL = ("presence", "masks", "masked")


def write_images(target: Path, name: str, raw: RawImages) -> None:
    """Add labels and description to the image file that the builder wrote."""
    if len(raw.images) == 0:
        raise DataError(f"{name}: found no image at all.")
    meta: dict[str, Any] = {
        "train_size": raw.train_size,
        "class_names": list(raw.class_names),
        "shape": list(raw.images.shape),
    }
    meta |= _held_out_and_owned(target, raw)
    digest = hashlib.sha256(json.dumps(meta).encode())
    labels = raw.labels.astype("<i8")
    digest.update(labels.tobytes())
    _digest_blocks(digest, raw.images)
    np.save(target / "labels.npy", labels)
    if isinstance(raw, RawAnnotated):
        meta |= _write_annotations(target, raw, digest)
    write_meta(target, meta, digest, raw.notes)


def _held_out_and_owned(target: Path, raw: RawImages | RawTexts) -> dict[str, Any]:
    """Describe a validation part and whose the rows are, where there are such."""
    meta: dict[str, Any] = {}
    if raw.validation_size:
        meta["validation_size"] = raw.validation_size
    if raw.groups is not None:
        np.save(target / "groups.npy", raw.groups.astype("<i8"))
        meta["groups"] = hashlib.sha256(raw.groups.astype("<i8").tobytes()).hexdigest()
    return meta


def _write_annotations(target: Path, raw: RawAnnotated, digest: Any) -> dict[str, Any]:
    """Write what `RawAnnotated` adds and hash it; the masks' file is there already."""
    held = [name for name in _OPTIONAL if getattr(raw, name) is not None]
    meta = {"annotated": True, "source": raw.source, "arrays": held}
    digest.update(json.dumps(meta | {"captions": raw.captions is not None}).encode())
    for name in held:
        _digest_blocks(digest, getattr(raw, name))
        if name != "masks":
            np.save(target / f"{name}.npy", getattr(raw, name))
    if raw.captions is not None:
        digest_texts(digest, raw.captions)
        write_texts(target, "captions", raw.captions)
    return meta | {"captions": raw.captions is not None}


def write_sentences(target: Path, raw: RawTexts) -> None:
    """Write sentences, labels and description."""
    meta = {"train_size": raw.train_size, "class_names": list(raw.class_names), "text": True}
    meta |= _held_out_and_owned(target, raw)
    digest = hashlib.sha256(json.dumps(meta).encode())
    labels = raw.labels.astype("<i8")
    digest.update(labels.tobytes())
    digest_texts(digest, raw.sentences)
    np.save(target / "labels.npy", labels)
    write_texts(target, "sentences", raw.sentences)
    write_meta(target, meta, digest, raw.notes)


def write_meta(target: Path, meta: dict[str, Any], digest: Any, notes: tuple[str, ...]) -> None:
    """Write the description; notes are words about the files and not part of the content."""
    about = {"fingerprint": digest.hexdigest()[:16], "notes": list(notes)}
    (target / "meta.json").write_text(json.dumps(meta | about, indent=1), encoding="utf-8")


def _digest_blocks(digest: Any, array: NDArray[Any]) -> None:
    for start in range(0, len(array), 4096):  # block by block: the file may exceed memory
        digest.update(np.ascontiguousarray(array[start : start + 4096]).data)


def digest_texts(digest: Any, texts: Sequence[str]) -> None:
    """Add texts to a hash, each with its length, so that none can run into the next."""
    for text in texts:
        encoded = text.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)


def read_entry(entry: Path, name: str) -> AnyDataset:
    """Map what this module wrote.

    Raises
    ------
    OSError, ValueError, KeyError
        If a file is missing or cut off.
    """
    meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
    labels = np.asarray(np.load(entry / "labels.npy", mmap_mode="r")).astype(np.int64, copy=False)
    common: dict[str, Any] = {
        "name": name,
        "labels": labels,
        "train_size": int(meta["train_size"]),
        "class_names": tuple(meta["class_names"]),
        "fingerprint": str(meta["fingerprint"]),
        "notes": tuple(meta.get("notes", ())),
    }
    if "vectors" in meta:
        return read_vectors(entry, meta, common)
    common["validation_size"] = int(meta.get("validation_size", 0))
    if "groups" in meta:
        common["groups"] = np.load(entry / "groups.npy").astype(np.int64, copy=False)
        _check(entry, [common["groups"]], len(labels))
    if "text" in meta:
        sentences = read_texts(entry, "sentences")
        _check(entry, [sentences], len(labels))
        return TextDataset(sentences=sentences, **common)
    # asarray drops the memmap subclass, whose indexing is slower; the pages stay shared.
    images = np.asarray(np.load(entry / "images.npy", mmap_mode="r"))
    if list(images.shape) != meta["shape"] or len(labels) != len(images):
        raise ValueError(f"{entry} is damaged")
    if "annotated" not in meta:
        return ImageDataset(images=images, **common)
    arrays: dict[str, Any] = dict(_annotations(entry, meta))
    _check(entry, list(arrays.values()), len(labels))
    return AnnotatedDataset(images=images, source=meta["source"], **common, **arrays)


def _annotations(entry: Path, meta: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in meta["arrays"]:
        array = read_array(entry / f"{name}.npy")
        yield name, array[:, 0] if name == "masks" else array  # masks lie as (N, 1, H, W)
    if meta["captions"]:
        yield "captions", read_texts(entry, "captions")


def _check(entry: Path, columns: list[Any], rows: int) -> None:
    if any(len(column) != rows for column in columns):
        raise ValueError(f"{entry} is damaged")
