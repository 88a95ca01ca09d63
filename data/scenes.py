"""Scenes of one to four small pictures: labels, masks and captions without a download.

A scene is a flat grey canvas of 64x64 pixels with items of different classes, cut out of
Fashion-MNIST's images (scikit-learn's digits where those are not on the machine). It carries the
classes present (multi-label), a pixel mask (segmentation), and a caption made from the labels
(text), whose class is that of the largest item. A function of its seed and the source's images
only: integer arithmetic throughout, in numbered blocks with one random stream each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.annotated import RawAnnotated, create_masks, resize_masks
from data.captions import scene_captions
from data.raw import write_array
from data.scene_items import Items, load_items
from data.spec import DataError

CANVAS = 64
MAX_ITEMS = 4
TRAIN_SCENES, TEST_SCENES = 12_000, 2_000
BLOCK = 1_000
"""Scenes drawn from one random stream; any number of scenes begins with the same ones."""

_SMALLEST, _LARGEST = 17, 34  # pixels, 0.6 to 1.2 times the 28 of an item's image
_THRESHOLD = 24  # darker pixels of an item's image are its background
_DARKEST, _LIGHTEST = 32, 96  # the canvas
_JITTER = 5  # pixels an item may lie off the middle of its quarter
# Seeds of the random streams: what a scene is for decides which it is drawn from.
STREAMS = {"train": 6_400, "test": 6_401, "public": 6_402}


@dataclass(frozen=True, eq=False)
class Scenes:
    """Scenes as arrays.

    Attributes
    ----------
    images : NDArray[np.uint8]
        (N, 64, 64).
    masks : NDArray[np.uint8]
        (N, 64, 64) 0 background, 1 + c a pixel of an item of class c.
    presence : NDArray[np.uint8]
        (N, C) 1 where a class is in the scene.
    labels : NDArray[np.int64]
        (N,) class of the item with the most pixels.
    captions : list[str]
        (N,).
    rows : NDArray[np.int64]
        (N, 4) row of the source that each item is from; -1 where there are fewer items.
    """

    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    presence: NDArray[np.uint8]
    labels: NDArray[np.int64]
    captions: list[str]
    rows: NDArray[np.int64]


def scenes(data_dir: Path | None, image_size: int, target: Path) -> RawAnnotated:
    """Make the data set `scenes`: 12,000 training and 2,000 test scenes.

    Training scenes are made of official training images, test scenes of official test images.

    Parameters
    ----------
    data_dir : Path | None
        Where Fashion-MNIST may lie.
    image_size : int
        Side to resize to (images bilinear, masks nearest), 0 for 64.
    target : Path
        The .npy file to create.

    Returns
    -------
    raw : RawAnnotated
        With classes present, masks and captions.
    """
    items = load_items(data_dir, target.parent)
    counts = {"train": TRAIN_SCENES, "test": TEST_SCENES}
    parts = [draw_scenes(items, stream, count) for stream, count in counts.items()]
    size = image_size or CANVAS
    images = write_array(np.concatenate([p.images for p in parts])[:, None], size, target)
    masks = create_masks(target, len(images), size, 0)
    masks[:] = resize_masks(np.concatenate([part.masks for part in parts]), size)
    return RawAnnotated(
        images,
        np.concatenate([part.labels for part in parts]),
        TRAIN_SCENES,
        items.class_names,
        presence=np.concatenate([part.presence for part in parts]),
        masks=masks,
        captions=[caption for part in parts for caption in part.captions],
        source=items.source,
    )


def draw_scenes(
    items: Items, stream: str, count: int, excluded: NDArray[np.int64] | None = None
) -> Scenes:
    """Draw scenes for one purpose.

    Parameters
    ----------
    items : Items
        What they are made of.
    stream : str
        "train", "test" (made of official test images) or "public".
    count : int
        Number of scenes.
    excluded : ndarray, optional
        Rows of `items` that no scene may show.

    Returns
    -------
    scenes : Scenes
        The first `count` of the stream, whatever `count` is.

    Raises
    ------
    DataError
        If nothing is left of a class.
    """
    tested = stream == "test"
    rows = np.arange(items.train_size, len(items.labels)) if tested else np.arange(items.train_size)
    if excluded is not None and len(excluded):
        rows = np.setdiff1d(rows, excluded)
        gone = sorted(set(range(len(items.class_names))) - set(items.labels[rows].tolist()))
        if gone:
            raise DataError(
                f"public-dataset=scenes: clients test on all pictures of {items.source}'s class "
                f"{items.class_names[gone[0]]}; set public-overlap=allowed, test-split=global, or "
                "another public-dataset."
            )
    blocks = [
        _draw_block(items, rows, np.random.default_rng([STREAMS[stream], block]))
        for block in range(-(-count // BLOCK))
    ]
    return Scenes(
        np.concatenate([block.images for block in blocks])[:count],
        np.concatenate([block.masks for block in blocks])[:count],
        np.concatenate([block.presence for block in blocks])[:count],
        np.concatenate([block.labels for block in blocks])[:count],
        [caption for block in blocks for caption in block.captions][:count],
        np.concatenate([block.rows for block in blocks])[:count],
    )


def _draw_block(items: Items, pool: NDArray[np.int64], generator: np.random.Generator) -> Scenes:
    count = 1 + np.floor(generator.random(BLOCK) * MAX_ITEMS).astype(np.int64)
    used = np.arange(MAX_ITEMS) < count[:, None]  # (B, 4)
    # Different classes in one scene, so that the largest class is the largest item.
    classes = np.argsort(generator.random((BLOCK, len(items.class_names))), axis=1)[:, :MAX_ITEMS]
    rows = _choose_rows(items.labels, pool, classes, generator.random((BLOCK, MAX_ITEMS)))
    span = _LARGEST - _SMALLEST + 1
    sizes = _SMALLEST + np.floor(generator.random((BLOCK, MAX_ITEMS)) * span).astype(np.int64)
    corners = _place(count, sizes, generator)
    greys = _DARKEST + np.floor(generator.random(BLOCK) * (_LIGHTEST - _DARKEST + 1))
    images, masks, owner = _paint(
        items.images, rows, sizes, corners, used, classes, greys.astype(np.uint8)
    )
    flat = owner.reshape(BLOCK, -1)
    slots = [np.count_nonzero(flat == 1 + slot, axis=1) for slot in range(MAX_ITEMS)]
    areas = np.stack(slots, axis=1).astype(np.int64)
    largest = areas.argmax(axis=1)
    visible = areas > 0
    presence = np.zeros((BLOCK, len(items.class_names)), dtype=np.uint8)
    scene, slot = np.nonzero(visible)
    presence[scene, classes[scene, slot]] = 1
    words = scene_captions(items.source, classes, areas, generator)
    return Scenes(
        images,
        masks,
        presence,
        classes[np.arange(BLOCK), largest],
        words,
        np.where(visible, rows, -1),
    )


def _choose_rows(
    labels: NDArray[np.int64],
    pool: NDArray[np.int64],
    classes: NDArray[np.int64],
    draws: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Pick for every item (B, 4) one row of `pool` that has its class."""
    mine = labels[pool]
    by_class = pool[np.argsort(mine, kind="stable")]
    counts = np.bincount(mine, minlength=int(labels.max()) + 1)
    starts = np.cumsum(counts) - counts
    chosen: NDArray[np.int64] = starts[classes] + np.floor(draws * counts[classes]).astype(np.int64)
    return by_class[chosen]


def _place(
    count: NDArray[np.int64], sizes: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return the upper left corners (B, 4, 2): a lone item anywhere, others in own quarters."""
    quarters = np.argsort(generator.random((BLOCK, MAX_ITEMS)), axis=1)
    middles = CANVAS // 4 + CANVAS // 2 * np.stack([quarters // 2, quarters % 2], axis=-1)
    draws = generator.random((BLOCK, MAX_ITEMS, 2))
    shifted = middles + np.floor(draws * (2 * _JITTER + 1)).astype(np.int64) - _JITTER
    room = CANVAS - sizes[..., None]
    quartered = np.clip(shifted - sizes[..., None] // 2, 0, room)
    anywhere = np.floor(draws * (room + 1)).astype(np.int64)
    return np.where((count == 1)[:, None, None], anywhere, quartered)


def _paint(
    pictures: NDArray[np.uint8],
    rows: NDArray[np.int64],
    sizes: NDArray[np.int64],
    corners: NDArray[np.int64],
    used: NDArray[np.bool_],
    classes: NDArray[np.int64],
    greys: NDArray[np.uint8],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Paint items over each other; returns pixels, masks, and each pixel's item, 1..4."""
    images = np.broadcast_to(greys[:, None, None], (BLOCK, CANVAS, CANVAS)).copy()
    masks, owner = np.zeros_like(images), np.zeros_like(images)
    for slot in range(MAX_ITEMS):
        for size in range(_SMALLEST, _LARGEST + 1):
            scene = np.flatnonzero(used[:, slot] & (sizes[:, slot] == size))
            item = resize_items(pictures[rows[scene, slot]], size)
            which, down, right = np.nonzero(item > _THRESHOLD)
            place = (
                scene[which],
                corners[scene[which], slot, 0] + down,
                corners[scene[which], slot, 1] + right,
            )
            images[place] = item[which, down, right]
            masks[place] = 1 + classes[scene[which], slot]
            owner[place] = slot + 1
    return images, masks, owner


def resize_items(pictures: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Resize (n, H, H) pictures to (n, size, size), bilinear, in whole numbers.

    Whole numbers give the same bytes on every machine, which no float product promises.
    """
    side = pictures.shape[-1]
    # Middle of a new pixel in 1/(2 size) of an old one, counted from the middle of the first.
    middle = np.clip((2 * np.arange(size) + 1) * side - size, 0, 2 * size * (side - 1))
    low, part = np.divmod(middle, 2 * size)
    low, part = low.astype(np.int64), part.astype(np.int32)
    high = np.minimum(low + 1, side - 1)
    wide = pictures.astype(np.int32)
    tall = wide[:, low] * (2 * size - part)[:, None] + wide[:, high] * part[:, None]
    both = tall[:, :, low] * (2 * size - part) + tall[:, :, high] * part
    scale = 4 * size * size
    resized: NDArray[np.uint8] = ((both + scale // 2) // scale).astype(np.uint8)
    return resized
