"""COCO 2017: 80 classes, several a picture, masks, and captions where their file is there.

`train2017` is the training set and `val2017` the test set; with one of them alone a fixed
stratified 20 % of it are the test set. Pictures without an annotated object are left out, and, said
in a note, annotations of pictures that the file does not list. A class is present where an object
or a crowd of it is; in masks, crowds are ignored and smaller objects lie over larger ones. The main
class is that of the largest object. Of a picture's captions the one with the lowest number is
taken.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.annotated import IGNORE, RawAnnotated, create_masks, resize_masks
from data.decode import decode_images, open_image
from data.folder_tree import listed
from data.outlines import check_object, check_outline, inside
from data.raw import split_without_official_test
from data.spec import DataError
from data.stamps import files_below, stamp_of
from data.standard_places import find_folder

DEFAULT_SIZE = 64
# What pycocotools and the JSON reader raise on a file of another kind.
_NOT_COCO = (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
             RecursionError)  # fmt: skip
_PARTS = ("train2017", "val2017")


@dataclass(frozen=True, eq=False)
class _Picture:
    """One picture with what is annotated in it."""

    path: Path
    objects: list[dict[str, Any]]
    index: Any  # pycocotools' COCO, which turns an annotation into a mask
    about: dict[str, Any]  # what the file says of the picture
    source: str  # names the file, for messages
    caption: str | None


def coco(data_dir: Path | None, image_size: int, target: Path) -> RawAnnotated:
    """Read COCO 2017 through pycocotools.

    Parameters
    ----------
    data_dir : Path | None
        Folder with `annotations/`, `train2017/` and `val2017/`; None for the standard places.
    image_size : int
        Side to which the whole picture is resized, its shape not kept; 0 for 64.
    target : Path
        The .npy file to create.

    Returns
    -------
    raw : RawAnnotated
        RGB images with classes present, masks, and captions if there are any.

    Raises
    ------
    DataError
        If the files are not found, or one is unreadable or not as described; names it. Also if
        pycocotools is not installed.
    """
    root, size = find_folder("coco", data_dir), image_size or DEFAULT_SIZE
    held = [part for part in _PARTS if _annotations(root, part).is_file()]
    captioned = all(_captions(root, part).is_file() for part in held)
    opened = [_open(_annotations(root, part)) for part in held]
    names, numbers = _categories(root, held, opened)
    parts = [
        _pictures(root, part, index, captioned, numbers)
        for part, index in zip(held, opened, strict=True)
    ]
    pictures, train_size = [picture for part in parts for picture in part], len(parts[0])
    if len(parts) == 1:
        mains = np.array([_main(picture, numbers) for picture in pictures], dtype=np.int64)
        order, train_size = split_without_official_test(mains)
        pictures = [pictures[row] for row in order]
    # Boxes and masks are in the pixels as they are stored, whatever EXIF data says.
    pictured = decode_images(
        [picture.path for picture in pictures], size, target, colour=True, turn=False
    )
    masks = create_masks(target, len(pictures), size, 0)
    presence = np.zeros((len(pictures), len(names)), dtype=np.uint8)
    for row, picture in enumerate(pictures):
        _paint(picture, numbers, masks[row])
        presence[row, [numbers[item["category_id"]] for item in picture.objects]] = 1
    return RawAnnotated(
        pictured.images,
        np.array([_main(picture, numbers) for picture in pictures], dtype=np.int64),
        train_size,
        names,
        presence=presence,
        masks=masks,
        notes=pictured.notes + _unlisted(root, held, opened),
        captions=[picture.caption or "" for picture in pictures] if captioned else None,
    )


def annotation_stamp(data_dir: Path | None) -> str:
    """Summarise annotations and pictures, so that a change of files gives another summary.

    Raises
    ------
    DataError
        If the data is not found.
    """
    root = find_folder("coco", data_dir)
    files = [file for part in _PARTS for file in (_annotations(root, part), _captions(root, part))]
    return stamp_of(root, [*files, *files_below(*(root / part for part in _PARTS))])


def _annotations(root: Path, part: str) -> Path:
    return root / "annotations" / f"instances_{part}.json"


def _captions(root: Path, part: str) -> Path:
    return root / "annotations" / f"captions_{part}.json"


def _open(path: Path) -> Any:
    """Read an annotation file; pycocotools prints on its way, which is no output of ours."""
    try:
        reader = importlib.import_module("pycocotools.coco").COCO
    except ModuleNotFoundError as error:
        raise DataError("dataset=coco needs pycocotools: pip install 'wildflower[coco]'") from error
    if not path.is_file():
        raise DataError(f"coco: {path} is no regular file; unpack the archive again.")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return reader(str(path))
    except _NOT_COCO as error:
        raise DataError(
            f"coco: {path} is no COCO annotation file ({type(error).__name__}: {error}); unpack "
            "the archive again."
        ) from error


def _categories(
    root: Path, parts: list[str], opened: list[Any]
) -> tuple[tuple[str, ...], dict[int, int]]:
    """Return class names by ascending category id, and the label of each id."""
    tables = [{n: index.cats[n].get("name") for n in index.cats} for index in opened]
    for part, table in zip(parts, tables, strict=True):
        if not all(type(n) is int and isinstance(name, str) for n, name in table.items()):
            raise DataError(
                f"coco: {_annotations(root, part)} has categories without a number and a name; "
                "unpack the archive again."
            )
    if any(table != tables[0] for table in tables):
        raise DataError(
            f"coco: the annotation files of {' and '.join(parts)} in {root} have unlike "
            "categories; unpack the archive again."
        )
    ids = sorted(tables[0])
    return tuple(tables[0][number] for number in ids), {n: label for label, n in enumerate(ids)}


def _pictures(
    root: Path, part: str, index: Any, captioned: bool, known: dict[int, int]
) -> list[_Picture]:
    source = f"coco: {_annotations(root, part)}"
    spoken = _open(_captions(root, part)) if captioned else None
    pictures = []
    for number in sorted(index.imgs):
        objects = index.imgToAnns.get(number, [])
        if not objects:
            continue
        for item in objects:
            check_object(item, known, source)
        caption = None
        if spoken is not None:
            lines = spoken.imgToAnns.get(number, [])
            if not lines:
                raise DataError(
                    f"coco: {_captions(root, part)} has no caption for picture {number}; unpack "
                    "the archive again, or remove the caption files."
                )
            caption = " ".join(min(lines, key=lambda line: line["id"])["caption"].split())
        about = index.imgs[number]
        path = inside(root / part, about.get("file_name"), source)
        pictures.append(_Picture(path, objects, index, about, source, caption))
    if not pictures:
        raise DataError(f"coco: {_annotations(root, part)} has no picture with an object.")
    return pictures


def _unlisted(root: Path, parts: list[str], opened: list[Any]) -> tuple[str, ...]:
    """Say which annotations belong to no picture of their file."""
    notes = []
    for part, index in zip(parts, opened, strict=True):
        lost = sorted(set(index.imgToAnns) - set(index.imgs))
        if lost:
            number = sum(len(index.imgToAnns[picture]) for picture in lost)
            notes.append(
                f"{_annotations(root, part).name}: {number} annotations are of pictures that it "
                f"does not list ({listed(list(map(str, lost)))}), and left out"
            )
    return tuple(notes)


def _main(picture: _Picture, numbers: dict[int, int]) -> int:
    """Return the label of the largest object; a crowd counts where there is nothing else."""
    largest = max(picture.objects, key=lambda item: (not item.get("iscrowd"), item["area"]))
    return numbers[largest["category_id"]]


def _paint(picture: _Picture, numbers: dict[int, int], mask: Any) -> None:
    """Draw a picture's objects into its mask (S, S), crowds first, then large before small."""
    order = sorted(picture.objects, key=lambda item: (not item.get("iscrowd"), -item["area"]))
    with open_image(picture.path) as image:
        size = image.size
    for item in order:
        check_outline(item, picture.about, size, picture.source)
        try:
            shape = picture.index.annToMask(item)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(
                f"coco: annotation {item.get('id')} of {picture.path} has no usable outline "
                f"({type(error).__name__}: {error}); unpack the archive again."
            ) from error
        value = IGNORE if item.get("iscrowd") else 1 + numbers[item["category_id"]]
        mask[resize_masks(shape, mask.shape[0]) > 0] = value
