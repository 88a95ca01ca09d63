"""Pascal VOC 2007 and 2012: 20 classes, several a picture, and masks for some of the pictures.

With the annotated test set of 2007 on disk, it is the test set and all else (trainval of both
years) is the training set; without it `val` of the newest year is the test set. The official
lists for detection (`Main`) and for segmentation are joined.

A class is present where the annotation has an object of it, *difficult* ones included: leaving
these out of positives and negatives alike, as the challenge's own scoring does, would need a
third state of a label. The main class is that of the largest box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from data.annotated import IGNORE, RawAnnotated, create_masks, resize_masks
from data.decode import decode_images, open_image
from data.raw import thread_map
from data.spec import DataError
from data.stamps import files_below, stamp_of
from data.standard_places import find_folder
from data.text_files import read_regular, read_user_text

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
DEFAULT_SIZE = 64
_LARGEST = 2**20  # bytes of one picture's annotation
_YEARS = ("2007", "2012")
_FOLDERS = ("ImageSets", "Annotations", "JPEGImages", "SegmentationClass")


@dataclass(frozen=True)
class _Picture:
    """Where a picture's files lie."""

    image: Path
    annotation: Path
    mask: Path


def voc(data_dir: Path | None, image_size: int, target: Path) -> RawAnnotated:
    """Read Pascal VOC.

    Parameters
    ----------
    data_dir : Path | None
        Folder that holds, or is, `VOCdevkit`; None for the standard places.
    image_size : int
        Side to which the whole picture is resized, its shape not kept; 0 for 64.
    target : Path
        The .npy file to create.

    Returns
    -------
    raw : RawAnnotated
        RGB images with classes present, and masks where there are any.

    Raises
    ------
    DataError
        If the files are not found, or one is unreadable or not as described; names it.
    """
    train, test = _parts(_root(data_dir))
    pictures, size = train + test, image_size or DEFAULT_SIZE
    notes = [_read_annotation(picture.annotation) for picture in pictures]
    # Boxes and masks are in the pixels as they are stored, whatever EXIF data says.
    pictured = decode_images(
        [picture.image for picture in pictures], size, target, colour=True, turn=False
    )
    masked = np.array([picture.mask.is_file() for picture in pictures])
    masks = _read_masks(pictures, masked, size, target) if masked.any() else None
    return RawAnnotated(
        pictured.images,
        np.array([main for main, _ in notes], dtype=np.int64),
        len(train),
        CLASSES,
        presence=np.stack([present for _, present in notes]),
        masks=masks,
        notes=pictured.notes,
        masked=None if masked.all() or masks is None else masked,
    )


def list_stamp(data_dir: Path | None) -> str:
    """Summarise lists, annotations and pictures, so that a change of files gives another summary.

    Raises
    ------
    DataError
        If the data is not found.
    """
    root = _root(data_dir)
    years = [root / f"VOCdevkit/VOC{year}" for year in _YEARS]
    return stamp_of(root, files_below(*(year / folder for year in years for folder in _FOLDERS)))


def _root(data_dir: Path | None) -> Path:
    if data_dir is not None and data_dir.name == "VOCdevkit":
        data_dir = data_dir.parent
    return find_folder("voc", data_dir)


def _parts(root: Path) -> tuple[list[_Picture], list[_Picture]]:
    """Return training and test pictures, disjoint."""
    years = [year for year in _YEARS if (root / f"VOCdevkit/VOC{year}/Annotations").is_dir()]
    if _tested(root):
        trained, tested = [(year, "trainval") for year in years], ("2007", "test")
    else:
        trained = [(year, "trainval") for year in years[:-1]] + [(years[-1], "train")]
        tested = (years[-1], "val")
    test = _listed(root, *tested)
    seen = set(test)
    train = []
    for year, part in trained:
        train += [picture for picture in _listed(root, year, part) if picture not in seen]
    if not train or not test:
        raise DataError(
            f"voc: the lists of pictures in {root / 'VOCdevkit'} name {len(train)} training and "
            f"{len(test)} test pictures; unpack the archive again."
        )
    return train, test


def _tested(root: Path) -> bool:
    """Whether the test set of 2007 is here; a list without annotations is none."""
    folder = root / "VOCdevkit" / "VOC2007"
    listed = folder / "ImageSets" / "Main" / "test.txt"
    names = read_user_text(listed).split() if listed.is_file() else []
    return any((folder / "Annotations" / f"{name}.xml").is_file() for name in names[:1])


def _listed(root: Path, year: str, part: str) -> list[_Picture]:
    """Return the pictures of one official list, those of detection and segmentation joined."""
    from torchvision.datasets import VOCDetection, VOCSegmentation

    folder = root / "VOCdevkit" / f"VOC{year}"
    paths: list[str] = []
    try:
        paths += VOCDetection(root, year, part).images
        if (folder / "ImageSets" / "Segmentation" / f"{part}.txt").is_file():
            paths += VOCSegmentation(root, year, part).images
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"voc: cannot read the list {part} of {folder} ({error}); unpack the archive again."
        ) from error
    names = sorted({Path(path).stem for path in paths} - {""})
    return [
        _Picture(
            folder / "JPEGImages" / f"{name}.jpg",
            folder / "Annotations" / f"{name}.xml",
            folder / "SegmentationClass" / f"{name}.png",
        )
        for name in names
    ]


def _read_annotation(path: Path) -> tuple[int, NDArray[np.uint8]]:
    """Return the main class and the classes present, (20,)."""
    present = np.zeros(len(CLASSES), dtype=np.uint8)
    main, largest = -1, -1.0
    try:
        # Objects only, and not the parts of their bodies that some of them have.
        for item in ElementTree.fromstring(read_regular(path, _LARGEST)).findall("object"):
            label = CLASSES.index((item.findtext("name") or "").strip())
            left, top, right, bottom = (
                float(item.findtext(f"bndbox/{side}") or "")
                for side in ("xmin", "ymin", "xmax", "ymax")
            )
            if not all(map(math.isfinite, (left, top, right, bottom))):
                raise ValueError("a side of a box is not finite")
            present[label] = 1
            area = (right - left) * (bottom - top)
            if area > largest:
                main, largest = label, area
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise DataError(
            f"voc: {path} is no annotation with objects of the {len(CLASSES)} classes and their "
            f"boxes ({error}); unpack the archive again."
        ) from error
    if main < 0:
        raise DataError(f"voc: {path} has no object; unpack the archive again.")
    return main, present


def _read_masks(
    pictures: list[_Picture], masked: NDArray[np.bool_], size: int, target: Path
) -> NDArray[np.uint8]:
    masks = create_masks(target, len(pictures), size, IGNORE)

    def read(row: int) -> None:
        path = pictures[row].mask
        try:
            with open_image(path) as image:
                mode, values = image.mode, np.asarray(image)
            with open_image(pictures[row].image) as image:
                size_of_picture = image.size
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"voc: cannot read the mask {path} ({error}).") from error
        if values.shape[1::-1] != size_of_picture:
            raise DataError(
                f"voc: the mask {path} has {values.shape[1]}x{values.shape[0]} pixels and its "
                f"picture {size_of_picture[0]}x{size_of_picture[1]}; unpack the archive again."
            )
        # In a palette image the numbers are the classes; 255 is the border of objects.
        wrong = values[(values > len(CLASSES)) & (values != IGNORE)]
        if mode not in ("P", "L") or wrong.size:
            raise DataError(
                f"voc: {path} is no mask of class numbers 0 to {len(CLASSES)} and {IGNORE} (mode "
                f"{mode}, {wrong.size} other values); unpack the archive again."
            )
        masks[row] = resize_masks(values, size)

    thread_map(read, [int(row) for row in np.flatnonzero(masked)])
    return masks
