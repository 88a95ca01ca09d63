"""Image files of any kind, decoded into one memory-mapped array."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from data.raw import create_image_file, thread_map
from data.spec import DataError

# Not opened: what runs another program or Windows only (PostScript, metafiles), what is stored
# elsewhere, and containers of which Pillow knows the name but not the content.
_NOT_OPENED = frozenset(("EPS", "WMF", "PDF", "MPEG", "BUFR", "GRIB", "HDF5"))

_GRAYSCALE_MODES = frozenset({"1", "L", "LA", "La"})
# Pillow clips these to 255 when converting, which would silently turn an image white.
_DEEP_MODES = ("I", "F")


@lru_cache(maxsize=1)
def image_formats() -> tuple[str, ...]:
    """Return the formats that are opened, by Pillow's names."""
    Image.init()
    return tuple(sorted(set(Image.OPEN) - _NOT_OPENED))


@lru_cache(maxsize=1)
def image_suffixes() -> frozenset[str]:
    """Return the suffixes of files that are taken for images, in lower case."""
    known = image_formats()
    return frozenset(s for s, name in Image.registered_extensions().items() if name in known)


def decode_images(
    paths: list[Path], image_size: int, target: Path, colour: bool = False
) -> NDArray[np.uint8]:
    """Decode files into one mapped array.

    Parameters
    ----------
    paths : list[Path]
        (N,) image files.
    image_size : int
        Side in pixels to resize to, 0 if they are already alike and square.
    target : Path
        The .npy file to create.
    colour : bool (default: False)
        RGB even where every image is grayscale.

    Returns
    -------
    images : NDArray[np.uint8]
        (N, C, H, W), one channel if every image is grayscale.

    Raises
    ------
    DataError
        If a file cannot be read, or sizes differ and none is given.
    """
    # Headers first: channels and size must be known before the array can be made.
    headers = thread_map(_header, paths)
    gray = not colour and all(mode in _GRAYSCALE_MODES for mode, _ in headers)
    size = (image_size, image_size) if image_size else _common_size(paths, headers)
    images = create_image_file(target, (len(paths), 1 if gray else 3, size[1], size[0]))

    def decode(row: int) -> None:
        try:
            with Image.open(paths[row]) as image:
                picture = image.convert("L" if gray else "RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise _unreadable(paths[row], error) from error
        if picture.size != size:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
        images[row] = pixels if gray else pixels.transpose(2, 0, 1)

    thread_map(decode, range(len(paths)))
    return images


def _header(path: Path) -> tuple[str, tuple[int, int]]:
    """Return an image file's Pillow mode and (width, height)."""
    try:
        with Image.open(path) as image:
            mode, size = image.mode, image.size
    except UnidentifiedImageError as error:
        raise _unreadable(path, "not an image, or cut off") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unreadable(path, error) from error
    if mode.startswith(_DEEP_MODES):
        raise DataError(
            f"{path} has more than 8 bits a pixel (Pillow mode {mode}); save it as 8-bit "
            "grayscale or RGB, scaled as your task needs."
        )
    return mode, size


def _unreadable(path: Path, reason: object) -> DataError:
    return DataError(f"Cannot read the image {path} ({reason}); replace or delete the file.")


def _common_size(paths: list[Path], headers: list[tuple[str, tuple[int, int]]]) -> tuple[int, int]:
    first = headers[0][1]
    for path, (_, size) in zip(paths, headers, strict=True):
        if size != first:
            raise DataError(
                f"Images differ in size: {paths[0]} is {first[0]}x{first[1]}, {path} is "
                f"{size[0]}x{size[1]}; set one for all, for example image-size={min(first)}."
            )
    if first[0] != first[1]:
        raise DataError(
            f"Images must be square and {paths[0]} is {first[0]}x{first[1]}; set a side to "
            f"resize to, for example image-size={min(first)}."
        )
    return first
