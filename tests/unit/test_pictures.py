"""A decoded image has the values that a person sees; each is computed here."""

import io
import os
import struct

import numpy as np
import pytest
from PIL import Image

import data
from data import DataError, DataSpec, load_dataset
from data.decode import decode_images
from data.picture import as_seen

pytestmark = pytest.mark.usefixtures("private_cache")

ORIENTATION = 0x0112
# Rows a b c / d e f, as a viewer shows them for each orientation (EXIF 2.3, 4.6.4).
STORED = np.array([[10, 20, 30], [40, 50, 60]], np.uint8)
SEEN = {
    1: [[10, 20, 30], [40, 50, 60]],
    2: [[30, 20, 10], [60, 50, 40]],
    3: [[60, 50, 40], [30, 20, 10]],
    4: [[40, 50, 60], [10, 20, 30]],
    5: [[10, 40], [20, 50], [30, 60]],
    6: [[40, 10], [50, 20], [60, 30]],
    7: [[60, 30], [50, 20], [40, 10]],
    8: [[30, 60], [20, 50], [10, 40]],
}


def saved(picture, kind="PNG", **options):
    """Return an image file's bytes."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def seen(content, gray=False):
    """Return the pixels (H, W) or (H, W, 3) and the remarks of an image file."""
    with Image.open(io.BytesIO(content)) as image:
        picture, remarks = as_seen(image, gray=gray)
    return np.asarray(picture), remarks


def with_tag(content, tag, before, after):
    """Return a little-endian TIFF's bytes with another value of a tag."""
    entry = struct.pack("<HHI", tag, 3, 1)
    assert content.count(entry + struct.pack("<H", before)) == 1
    return content.replace(entry + struct.pack("<H", before), entry + struct.pack("<H", after))


def colour(content):
    """Return the first pixel as a list."""
    return seen(content)[0][0, 0].tolist()


@pytest.mark.parametrize("orientation", SEEN)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation(kind, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    pixels, remarks = seen(saved(Image.fromarray(STORED), kind, exif=exif, **options), gray=True)
    assert pixels.tolist() == SEEN[orientation]
    assert remarks == ["turned as their EXIF data says"] * (orientation > 1)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_exif_orientation_of_a_photograph(orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    blocks = np.kron(STORED, np.ones((16, 16), np.uint8))
    pixels, _ = seen(saved(Image.fromarray(blocks), "JPEG", exif=exif, quality=100), gray=True)
    assert np.abs(pixels[8::16, 8::16].astype(int) - SEEN[orientation]).max() <= 2


def test_damaged_exif_data_is_said():
    content = saved(Image.fromarray(STORED), exif=b"Exif\0\0XX*\0nonsense")
    pixels, remarks = seen(content, gray=True)
    assert pixels.tolist() == STORED.tolist()
    assert remarks == ["with EXIF data that cannot be read, not turned"]


def test_turned_images_have_the_size_that_is_seen(tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    upright, turned = tmp_path / "a.jpg", tmp_path / "b.jpg"
    Image.new("L", (4, 6)).save(upright)
    Image.new("L", (6, 4)).save(turned, exif=exif)
    with pytest.raises(DataError, match=r"a\.jpg is 4x6"):  # both are 4x6, and not square
        decode_images([upright, turned], 0, tmp_path / "x.npy")
    pictures = decode_images([upright, turned], 8, tmp_path / "x.npy")
    assert pictures.notes == ("1 images turned as their EXIF data says",)
    assert decode_images([turned], 8, tmp_path / "y.npy", turn=False).notes == ()


# Transparency: over white, 200 at half opacity is 200 * 128 / 255 + 255 * 127 / 255 = 227.4.


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("RGBA", (200, 0, 100, 128), [227, 127, 177]),
        ("RGBA", (200, 0, 100, 0), [255, 255, 255]),
        ("RGBA", (200, 0, 100, 255), [200, 0, 100]),
        ("LA", (200, 128), [227, 227, 227]),
    ],
)
def test_transparent_parts_lie_over_white(mode, value, expected):
    pixels, remarks = seen(saved(Image.new(mode, (2, 2), value)))
    assert np.abs(pixels[0, 0].astype(int) - expected).max() <= 1
    assert remarks == ["with transparent parts, laid over white"] * (value[-1] < 255)


def test_premultiplied_alpha_is_divided_out_first():
    # Stored 100 at opacity 128 is the colour 199; over white 199 * 128 / 255 + 127 = 227.
    content = saved(Image.new("RGBA", (2, 2), (100, 0, 50, 128)), "TIFF")
    content = with_tag(content, 338, 2, 1)  # ExtraSamples: associated alpha
    np.testing.assert_allclose(colour(content), [227, 127, 177], atol=2)


def test_a_palette_with_transparency():
    picture = Image.new("P", (2, 1))
    picture.putpalette([200, 0, 100, 10, 20, 30])
    picture.putpixel((1, 0), 1)
    pixels, _ = seen(saved(picture, transparency=b"\x80\xff"))
    np.testing.assert_allclose(pixels[0], [[227, 127, 177], [10, 20, 30]], atol=1)
    pixels, _ = seen(saved(picture, "GIF", transparency=0))
    assert pixels[0].tolist() == [[255, 255, 255], [10, 20, 30]]


@pytest.mark.parametrize(("mode", "value"), [("RGB", (9, 8, 7)), ("L", 9)])
def test_a_colour_that_stands_for_transparency(mode, value):
    assert colour(saved(Image.new(mode, (2, 2), value), transparency=value)) == [255] * 3


def test_bits_greys_and_whites_of_tiff():
    bits = Image.fromarray(np.array([[True, False]]))
    assert seen(saved(bits, "TIFF"), gray=True)[0].tolist() == [[255, 0]]
    assert seen(saved(bits), gray=True)[0].tolist() == [[255, 0]]
    white_is_zero = with_tag(saved(Image.new("L", (2, 2), 55), "TIFF"), 262, 1, 0)
    assert seen(white_is_zero, gray=True)[0][0, 0] == 255 - 55
    four_bits = saved(Image.new("L", (2, 2), 0x55), bits=4)
    assert seen(four_bits, gray=True)[0][0, 0] == 0x55


def test_cmyk_of_a_tiff_and_of_an_inverted_adobe_jpeg():
    # Red = 255 (1 - C) (1 - K), and so on: 255 * (1 - 0.2) * (1 - 0.4) = 122.4.
    picture = Image.new("CMYK", (16, 16), (51, 102, 0, 102))
    expected = [122.4, 91.8, 153]
    np.testing.assert_allclose(colour(saved(picture, "TIFF")), expected, atol=1)
    content = saved(picture, "JPEG", quality=100)
    assert b"Adobe" in content
    np.testing.assert_allclose(colour(content), expected, atol=3)


# Colour profiles, made by hand: a matrix of primaries (adapted to D50) and a gamma.

ADOBE_RGB = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))
SRGB = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410))
WHITE = (0.9642, 1.0, 0.8249)


def fixed(*values):
    return b"".join(struct.pack(">i", round(value * 65536)) for value in values)


def profile(gamma, primaries=None):
    """Return an ICC profile of version 2, of RGB or, without primaries, of grey."""
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256)) + b"\0\0"
    named = b"desc\0\0\0\0" + struct.pack(">I", 5) + b"mine\0" + bytes(78)
    tags = {
        b"desc": named,
        b"cprt": b"text\0\0\0\0none\0",
        b"wtpt": b"XYZ \0\0\0\0" + fixed(*WHITE),
    }
    if primaries is None:
        tags[b"kTRC"] = curve
    else:
        for letter, values in zip((b"r", b"g", b"b"), primaries, strict=True):
            tags[letter + b"XYZ"] = b"XYZ \0\0\0\0" + fixed(*values)
            tags[letter + b"TRC"] = curve
    table, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, short in tags.items():
        content = short + bytes(-len(short) % 4)
        table += name + struct.pack(">II", start + len(body), len(content))
        body += content
    space = b"RGB " if primaries else b"GRAY"
    head = struct.pack(">I4sI4s4s4s", start + len(body), b"none", 0x02100000, b"mntr", space,
                       b"XYZ ")  # fmt: skip
    head += bytes(12) + b"acsp" + bytes(28) + fixed(*WHITE) + bytes(48)
    return head + table + body


def encode(linear):
    """Return sRGB values 0..255 of linear light 0..1 (IEC 61966-2-1)."""
    light = np.clip(linear, 0, 1)
    low, high = 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055
    return 255 * np.where(light <= 0.0031308, low, high)


def test_wide_gamut_colours_become_srgb():
    value = np.array([100, 150, 100])
    xyz = np.array(ADOBE_RGB).T @ (value / 255) ** 2.2
    expected = encode(np.linalg.inv(np.array(SRGB).T) @ xyz)
    assert np.abs(expected - value).max() > 20  # what was wrong without the conversion
    content = saved(Image.new("RGB", (2, 2), tuple(value)), icc_profile=profile(2.2, ADOBE_RGB))
    np.testing.assert_allclose(colour(content), expected, atol=2)
    assert seen(content)[1] == ["converted from their colour profile to sRGB"]


def test_grey_of_another_gamma_becomes_srgb():
    content = saved(Image.new("L", (2, 2), 100), icc_profile=profile(1.0))
    expected = float(encode(np.array(100 / 255)))
    assert seen(content, gray=True)[0][0, 0] == pytest.approx(expected, abs=2)


def test_a_profile_that_is_srgb_changes_no_byte():
    from PIL import ImageCms

    plain = np.random.default_rng(0).integers(0, 256, (20, 20, 3)).astype(np.uint8)
    own = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    pixels, remarks = seen(saved(Image.fromarray(plain), icc_profile=own))
    np.testing.assert_array_equal(pixels, plain)
    assert remarks == []


@pytest.mark.parametrize("broken", [b"not a profile", profile(1.0)])
def test_a_profile_that_cannot_be_used_is_said(broken):
    content = saved(Image.new("RGB", (2, 2), (1, 2, 3)), icc_profile=broken)
    assert colour(content) == [1, 2, 3]
    assert seen(content)[1] == ["with a colour profile that cannot be read, taken as sRGB"]


def test_the_gamma_of_a_png():
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    chunks.add(b"gAMA", struct.pack(">I", 100_000))  # linear light
    content = saved(Image.new("L", (2, 2), 100), pnginfo=chunks)
    assert seen(content, gray=True)[0][0, 0] == round(255 * (100 / 255) ** (1 / 2.2))
    usual = PngInfo()
    usual.add(b"gAMA", struct.pack(">I", 45_455))
    assert seen(saved(Image.new("L", (2, 2), 100), pnginfo=usual), gray=True)[0][0, 0] == 100


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_several(kind):
    first, second = Image.new("RGB", (4, 4), (255, 0, 0)), Image.new("RGB", (4, 4), (0, 0, 255))
    options = {"lossless": True} if kind == "WEBP" else {}
    content = saved(first, kind, save_all=True, append_images=[second], **options)
    pixels, remarks = seen(content)
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert "with several frames or pages, of which the first is used" in remarks


def test_sixteen_bits_a_channel_of_a_colour_png_are_scaled():
    # Pillow cannot write them: one row, 0x1234 0xabcd 0xffff.
    import zlib

    def chunk(name, content):
        whole = name + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    row = b"\0" + bytes.fromhex("1234abcdffff")
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row))
    assert colour(content + chunk(b"IEND", b"")) == [0x12, 0xAB, 0xFF]


# What cannot be done right is refused by name.


def folder_with(tmp_path, name, content):
    for label in ("cat", "dog"):
        (tmp_path / "images" / "train" / label).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "images" / "train" / label / "a.png")
    path = tmp_path / "images" / "train" / "dog" / name
    if content is not None:
        path.write_bytes(content)
    data.clear_memory()
    return path, DataSpec("imagefolder", data_dir=str(tmp_path / "images"), image_size=8)


DEEP = {
    "a 16-bit PNG": ("x.png", saved(Image.fromarray(np.full((8, 8), 999, np.uint16)))),
    "a 16-bit TIFF": ("x.tif", saved(Image.fromarray(np.full((8, 8), 999, np.uint16)), "TIFF")),
    "a 32-bit TIFF": ("x.tif", saved(Image.fromarray(np.full((8, 8), 9, np.int32)), "TIFF")),
    "a float TIFF": ("x.tif", saved(Image.fromarray(np.full((8, 8), 0.5, np.float32)), "TIFF")),
}


@pytest.mark.parametrize(("name", "content"), DEEP.values(), ids=DEEP)
def test_deep_images_are_refused_by_name(tmp_path, name, content):
    path, spec = folder_with(tmp_path, name, content)
    with pytest.raises(DataError, match="has more than 8 bits a pixel") as caught:
        load_dataset(spec)
    assert str(path) in str(caught.value)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_files_that_are_cut_off_are_refused_by_name(tmp_path, kind):
    content = saved(NOISE, kind)
    path, spec = folder_with(tmp_path, "x.jpg", content[: len(content) // 2])
    with pytest.raises(DataError, match="Cannot read the image") as caught:
        load_dataset(spec)
    assert str(path) in str(caught.value)


def test_a_bomb_is_refused_by_name(tmp_path):
    content = bytearray(saved(Image.new("1", (8, 8))))
    content[16:24] = struct.pack(">II", 30_000, 30_000)
    import zlib

    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    path, spec = folder_with(tmp_path, "x.png", bytes(content))
    with pytest.raises(DataError, match=r"too large an image .*900000000 pixels.*scale it down"):
        load_dataset(spec)
    assert path.is_file()


def test_postscript_in_an_images_clothes_is_not_run(tmp_path):
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
    _, spec = folder_with(tmp_path, "x.png", content)
    with pytest.raises(DataError, match=r"x\.png \(not an image"):
        load_dataset(spec)


def test_a_pipe_is_not_waited_for(tmp_path):
    path = tmp_path / "x.png"
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"x\.png \(no regular file\)"):
        decode_images([path], 8, tmp_path / "x.npy")


def test_what_was_done_is_said_with_the_data(tmp_path):
    _, spec = folder_with(tmp_path, "x.png", saved(Image.new("LA", (8, 8), (9, 9))))
    notes = load_dataset(spec).notes
    assert notes[-1] == "1 images with transparent parts, laid over white"
