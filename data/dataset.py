"""Datasets by name, as memory-mapped arrays that all processes of a machine share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

from data import (
    coco,
    folders,
    hub,
    scene_items,
    scenes,
    series,
    sources,
    tabular,
    texts,
    tiny_imagenet,
    toy,
    voc,
)
from data.annotated import (
    RawAnnotated,
    RawTexts,
    TextDataset,
)
from data.cache import cache_root, fetch_entry
from data.entries import AnyDataset, read_entry, write_images, write_meta, write_sentences
from data.image_dataset import Dataset, ImageDataset
from data.raw import RawImages
from data.spec import COLUMN_DATASETS, DataError, DataSpec, file_stem, is_from_hub
from data.train_and_test import files_stamp
from data.vector_files import write_vectors
from data.vectors import VectorDataset, Vectors

__all__ = ["Dataset", "ImageDataset", "clear_memory", "load_dataset", "load_images"]

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


def load_dataset(dataset: DataSpec | str, data_dir: str = "", image_size: int = 0) -> AnyDataset:
    """Open a dataset, building its cache entry on the first use on this machine.

    Parameters
    ----------
    dataset : DataSpec | str
        A description, or a name in `DATASETS` or of the hub.
    data_dir, image_size
        As in `DataSpec`; only read where `dataset` is a name.

    Returns
    -------
    dataset : ImageDataset | TextDataset | VectorDataset
        The same object for the same arguments within a process; `AnnotatedDataset` for `scenes`,
        `voc` and `coco`, `TextDataset` for `tsv`, `VectorDataset` for `tabular`, `series` and
        `toy`; for `hf:` what its columns hold.

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
    if is_from_hub(dataset.dataset):
        return _load_from_hub(_readings_of(dataset), folder, str(cache_root()))
    if dataset.dataset == "tsv":
        columns = (dataset.label_column, dataset.text_column)
    elif dataset.dataset in COLUMN_DATASETS:
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
            write_sentences(target, _TEXT_BUILDERS[name](folder, *columns))
            return
        if name in _VECTOR_BUILDERS:
            raw = _VECTOR_BUILDERS[name](folder, *columns)
            meta, digest = write_vectors(target, raw)
            write_meta(target, meta, digest, raw.notes)
            return
        builder = _BUILDERS.get(name) or _ANNOTATED_BUILDERS[name]
        write_images(target, name, builder(folder, image_size, target / "images.npy"))

    return fetch_entry(entry, lambda path: read_entry(path, name), build)


def _readings_of(spec: DataSpec) -> DataSpec:
    """Return the description without all that says how clients share what is read."""
    natural = spec.partition if spec.natural_column else DataSpec.partition
    kept = "dataset", "image_size", "label_column", "text_column", *_HUB_KEYS
    return DataSpec(partition=natural, **{name: getattr(spec, name) for name in kept})


@lru_cache(maxsize=8)
def _load_from_hub(spec: DataSpec, data_dir: str, root: str) -> AnyDataset:
    folder = Path(data_dir) if data_dir else None
    named = (getattr(spec, name) for name in (*_HUB_KEYS, "label_column", "text_column"))
    text = "|".join(["1", data_dir, hub.hub_stamp(folder), spec.dataset, spec.partition, *named])
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    size = spec.image_size or "own"
    entry = Path(root) / "datasets" / f"{file_stem(spec.dataset)}-{size}-{key}"

    def build(target: Path) -> None:
        from data.hub_examples import hub_examples

        raw = hub_examples(spec, folder, target / "images.npy")
        if isinstance(raw, RawTexts):
            write_sentences(target, raw)
        else:
            write_images(target, spec.dataset, raw)

    return fetch_entry(entry, lambda path: read_entry(path, spec.dataset), build)


_HUB_KEYS = ("image_column", "data_config", "data_split")

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
    "toy": toy.toy,
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
    **{name: partial(files_stamp, name=name) for name in COLUMN_DATASETS},
}


def clear_memory() -> None:
    """Forget the datasets this process has open; files stay."""
    _load.cache_clear()
    _load_from_hub.cache_clear()
