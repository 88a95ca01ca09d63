"""Datasets by name, as memory-mapped arrays that all processes of a machine share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import (
    coco,
    folders,
    scene_items,
    scenes,
    series,
    sources,
    tabular,
    texts,
    tiny_imagenet,
    voc,
)
from data.annotated import (
    AnnotatedDataset,
    RawAnnotated,
    RawTexts,
    TextDataset,
    read_array,
    read_texts,
    write_texts,
)
from data.cache import cache_root, fetch_entry
from data.image_dataset import Dataset, ImageDataset
from data.raw import RawImages
from data.spec import VECTOR_DATASETS, DataError, DataSpec
from data.train_and_test import files_stamp
from data.vector_files import read_vectors, write_vectors
from data.vectors import VectorDataset, Vectors

__all__ = ["Dataset", "ImageDataset", "clear_memory", "load_dataset", "load_images"]

AnyDataset = ImageDataset | TextDataset | VectorDataset

# Raise it when a builder changes what it writes, so that old entries are not read.
_FORMAT = 1
# The same for the builders of `AnnotatedDataset` and `TextDataset`.
_TASK_FORMAT = 1
# The same for single data sets, where only their own builder changed.
_VERSIONS = {
    "imagefolder": "4",
    "tiny-imagenet": "2",
    **dict.fromkeys(("voc", "coco"), "task-2"),
    "tsv": "task-4",
}

_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".rar", ".7z")
_OPTIONAL = ("presence", "masks", "masked")


def load_dataset(dataset: DataSpec | str, data_dir: str = "", image_size: int = 0) -> AnyDataset:
    """Open a dataset, building its cache entry on the first use on this machine.

    Parameters
    ----------
    dataset : DataSpec | str
        A description, or a name in `DATASETS`.
    data_dir, image_size
        As in `DataSpec`; only read where `dataset` is a name.

    Returns
    -------
    dataset : ImageDataset | TextDataset | VectorDataset
        The same object for the same arguments within a process; `AnnotatedDataset` for `scenes`,
        `voc` and `coco`, `TextDataset` for `tsv`, `VectorDataset` for `tabular` and `series`.

    Raises
    ------
    DataError
        If the name is unknown, or the files are missing, unreadable or unlike each other.
    """
    if isinstance(dataset, str):
        dataset = DataSpec(dataset=dataset, data_dir=data_dir, image_size=image_size)
    folder = str(Path(dataset.data_dir).expanduser().absolute()) if dataset.data_dir else ""
    if folder.lower().endswith(_ARCHIVES) and Path(folder).is_file():
        raise DataError(f"data-dir={folder!r} is an archive; unpack it and give the folder.")
    columns = ("", "")
    if dataset.dataset == "tsv":
        columns = (dataset.label_column, dataset.text_column)
    elif dataset.dataset in VECTOR_DATASETS:
        columns = (dataset.label_column, dataset.natural_column)
    return _load(dataset.dataset, folder, dataset.image_size, str(cache_root()), columns)


def load_images(spec: DataSpec) -> ImageDataset:
    """As `load_dataset`, for a user that classifies images.

    Raises
    ------
    DataError
        Also if the data set has no images.
    """
    dataset = load_dataset(spec)
    if isinstance(dataset, VectorDataset):
        raise DataError(f"dataset={spec.dataset} has numbers and no images.")
    if isinstance(dataset, TextDataset):
        raise DataError(
            f"dataset={spec.dataset} has sentences and no images to classify; for text set "
            f'tasks="text@{spec.dataset}" and a method and models for it.'
        )
    return dataset


@lru_cache(maxsize=8)
def _load(
    name: str, data_dir: str, image_size: int, root: str, columns: tuple[str, str]
) -> AnyDataset:
    folder = Path(data_dir) if data_dir else None
    stamp = _STAMPS[name](folder) if name in _STAMPS else ""
    version = _VERSIONS.get(name) or (_FORMAT if name in _BUILDERS else f"task-{_TASK_FORMAT}")
    named = f"|{columns}" if any(columns) else ""
    key = hashlib.sha256(f"{version}|{data_dir}|{stamp}{named}".encode()).hexdigest()[:12]
    size = str(image_size) if image_size else "own"
    entry = Path(root) / "datasets" / f"{name}-{size}-{key}"

    def build(target: Path) -> None:
        if name in _TEXT_BUILDERS:
            _write_sentences(target, name, _TEXT_BUILDERS[name](folder, *columns))
            return
        if name in _VECTOR_BUILDERS:
            raw = _VECTOR_BUILDERS[name](folder, *columns)
            meta, digest = write_vectors(target, raw)
            _write_meta(target, meta, digest, raw.notes)
            return
        builder = _BUILDERS.get(name) or _ANNOTATED_BUILDERS[name]
        _write(target, name, builder(folder, image_size, target / "images.npy"))

    return fetch_entry(entry, lambda path: _read(path, name), build)


_BUILDERS: dict[str, Callable[[Path | None, int, Path], RawImages]] = {
    "digits": sources.digits,
    "fashion-mnist": sources.fashion_mnist,
    "cifar10": sources.cifar10,
    "cifar100": sources.cifar100,
    "svhn": sources.svhn,
    "tiny-imagenet": tiny_imagenet.tiny_imagenet,
    "imagefolder": folders.image_folder,
}
_ANNOTATED_BUILDERS: dict[str, Callable[[Path | None, int, Path], RawAnnotated]] = {
    "scenes": scenes.scenes,
    "voc": voc.voc,
    "coco": coco.coco,
}
_TEXT_BUILDERS: dict[str, Callable[[Path | None, str, str], RawTexts]] = {"tsv": texts.tsv}
_VECTOR_BUILDERS: dict[str, Callable[[Path | None, str, str], Vectors]] = {
    "tabular": tabular.tabular,
    "series": series.series,
}
# What an entry depends on besides the folder's name.
_STAMPS: dict[str, Callable[[Path | None], str]] = {
    "fashion-mnist": sources.fashion_stamp,
    "tiny-imagenet": tiny_imagenet.picture_stamp,
    "imagefolder": folders.folder_stamp,
    "scenes": scene_items.scene_stamp,
    "voc": voc.list_stamp,
    "coco": coco.annotation_stamp,
    "tsv": texts.file_stamp,
    **{name: partial(files_stamp, name=name) for name in VECTOR_DATASETS},
}


def _write(target: Path, name: str, raw: RawImages) -> None:
    """Add labels and description to the image file that the builder wrote."""
    if len(raw.images) == 0:
        raise DataError(f"{name}: found no image at all.")
    meta: dict[str, Any] = {
        "train_size": raw.train_size,
        "class_names": list(raw.class_names),
        "shape": list(raw.images.shape),
    }
    if raw.validation_size:
        meta["validation_size"] = raw.validation_size
    digest = hashlib.sha256(json.dumps(meta).encode())
    labels = raw.labels.astype("<i8")
    digest.update(labels.tobytes())
    _digest_blocks(digest, raw.images)
    np.save(target / "labels.npy", labels)
    if isinstance(raw, RawAnnotated):
        meta |= _write_annotations(target, raw, digest)
    _write_meta(target, meta, digest, raw.notes)


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


def _write_sentences(target: Path, name: str, raw: RawTexts) -> None:
    meta = {"train_size": raw.train_size, "class_names": list(raw.class_names), "text": True}
    digest = hashlib.sha256(json.dumps(meta).encode())
    labels = raw.labels.astype("<i8")
    digest.update(labels.tobytes())
    digest_texts(digest, raw.sentences)
    np.save(target / "labels.npy", labels)
    write_texts(target, "sentences", raw.sentences)
    _write_meta(target, meta, digest, raw.notes)


def _write_meta(target: Path, meta: dict[str, Any], digest: Any, notes: tuple[str, ...]) -> None:
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


def _read(entry: Path, name: str) -> AnyDataset:
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
    if "text" in meta:
        sentences = read_texts(entry, "sentences")
        _check(entry, [sentences], len(labels))
        return TextDataset(sentences=sentences, **common)
    # asarray drops the memmap subclass, whose indexing is slower; the pages stay shared.
    images = np.asarray(np.load(entry / "images.npy", mmap_mode="r"))
    if list(images.shape) != meta["shape"] or len(labels) != len(images):
        raise ValueError(f"{entry} is damaged")
    if "annotated" not in meta:
        return ImageDataset(
            images=images, validation_size=int(meta.get("validation_size", 0)), **common
        )
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


def clear_memory() -> None:
    """Forget the datasets this process has open; files stay."""
    _load.cache_clear()
