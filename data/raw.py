"""What every dataset builder hands back, and the image work they share."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.spec import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class RawImages:
    """A dataset as its builder leaves it, training rows first.

    Attributes
    ----------
    images : NDArray[np.uint8]
        (N, C, H, W), mapped to the cache file.
    labels : NDArray[np.int64]
        (N,).
    train_size : int
        Number of leading training rows.
    class_names : tuple[str, ...]
        One name per label.
    notes : tuple[str, ...]
        See `Dataset`.
    validation_size : int
        Number of validation rows, the last ones of the training rows.
    groups : NDArray[np.int64] | None
        See `Dataset`.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    validation_size: int = 0
    groups: NDArray[np.int64] | None = None


def thread_map(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Apply a function to items on all cores, keeping order.

    Threads suffice because Pillow decodes and resizes outside Python's global lock; work goes out
    in blocks since a future per image would cost more than the image.
    """
    workers = min(32, os.cpu_count() or 1)
    block = 256
    blocks = [items[start : start + block] for start in range(0, len(items), block)]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        done = pool.map(lambda part: [function(item) for item in part], blocks)
        return [result for part in done for result in part]


def create_image_file(path: Path, shape: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """Create a .npy file of uint8 zeros (N, C, H, W) and map it for writing.

    Raises
    ------
    DataError
        If the disk has no room: writing to a mapped file on a full disk would kill the process.
    """
    needed, free = math.prod(shape), shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(
            f"{path.parent} has {free / 1e6:.0f} MB free and the dataset needs "
            f"{needed / 1e6:.0f} MB; make room, or point WILDFLOWER_CACHE at another disk."
        )
    mapped: NDArray[np.uint8] = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.uint8, shape=shape
    )
    return mapped


def write_array(images: NDArray[np.uint8], image_size: int, path: Path) -> NDArray[np.uint8]:
    """Write images to a .npy file, resized (bilinear) where a size is given.

    Parameters
    ----------
    images : NDArray[np.uint8]
        (N, C, H, W).
    image_size : int
        Side in pixels, 0 for unchanged.
    path : Path
        The file to create.

    Returns
    -------
    written : NDArray[np.uint8]
        (N, C, image_size, image_size), mapped to the file.
    """
    count, channels, height, width = images.shape
    if image_size == 0 or (height, width) == (image_size, image_size):
        written = create_image_file(path, images.shape)
        written[:] = images
        return written
    written = create_image_file(path, (count, channels, image_size, image_size))
    size = (image_size, image_size)

    def resize(row: int) -> None:
        # Pillow's 8-bit resize is integer arithmetic: the same bytes on every machine.
        for channel in range(channels):
            plane = Image.fromarray(images[row, channel])
            written[row, channel] = np.asarray(plane.resize(size, Image.Resampling.BILINEAR))

    thread_map(resize, range(count))
    return written


def split_without_official_test(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Order rows so that a fixed stratified 80 % come first, the training set.

    Parameters
    ----------
    labels : NDArray[np.int64]
        (N,).

    Returns
    -------
    order : NDArray[np.int64]
        (N,) row numbers, training rows first.
    train_size : int
        Number of training rows.
    """
    # A constant seed: this stands in for an official split, so it is part of the dataset.
    generator = np.random.default_rng(80_20)
    in_test = np.zeros(len(labels), dtype=bool)
    # All classes in one pass: a search for each would take minutes with many thousand of them.
    ascending = np.argsort(labels, kind="stable")
    starts = np.unique(labels[ascending], return_index=True)[1]
    for members in np.split(ascending, starts[1:]) if len(labels) else ():
        rows = generator.permutation(members)
        in_test[rows[: round(0.2 * len(rows))]] = True
    order = np.concatenate([np.flatnonzero(~in_test), np.flatnonzero(in_test)])
    return order, int((~in_test).sum())
