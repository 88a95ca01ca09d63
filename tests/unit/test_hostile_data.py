"""Annotation and array files that would crash a library, read others' files, or fill the memory."""

import gzip
import json
import os
import struct

import numpy as np
import pytest
from PIL import Image

from data import DataError, load_dataset
from data.outlines import check_outline, inside
from tests.unit.test_voc_coco import (  # noqa: F401 - fixtures
    CLASSES,
    coco_2017,
    half_mask,
    open_set,
    voc_2012,
)

pytestmark = pytest.mark.usefixtures("private_cache", "no_datasets")


def change_coco(root, change):
    """Change the content of the training part's annotation file."""
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def outline(value):
    def change(content):
        content["annotations"][0]["segmentation"] = value

    return change


def field(kind, name, value):
    def change(content):
        content[kind][0][name] = value

    return change


def runs(counts, size=(20, 40)):
    return {"size": list(size), "counts": counts}


NAN, HUGE = float("nan"), 1e30


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (outline([[NAN, 0, 4, 0, 4, 4]]), r"annotation 1: coordinate is nan, expected a number"),
        (outline([[0, HUGE, 4, 0, 4, 4]]), r"coordinate is 1e\+30, expected a number from 0 to 20"),
        (outline([[0, 0, 4, 0, 400, 4]]), r"coordinate is 400, expected a number from 0 to 40"),
        (outline([[0, 0, 4, 0]]), r"polygon is \[0, 0, 4, 0\], expected pairs"),
        (outline([["a"] * 6]), r"coordinate is 'a'"),
        (outline([[0] * 300_000]), r"segmentation is .* expected polygons, or run lengths"),
        (outline([]), r"segmentation is \[\]"),
        (outline(None), r"segmentation is None"),
        (outline(runs([10, 20])), r"counts is \[10, 20\].*add up to 800 pixels"),
        (outline(runs([-10, 810])), r"counts is \[-10, 810\]"),
        (outline(runs("zzzzzzzzzzzzzzzzzzzzz")), r"counts is 'zzz"),
        (
            outline(runs([800], (120_000, 120_000))),
            r"size of the run lengths is \[120000, 120000\]",
        ),
        (
            field("images", "height", 120_000),
            r"picture 7 has 40 x 120000 pixels, and it has 40 x 20",
        ),
        (field("images", "width", None), r"picture 7 has None x 20 pixels"),
        (field("images", "file_name", "../../x.png"), r"names the picture '\.\./\.\./x\.png'"),
        (field("images", "file_name", "/etc/x.png"), r"names the picture '/etc/x\.png'"),
        (field("images", "file_name", "C:\\x.png"), r"no file in .*train2017"),
        (field("images", "file_name", None), r"names the picture 'None'"),
        (field("annotations", "category_id", 99), r"category_id is 99, expected one of"),
        (field("annotations", "category_id", [3]), r"category_id is \[3\]|no COCO annotation file"),
        (field("annotations", "area", NAN), r"area is nan"),
        (field("annotations", "area", "big"), r"area is 'big'"),
        (field("categories", "name", None), r"categories without a number and a name"),
    ],
)
def test_coco_files_are_checked_before_the_library_sees_them(coco_2017, change, expected):  # noqa: F811
    pytest.importorskip("pycocotools")
    path = change_coco(coco_2017, change)
    with pytest.raises(DataError, match=expected) as caught:
        open_set("coco", coco_2017)
    assert str(path) in str(caught.value)


def test_run_lengths_as_pycocotools_packs_them_are_accepted(coco_2017):  # noqa: F811
    mask_tools = pytest.importorskip("pycocotools.mask")
    generator = np.random.default_rng(0)
    for _ in range(20):
        mask = np.asfortranarray(generator.random((20, 40)) < generator.random())
        packed = mask_tools.encode(mask.astype(np.uint8))
        whole = {"size": packed["size"], "counts": packed["counts"].decode()}
        about = {"id": 1, "width": 40, "height": 20}
        check_outline({"id": 1, "segmentation": whole}, about, (40, 20), "file")
    change_coco(coco_2017, outline(whole))
    assert len(open_set("coco", coco_2017)) == 3


def test_names_stay_in_their_folder(tmp_path):
    assert inside(tmp_path, "a/b.png", "file") == tmp_path / "a" / "b.png"
    for name in ("", ".", "..", "a/../../b", "a\\..\\b", "\\\\host\\b", "a\0b", 3):
        with pytest.raises(DataError, match="file names the picture"):
            inside(tmp_path, name, "file")


def test_pipes_in_the_place_of_annotations_are_named(coco_2017, voc_2012):  # noqa: F811
    pytest.importorskip("pycocotools")
    note = voc_2012 / "VOCdevkit" / "VOC2012" / "Annotations" / "a.xml"
    for name, root, path in (("coco", coco_2017, coco_2017 / "train2017" / "7.png"),
                             ("voc", voc_2012, note)):  # fmt: skip
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(DataError, match=rf"{path.name} .*no regular file"):
            open_set(name, root)


def test_boxes_of_voc_are_finite_and_masks_have_their_pictures_size(voc_2012):  # noqa: F811
    folder = voc_2012 / "VOCdevkit" / "VOC2012"
    mask = Image.fromarray(half_mask(1, 2, (44, 20)))
    whole = (folder / "SegmentationClass" / "c.png").read_bytes()
    mask.save(folder / "SegmentationClass" / "c.png")
    with pytest.raises(DataError, match=r"c\.png has 44x20 pixels and its picture 40x20"):
        open_set("voc", voc_2012)
    (folder / "SegmentationClass" / "c.png").write_bytes(whole)
    note = folder / "Annotations" / "a.xml"
    note.write_text(note.read_text().replace("<xmax>5", "<xmax>nan"))
    with pytest.raises(DataError, match=r"a\.xml .*a side of a box is not finite"):
        open_set("voc", voc_2012)
    assert CLASSES


def test_a_gzip_bomb_in_the_place_of_images_is_not_unpacked(tmp_path):
    for part in ("train", "t10k"):
        for kind, dimensions in (("images-idx3", (2, 3, 3)), ("labels-idx1", (2,))):
            head = struct.pack(f">HBB{len(dimensions)}I", 0, 8, len(dimensions), *dimensions)
            with gzip.open(tmp_path / f"{part}-{kind}-ubyte.gz", "wb") as file:
                file.write(head + bytes(int(np.prod(dimensions))))
    assert len(load_dataset("fashion-mnist", str(tmp_path))) == 4
    images = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(images, "wb") as file:
        file.write(struct.pack(">HBB3I", 0, 8, 3, 2, 3, 3) + bytes(50_000_000))
    with pytest.raises(DataError, match=r"header says \(2, 3, 3\), file holds more bytes"):
        load_dataset("fashion-mnist", str(tmp_path), image_size=4)
    with gzip.open(images, "wb") as file:
        file.write(struct.pack(">HBB3I", 0, 8, 3, 60_000, 2**16, 2**16))
    with pytest.raises(DataError, match=r"at most 1,073,741,824 are read"):
        load_dataset("fashion-mnist", str(tmp_path), image_size=4)


@pytest.mark.parametrize("name", ["imagefolder", "fashion-mnist", "coco", "tsv"])
def test_an_archive_in_the_place_of_a_folder_is_to_be_unpacked(name, tmp_path):
    (tmp_path / "Photos.ZIP").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"Photos\.ZIP' is an archive; unpack it"):
        load_dataset(name, str(tmp_path / "Photos.ZIP"))
