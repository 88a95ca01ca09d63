"""Unlabelled public data that all clients hold alike and refer to by index.

Item i is the same picture on all clients, whatever number of channels and size their models take,
or the same sentence; `PublicData.fingerprint` is what they compare. Labels are not kept: no method
may read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.annotated import (
    AnnotatedDataset,
    TextDataset,
    Texts,
    read_array,
    read_texts,
    write_texts,
)
from data.cache import cache_root, fetch_entry
from data.dataset import load_dataset
from data.entries import digest_texts
from data.image_dataset import ImageDataset
from data.raw import write_array
from data.scene_items import fashion_folder, load_items, scene_source, scene_stamp
from data.scenes import draw_scenes
from data.shares import Shares
from data.spec import DataError, DataSpec, file_stem, is_from_hub
from data.vectors import VectorDataset

# Raise it when public items change, so that old entries are not read.
_FORMAT = 2
_SEED = 5_000
_ROWS = "rows.npy"
_NONE = np.empty(0, dtype=np.int64)
# Sets whose pictures have all sizes: read at the size wanted, identified at a common one. So may
# those of the hub.
_OF_ANY_SIZE = ("imagefolder", "voc", "coco")
_COMMON_SIZE = 64
_Readable = ImageDataset | TextDataset
_LUMA = np.array([299, 587, 114], dtype=np.int64)  # thousandths, ITU-R BT.601


@dataclass(frozen=True, eq=False)
class PublicData:
    """Public items, index-aligned over all clients.

    Attributes
    ----------
    size : int
        Number of items P.
    images : NDArray[np.uint8] | None
        (P, C, S, S), read-only, memory-mapped; None where items are sentences.
    captions : Sequence[str] | None
        (P,) one sentence a picture, where the data set has them, or the items themselves.
    fingerprint : str
        16 hexadecimal digits over source pixels and captions; the same for all C and S.
    source : str
        What the items are, for messages: "scenes of fashion-mnist", "cifar10".
    rows : NDArray[np.int64]
        Rows of the data set `shown` that items show, ascending.
    shown : str
        What scenes are made of, else the public data set itself.
    """

    size: int
    images: NDArray[np.uint8] | None
    captions: Sequence[str] | None
    fingerprint: str
    source: str
    rows: NDArray[np.int64]
    shown: str

    def __len__(self) -> int:
        return self.size


def load_public(
    name: str,
    size: int,
    channels: int,
    image_size: int,
    data_dir: str = "",
    avoid: Shares | None = None,
) -> PublicData:
    """Open the public data, building its cache entry on the first use on this machine.

    `scenes` are drawn from another stream than the private scenes, of official training images
    only. Of any other data set they are the first `size` rows of a fixed permutation of its
    official training rows.

    Parameters
    ----------
    name : str
        A name in `DATASETS` that has images or sentences, or `hf:ORG/NAME`, whose columns,
        configuration and splits are those found by themselves.
    size : int
        Number of items P.
    channels : int
        1 for grey, 3 for colour, converted where the source differs; 0 for the source's own.
    image_size : int
        Side in pixels, resized from the source; 0 for the source's own.
    data_dir : str (default: "")
        Where the data set's files lie; empty for the standard places.
    avoid : Shares | None (default: None)
        Clients whose test examples no item may show; where they have none of these pictures, the
        items are those of None.

    Returns
    -------
    public : PublicData
        The same object for the same arguments within a process.

    Raises
    ------
    DataError
        If the data set is missing, has numbers, or fewer training rows than `size` that no client
        of `avoid` tests on.
    """
    if size < 1 or channels not in (0, 1, 3):
        raise DataError(
            f"public-size={size}, channels={channels}: expected a size from 1, and 1 or 3 "
            "channels (0 for the source's own)."
        )
    # Checks name and size too.
    spec = DataSpec(dataset=name, data_dir=data_dir, image_size=image_size)
    folder = str(Path(data_dir).expanduser().absolute()) if data_dir else ""
    return _load(spec, size, channels, folder, str(cache_root()), avoid)


@lru_cache(maxsize=8)
def _load(
    spec: DataSpec, size: int, channels: int, folder: str, root: str, avoid: Shares | None
) -> PublicData:
    wanted = size, spec.image_size
    shown = scene_source(Path(folder) if folder else None)
    shown = shown if spec.dataset == "scenes" else spec.dataset
    tested = _NONE if avoid is None else avoid.tested(shown, spec.data_dir)
    if spec.dataset == "scenes":
        place = Path(folder) if folder else None
        source = f"scenes of {shown}"
        key = f"{scene_stamp(place)}|{fashion_folder(place)}"
    else:
        dataset, common, rows = _chosen(spec, size, tested)
        source, key = spec.dataset, f"{dataset.fingerprint}|{common.fingerprint}"
    key = f"{_FORMAT}|{key}|{wanted}|{channels == 1}|{hashlib.sha256(tested.tobytes()).hexdigest()}"
    key = hashlib.sha256(key.encode()).hexdigest()[:16]

    def build(target: Path) -> None:
        if spec.dataset == "scenes":
            items = load_items(place, target)
            drawn = draw_scenes(items, "public", size, tested[tested < items.train_size])
            np.save(target / _ROWS, np.unique(drawn.rows[drawn.rows >= 0]))
            _write(target, drawn.images[:, None], drawn.images, drawn.captions, spec, channels)
        else:
            np.save(target / _ROWS, np.sort(rows))
            images, identified = (_pictures(form, rows) for form in (dataset, common))
            _write(target, images, identified, _sentences(dataset, rows), spec, channels)

    entry = Path(root) / "public" / f"{file_stem(spec.dataset)}-{size}-{key}"
    found = fetch_entry(entry, partial(_read, size=size), build)
    images, texts, fingerprint, rows_shown = found
    if images is not None and channels == 3 and images.shape[1] == 1:
        # Three times the same plane, without its bytes three times.
        images = np.broadcast_to(images, (size, 3, *images.shape[2:]))
    return PublicData(size, images, texts, fingerprint, source, rows_shown, shown)


def _chosen(
    spec: DataSpec, size: int, tested: NDArray[np.int64]
) -> tuple[_Readable, _Readable, NDArray[np.int64]]:
    """Return the data set, its form that the fingerprint is of, and the rows."""
    at_size = spec.image_size if _has_any_size(spec.dataset) else 0
    dataset = _open(spec, at_size or _own_size(spec.dataset))
    common = _open(spec, _own_size(spec.dataset))
    things = "sentences" if isinstance(dataset, TextDataset) else "images"
    if size > dataset.train_size:
        raise DataError(
            f"public-size={size}: {spec.dataset} has {dataset.train_size} training {things}; set "
            f"public-size={dataset.train_size} or less, or another public-dataset."
        )
    order = np.random.default_rng(_SEED).permutation(dataset.train_size)
    order = order[~np.isin(order, tested)]
    if size > len(order):
        raise DataError(
            f"public-size={size}: of {spec.dataset}'s {dataset.train_size} training {things}, "
            f"clients test on all but {len(order)}; set public-size={len(order)} or less, "
            "public-overlap=allowed, test-split=global, or another public-dataset."
        )
    return dataset, common, order[:size]


def _open(spec: DataSpec, image_size: int) -> _Readable:
    try:
        dataset = load_dataset(spec.dataset, spec.data_dir, image_size)
    except DataError as error:
        if not is_from_hub(spec.dataset):
            raise
        raise DataError(
            f"public-dataset={spec.dataset}: {error} Keys that name columns, a configuration or "
            "splits are of dataset alone: public data must be readable without them."
        ) from error
    if isinstance(dataset, VectorDataset):
        raise DataError(
            f"public-dataset={spec.dataset} has numbers; public items are images or sentences: "
            "set public-dataset=scenes."
        )
    return dataset


def _has_any_size(name: str) -> bool:
    return name in _OF_ANY_SIZE or is_from_hub(name)


def _own_size(name: str) -> int:
    return _COMMON_SIZE if _has_any_size(name) else 0


def _pictures(dataset: _Readable, rows: NDArray[np.int64]) -> NDArray[np.uint8] | None:
    return dataset.images[rows] if isinstance(dataset, ImageDataset) else None


def _sentences(dataset: _Readable, rows: NDArray[np.int64]) -> list[str] | None:
    """Return the sentences of a text data set, or pictures' captions where there are any."""
    if isinstance(dataset, TextDataset):
        return [dataset.sentences[int(row)] for row in rows]
    if not isinstance(dataset, AnnotatedDataset) or dataset.captions is None:
        return None
    return [dataset.captions[int(row)] for row in rows]


def _write(
    target: Path,
    images: NDArray[np.uint8] | None,
    source: NDArray[np.uint8] | None,
    captions: Sequence[str] | None,
    spec: DataSpec,
    channels: int,
) -> None:
    shape = None if source is None else list(source.shape)
    digest = hashlib.sha256(json.dumps([spec.dataset, shape]).encode())
    if source is not None:
        digest.update(np.ascontiguousarray(source).data)
    if captions is not None:
        digest_texts(digest, captions)
        write_texts(target, "captions", captions)
    if images is not None:
        grey = channels == 1 and images.shape[1] == 3
        wanted = to_grey(images) if grey else images
        shape = list(write_array(wanted, spec.image_size, target / "images.npy").shape)
    meta = {
        "shape": shape,
        "captions": captions is not None,
        "fingerprint": digest.hexdigest()[:16],
    }
    (target / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _read(
    entry: Path, size: int
) -> tuple[NDArray[np.uint8] | None, Texts | None, str, NDArray[np.int64]]:
    meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
    images = None if meta["shape"] is None else read_array(entry / "images.npy")
    captions = read_texts(entry, "captions") if meta["captions"] else None
    rows: NDArray[np.int64] = np.load(entry / _ROWS, allow_pickle=False)
    lengths = [len(part) for part in (images, captions) if part is not None]
    shape = None if images is None else list(images.shape)
    if set(lengths) != {size} or shape != meta["shape"]:
        raise ValueError(f"{entry} is damaged")
    return images, captions, str(meta["fingerprint"]), rows


def to_grey(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn colour (P, 3, S, S) into grey (P, 1, S, S), in whole numbers."""
    grey = np.empty((len(images), 1, *images.shape[2:]), dtype=np.uint8)
    for start in range(0, len(images), 512):  # in blocks: a pixel takes 24 bytes here
        planes = images[start : start + 512].astype(np.int64)
        light = np.einsum("nchw,c->nhw", planes, _LUMA)
        grey[start : start + 512, 0] = (light + 500) // 1000
    return grey


def clear_memory() -> None:
    """Forget the public data this process has open; files stay."""
    _load.cache_clear()
