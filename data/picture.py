"""A decoded image as a person sees it: upright, in sRGB, opaque, 8 bits.

What a viewer does with a file and a bare decoder does not: it turns the picture as its EXIF data
says, converts its colours from the profile it carries (or the gamma of a PNG) to sRGB, lays
transparent parts over a background, here white, and shows the first frame of several.
"""

from __future__ import annotations

import io
import struct
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps

GRAYSCALE_MODES = frozenset({"1", "L", "LA", "La"})
# Formats whose further frames are pictures; elsewhere they are thumbnails, layers or sizes.
_FRAMES = frozenset({"GIF", "PNG", "WEBP", "TIFF", "AVIF", "FLI", "DCX"})
_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}
# A profile that moves no colour by more than this is sRGB, up to rounding.
_SAME = 2
_DISPLAY_GAMMA = 2.2
_ORIENTATION = 0x0112  # EXIF and TIFF tag; 1 is upright, 5 to 8 lie on a side

TURNED = "turned as their EXIF data says"
FRAMES = "with several frames or pages, of which the first is used"
TRANSPARENT = "with transparent parts, laid over white"
CONVERTED = "converted from their colour profile to sRGB"
UNKNOWN_PROFILE = "with a colour profile that cannot be read, taken as sRGB"
DAMAGED_EXIF = "with EXIF data that cannot be read, not turned"


def as_seen(image: Image.Image, *, gray: bool, turn: bool = True) -> tuple[Image.Image, list[str]]:
    """Decode an opened image.

    Parameters
    ----------
    image : Image.Image
        As `PIL.Image.open` returns it, of at most 8 bits a channel.
    gray : bool
        Whether one channel is wanted.
    turn : bool (default: True)
        Whether to heed EXIF data; not where annotations are in the stored pixels.

    Returns
    -------
    picture : Image.Image
        Mode L or RGB.
    remarks : list of str
        What had to be done, of this module's constants.

    Raises
    ------
    OSError, ValueError, SyntaxError
        If the file is cut off or damaged.
    """
    remarks = []
    if image.format in _FRAMES and getattr(image, "is_animated", False):
        remarks.append(FRAMES)
        image.seek(0)
    # Pillow turns a TIFF while it loads it, and then has forgotten that it did.
    stored = image.getexif().get(_ORIENTATION, 1) if image.format == "TIFF" else 1
    image.load()
    about = dict(image.info)
    upright, turned = _upright(image, stored) if turn else (image, "")
    colours, alpha = _apart(upright)
    managed, profile = _to_srgb(colours, about)
    if alpha is not None:
        white = Image.new(managed.mode, managed.size, "white")
        managed = Image.composite(managed, white, alpha)
        remarks.append(TRANSPARENT)
    remarks += [remark for remark in (turned, profile) if remark]
    return managed.convert("L" if gray else "RGB"), remarks


def seen_size(image: Image.Image) -> tuple[int, int]:
    """Return an opened image's width and height as it is seen, before it is decoded."""
    width, height = image.size
    # Pillow has turned a TIFF's size already; a square's stays.
    if width == height or image.format == "TIFF":
        return width, height
    try:
        sideways = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    except (SyntaxError, ValueError, KeyError, TypeError, struct.error):
        sideways = False  # `as_seen` leaves such an image as it is, and says so
    return (height, width) if sideways else (width, height)


def _upright(image: Image.Image, stored: int) -> tuple[Image.Image, str]:
    try:
        orientation = max(stored, image.getexif().get(_ORIENTATION, 1))
        turned = ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, KeyError, TypeError, struct.error):
        return image, DAMAGED_EXIF
    return turned, TURNED if orientation in range(2, 9) else ""


def _apart(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Return colours in mode L, RGB or CMYK, and the opacity where anything is transparent."""
    base = "L" if image.mode in GRAYSCALE_MODES else "CMYK" if image.mode == "CMYK" else "RGB"
    if not image.has_transparency_data:
        return image.convert(base), None
    straight = image.convert("LA") if image.mode == "La" else image
    whole = straight.convert("RGBA")
    alpha = whole.getchannel("A")
    opaque = alpha.getextrema()[0] == 255
    return whole.convert("RGB").convert(base), None if opaque else alpha


def _to_srgb(image: Image.Image, about: dict[str | tuple[int, int], object]) -> tuple[
    Image.Image, str
]:  # fmt: skip
    profile = about.get("icc_profile")
    if isinstance(profile, bytes) and profile:
        try:
            transform = _transform(profile, image.mode)
        except (ImageCms.PyCMSError, OSError, ValueError):
            return image, UNKNOWN_PROFILE
        if transform is None:
            return image, ""
        converted = transform.apply(image)
        return converted.getchannel(0) if image.mode == "L" else converted, CONVERTED
    gamma = about.get("gamma")
    if not isinstance(gamma, float) or "srgb" in about or not 0.05 < gamma < 20:
        return image, ""
    exponent = 1 / (gamma * _DISPLAY_GAMMA)
    if abs(exponent - 1) < 0.05 or image.mode == "CMYK":
        return image, ""
    levels = [round(255 * (value / 255) ** exponent) for value in range(256)]
    return image.point(levels * len(image.getbands())), CONVERTED


@lru_cache(maxsize=64)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return what turns colours of a profile into sRGB; None where it would change nothing.

    Raises
    ------
    PyCMSError, OSError, ValueError
        If the profile is damaged or of another kind of colours than the image's mode.
    """
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    if source.profile.xcolor_space.strip() != _SPACES[mode]:
        raise ValueError("a profile of other colours")
    target = ImageCms.createProfile("sRGB")
    transform = ImageCms.buildTransform(source, target, mode, "RGB")
    if mode == "CMYK":
        return transform
    probe = _probe(mode)
    before = np.asarray(probe.convert("RGB")).astype(np.int64)
    after = np.asarray(transform.apply(probe)).astype(np.int64)
    return None if np.abs(after - before).max() <= _SAME else transform


def _probe(mode: str) -> Image.Image:
    """Return an image of colours from the whole range: all greys, or a 16x16x16 grid."""
    if mode == "L":
        return Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    steps: NDArray[np.uint8] = np.arange(0, 256, 17, dtype=np.uint8)
    grid = np.stack(np.meshgrid(steps, steps, steps), axis=-1)
    return Image.fromarray(np.ascontiguousarray(grid.reshape(64, 64, 3)))
