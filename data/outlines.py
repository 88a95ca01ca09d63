"""Checks of a COCO file before a library in C sees it: names, sizes, polygons and run lengths.

pycocotools trusts what it is given: a coordinate that is not finite, or run lengths that do not
fill the mask, end the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from data.spec import DataError

_REMEDY = "unpack the archive again, or mend the file"
_MOST_NUMBERS = 200_000  # of one annotation's polygons; COCO's longest has a few thousand


def inside(folder: Path, name: object, source: str) -> Path:
    """Return the path of a file that an annotation names, which must lie in its folder.

    Parameters
    ----------
    folder : Path
        Where the pictures are.
    name : object
        What the annotation file says.
    source : str
        Names that file, for the message.

    Raises
    ------
    DataError
        If it is no relative name, or leads out of the folder.
    """
    # A Windows path knows both kinds of slashes, drives and what is absolute on either system.
    path = PureWindowsPath(name) if isinstance(name, str) else PureWindowsPath()
    if not path.parts or path.anchor or ".." in path.parts or "\0" in str(name):
        raise DataError(
            f"{source} names the picture {str(name)!r:.100}, which is no file in {folder}; "
            f"{_REMEDY}."
        )
    return folder.joinpath(*path.parts)


def check_object(item: Mapping[str, Any], known: Mapping[int, int], source: str) -> None:
    """Refuse an object without a known category and a finite area.

    Raises
    ------
    DataError
        Naming the annotation, the field and its value.
    """
    category: Any = item.get("category_id")
    area: Any = item.get("area")
    if type(category) is not int or category not in known:
        raise _wrong(item, source, "category_id", category, "one of the file's categories")
    if not _finite(area) or area < 0:
        raise _wrong(item, source, "area", area, "a number of at least 0")


def check_outline(
    item: Mapping[str, Any], about: Mapping[str, Any], size: tuple[int, int], source: str
) -> None:
    """Refuse an outline that cannot be one in a picture.

    Parameters
    ----------
    item : Mapping
        An annotation with a `segmentation`: polygons, or run lengths.
    about : Mapping
        What the file says of the picture.
    size : tuple of int
        The picture's own width and height.
    source : str
        Names the file, for the message.

    Raises
    ------
    DataError
        Naming the annotation, what is wrong and what is expected.
    """
    width, height = size
    if (about.get("width"), about.get("height")) != size:
        raise DataError(
            f"{source} says that picture {about.get('id')} has {about.get('width')!r:.40} x "
            f"{about.get('height')!r:.40} pixels, and it has {width} x {height}; {_REMEDY}."
        )
    outline = item.get("segmentation")
    if isinstance(outline, Mapping):
        _check_runs(item, outline, size, source)
        return
    polygons = outline if isinstance(outline, list) else []
    if not polygons or sum(len(p) for p in polygons if isinstance(p, list)) > _MOST_NUMBERS:
        raise _wrong(item, source, "segmentation", outline, "polygons, or run lengths")
    for polygon in polygons:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            raise _wrong(item, source, "polygon", polygon, "pairs of x and y, three at least")
        for place, value in enumerate(polygon):
            side = size[place % 2]
            # Polygons may stand out a little; what is far outside is no outline.
            if not _finite(value) or not -side <= value <= 2 * side:
                raise _wrong(item, source, "coordinate", value, f"a number from 0 to {side}")


def _check_runs(
    item: Mapping[str, Any], runs: Mapping[str, Any], size: tuple[int, int], source: str
) -> None:
    width, height = size
    if runs.get("size") != [height, width]:
        expected = f"[{height}, {width}], the picture's"
        raise _wrong(item, source, "size of the run lengths", runs.get("size"), expected)
    counts: Any = runs.get("counts")
    lengths: Any = _unpacked(counts) if isinstance(counts, str) else counts
    whole = isinstance(lengths, list) and all(type(n) is int and n >= 0 for n in lengths)
    if not whole or sum(lengths) != width * height:
        expected = f"run lengths that add up to {width * height} pixels"
        raise _wrong(item, source, "counts", counts, expected)


def _unpacked(text: str) -> list[int]:
    """Read COCO's compressed run lengths: 5 bits a character, each from the third on a difference.

    A broken text gives a number below 0, which no run has.
    """
    lengths: list[int] = []
    value, shift = 0, 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 35:
            return [-1]
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value, shift = 0, 0
    return lengths if shift == 0 else [-1]


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e15 and math.isfinite(value)


def _wrong(
    item: Mapping[str, Any], source: str, name: str, value: object, expected: str
) -> DataError:
    shown = repr(value[:8] if isinstance(value, Sequence) else value)[:100]
    return DataError(
        f"{source}, annotation {item.get('id')!r:.40}: {name} is {shown}, expected {expected}; "
        f"{_REMEDY}."
    )
