"""Image files of any kind, decoded into one memory-mapped array."""

from __future__ import annotations

import io
import stat
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from data.picture import GRAYSCALE_MODES, as_seen, seen_size
from data.raw import create_image_file, thread_map
from data.spec import DataError

# Not opened: what runs another program or Windows only (PostScript, metafiles), and containers of
# which Pillow knows the name but not the content.
_NOT_OPENED = frozenset(("EPS", "WMF", "PDF", "MPEG", "BUFR", "GRIB", "HDF5"))
# What range such values have is not in the file: a scan of 12 bits in 16 would turn black, and
# Pillow itself clips them to 255, which turns an image white.
_DEEP_MODES = ("I", "F")
# Decoders raise all of these on damaged files.
_DAMAGED = (
    *(OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, ArithmeticError),
    *(struct.error, Image.DecompressionBombError),
)


@dataclass(frozen=True)
class Encoded:
    """An image file that a table holds.

    Attributes
    ----------
    owner : str
        Where it is from, for messages.
    content : bytes, optional
        The file itself.
    path : Path, optional
        Where it lies, if the table holds no more.
    """

    owner: str
    content: bytes | None = None
    path: Path | None = None

    def __str__(self) -> str:
        return self.owner if self.path is None else f"{self.path} ({self.owner})"


Source = Path | Encoded
"""Where an image file is read from."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Decoded images.

    Attributes
    ----------
    images : NDArray[np.uint8]
        (N, C, H, W), one channel if every image is grayscale.
    notes : tuple of str
        To how many of them something had to be done so that they look as a person sees them.
    """

    images: NDArray[np.uint8]
    notes: tuple[str, ...]


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


def open_image(path: Source) -> Image.Image:
    """Open an image file without decoding it; the caller closes it.

    Raises
    ------
    DataError
        If it is no regular file (a pipe would never end), or no image.
    """
    file = path.path if isinstance(path, Encoded) else path
    try:
        if file is None:
            assert isinstance(path, Encoded)
            assert path.content is not None, "an image has bytes where it has no path"
            return Image.open(io.BytesIO(path.content), formats=image_formats())
        if stat.S_ISREG(file.stat().st_mode):
            return Image.open(file, formats=image_formats())
    except UnidentifiedImageError as error:
        raise unreadable(path, "not an image, or cut off") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{path} is too large an image ({error}); scale it down.") from error
    except _DAMAGED as error:
        raise unreadable(path, error) from error
    raise unreadable(path, "no regular file")


def decode_images(
    paths: Sequence[Source],
    image_size: int,
    target: Path,
    colour: bool = False,
    turn: bool = True,
) -> Pictures:
    """Decode files into one mapped array; see `data.picture` for how an image is seen.

    Parameters
    ----------
    paths : Sequence[Path | Encoded]
        (N,) image files.
    image_size : int
        Side in pixels to resize to, 0 if they are already alike and square.
    target : Path
        The .npy file to create.
    colour : bool (default: False)
        RGB even where every image is grayscale.
    turn : bool (default: True)
        See `picture.as_seen`.

    Returns
    -------
    pictures : Pictures
        In the order of `paths`.

    Raises
    ------
    DataError
        If a file cannot be read, or sizes differ and none is given.
    """
    # Headers first: channels and size must be known before the array can be made.
    headers = thread_map(_header, paths)
    gray = not colour and all(mode in GRAYSCALE_MODES for mode, _ in headers)
    size = (image_size, image_size) if image_size else _common_size(paths, headers)
    images = create_image_file(target, (len(paths), 1 if gray else 3, size[1], size[0]))

    def decode(row: int) -> list[str]:
        with open_image(paths[row]) as image:
            try:
                picture, remarks = as_seen(image, gray=gray, turn=turn)
            except _DAMAGED as error:
                raise unreadable(paths[row], error) from error
        if picture.size != size:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
        images[row] = pixels if gray else pixels.transpose(2, 0, 1)
        return remarks

    counts = Counter(
        remark for remarks in thread_map(decode, range(len(paths))) for remark in remarks
    )
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Pictures(images, tuple(f"{count:,} images {remark}" for remark, count in order))


def _header(path: Source) -> tuple[str, tuple[int, int]]:
    """Return an image file's Pillow mode and (width, height)."""
    with open_image(path) as image:
        mode = image.mode
        try:
            size = seen_size(image)
        except _DAMAGED as error:
            raise unreadable(path, error) from error
    if mode.startswith(_DEEP_MODES):
        raise DataError(
            f"{path} has more than 8 bits a pixel (Pillow mode {mode}); save it as 8-bit "
            "grayscale or RGB, scaled as your task needs."
        )
    return mode, size


def unreadable(path: Source, reason: object) -> DataError:
    """Compose the error for an image file that cannot be read."""
    return DataError(f"Cannot read the image {path} ({reason}); replace or delete the file.")


def _common_size(
    paths: Sequence[Source], headers: list[tuple[str, tuple[int, int]]]
) -> tuple[int, int]:
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
