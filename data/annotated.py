"""Data sets for tasks beside plain classification: several classes a picture, masks, sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from data.image_dataset import Dataset, ImageDataset
from data.raw import RawImages, create_image_file

IGNORE = 255
"""Target value of what neither trains nor counts: unknown classes, pixels of an edge."""


class Texts(Sequence[str]):
    """Texts in one memory-mapped block of UTF-8, decoded on access.

    Parameters
    ----------
    content : NDArray[np.uint8]
        (bytes,) all texts, one after the other.
    ends : NDArray[np.int64]
        (N,) where each text ends.
    """

    def __init__(self, content: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        if len(ends) and int(ends[-1]) != len(content):
            raise ValueError("a block of texts is cut off")
        self._content, self._ends = content, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # negative and out of range as for any sequence
        start = int(self._ends[row - 1]) if row else 0
        return self._content[start : int(self._ends[row])].tobytes().decode("utf-8")


def write_texts(folder: Path, name: str, texts: Sequence[str]) -> None:
    """Write texts as `{name}.npy` and `{name}-ends.npy`."""
    encoded = [text.encode("utf-8") for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype="<i8")
    np.save(folder / f"{name}.npy", np.frombuffer(b"".join(encoded), dtype=np.uint8))
    np.save(folder / f"{name}-ends.npy", ends)


def read_texts(folder: Path, name: str) -> Texts:
    """Map what `write_texts` wrote.

    Raises
    ------
    OSError, ValueError
        If a file is missing or cut off.
    """
    ends = read_array(folder / f"{name}-ends.npy").astype(np.int64, copy=False)
    return Texts(read_array(folder / f"{name}.npy"), ends)


def read_array(path: Path) -> NDArray[np.uint8]:
    """Map an array file as a plain array: a memmap's indexing is slower, the pages are shared."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


@dataclass(frozen=True, eq=False)
class Annotations:
    """What may be known of pictures beside one label each; each where the set has it.

    Attributes
    ----------
    presence : NDArray[np.uint8] | None
        (N, C) 1 where a class is in the picture.
    masks : NDArray[np.uint8] | None
        (N, H, W) 0 background, 1 + c class c, `IGNORE` counts for nothing.
    captions : Sequence[str] | None
        (N,) one sentence a picture.
    masked : NDArray[np.bool_] | None
        (N,) which pictures have a mask; None for all (where `masks` is not None). The mask of
        the others is `IGNORE` throughout.
    source : str
        What the pictures are made of, for data that is generated; else empty.
    """

    presence: NDArray[np.uint8] | None = None
    masks: NDArray[np.uint8] | None = None
    captions: Sequence[str] | None = None
    masked: NDArray[np.bool_] | None = None
    source: str = ""


@dataclass(frozen=True, eq=False)
class AnnotatedDataset(Annotations, ImageDataset):
    """Images with `Annotations`.

    `labels` is the main class, that of the largest item: partitions and plain classification
    use it.
    """


@dataclass(frozen=True, eq=False)
class TextDataset(Dataset):
    """Labelled sentences, official training rows first.

    Attributes
    ----------
    sentences : Sequence[str]
        (N,), memory-mapped.
    name, labels, train_size, class_names, fingerprint, notes, validation_size, groups
        As in `Dataset`.
    """

    name: str
    sentences: Sequence[str]
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()
    validation_size: int = 0
    groups: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class RawAnnotated(Annotations, RawImages):
    """`RawImages` with `Annotations`; masks lie in `masks.npy` beside the images."""


@dataclass(frozen=True, eq=False)
class RawTexts:
    """A text data set as its builder leaves it, training rows first; see `TextDataset`."""

    sentences: Sequence[str]
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    validation_size: int = 0
    groups: NDArray[np.int64] | None = None


def create_masks(images_path: Path, count: int, size: int, fill: int) -> NDArray[np.uint8]:
    """Create the mask file that belongs to an image file, all pixels `fill`.

    Parameters
    ----------
    images_path : Path
        The image file being built.
    count, size : int
        Number of masks, and their side.
    fill : int
        0 for background, `IGNORE` for pictures that may get no mask.

    Returns
    -------
    masks : NDArray[np.uint8]
        (count, size, size), mapped for writing.

    Raises
    ------
    DataError
        If the disk has no room.
    """
    masks = create_image_file(images_path.with_name("masks.npy"), (count, 1, size, size))
    if fill:
        masks[:] = fill
    return masks[:, 0]


def resize_masks(masks: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Resize masks (..., H, W) to (..., size, size), each pixel the nearest one's class."""
    height, width = masks.shape[-2:]
    rows = (np.arange(size) * 2 + 1) * height // (2 * size)
    columns = (np.arange(size) * 2 + 1) * width // (2 * size)
    return masks[..., rows[:, None], columns[None, :]]
