"""Pascal VOC and COCO, in tiny folders of their shape."""

import json

import numpy as np
import pytest
from PIL import Image

import data
from data import AnnotatedDataset, DataError, DataSpec, load_dataset, load_public, load_task_data
from data.tasks import parse_tasks
from data.voc import CLASSES

pytestmark = pytest.mark.usefixtures("private_cache", "no_datasets")


def open_set(name, path, **changes):
    data.clear_memory()
    return load_dataset(DataSpec(name, data_dir=str(path), **changes))


# Pascal VOC


def add_voc(folder, name, objects, mask=None, size=(40, 20)):
    """Write a picture of VOC: objects are (class, box, difficult), mask an array of numbers."""
    for part in ("JPEGImages", "Annotations", "SegmentationClass"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 100, 50)).save(folder / "JPEGImages" / f"{name}.jpg")
    items = "".join(
        f"<object><name>{kind}</name><difficult>{difficult}</difficult><bndbox><xmin>{x0}</xmin>"
        f"<ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox><part><name>head</name>"
        "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"
        for kind, (x0, y0, x1, y1), difficult in objects
    )
    (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{items}</annotation>")
    if mask is not None:
        image = Image.fromarray(mask.astype(np.uint8), mode="P")
        image.putpalette([0, 0, 0, 128, 0, 0] * 128)
        image.save(folder / "SegmentationClass" / f"{name}.png")


def list_voc(folder, **lists):
    for name, pictures in lists.items():
        kind, part = name.split("_")
        path = folder / "ImageSets" / {"main": "Main", "seg": "Segmentation"}[kind] / f"{part}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{picture}\n" for picture in pictures))


def half_mask(left, right, size=(40, 20)):
    mask = np.zeros((size[1], size[0]), dtype=np.uint8)
    mask[:, : size[0] // 2], mask[:, size[0] // 2 :] = left, right
    return mask


@pytest.fixture
def voc_2012(tmp_path):
    """Four training pictures, one of them with a mask, and two test pictures."""
    folder = tmp_path / "voc" / "VOCdevkit" / "VOC2012"
    cat, dog = CLASSES.index("cat"), CLASSES.index("dog")
    add_voc(folder, "a", [("cat", (1, 1, 5, 5), 0), ("dog", (1, 1, 30, 19), 0)])
    add_voc(folder, "b", [("person", (1, 1, 9, 9), 1)])
    add_voc(
        folder,
        "c",
        [("cat", (0, 0, 25, 20), 0), ("dog", (25, 0, 40, 20), 0)],
        half_mask(1 + cat, 1 + dog),
    )
    add_voc(folder, "d", [("bus", (1, 1, 9, 9), 0)])
    add_voc(folder, "e", [("sofa", (1, 1, 9, 9), 0)], half_mask(255, 18))
    add_voc(folder, "f", [("tvmonitor", (1, 1, 9, 9), 0)])
    list_voc(folder, main_train="abd", main_val="ef", seg_train="c", seg_val="e")
    list_voc(folder, main_trainval="abdef", seg_trainval="ce")
    return tmp_path / "voc"


def test_voc_2012_has_classes_masks_and_val_as_test_set(voc_2012):
    voc = open_set("voc", voc_2012)
    assert isinstance(voc, AnnotatedDataset)
    assert (voc.images.shape, voc.train_size) == ((6, 3, 64, 64), 4)
    assert voc.class_names == CLASSES
    named = [{CLASSES[c] for c in np.flatnonzero(row)} for row in voc.presence]
    assert named[:4] == [{"cat", "dog"}, {"person"}, {"cat", "dog"}, {"bus"}]
    assert [CLASSES[label] for label in voc.labels] == [
        *("dog", "person", "cat", "bus", "sofa", "tvmonitor")
    ]
    assert voc.masked.tolist() == [False, False, True, False, True, False]
    assert (voc.masks[2, :, :32] == 1 + CLASSES.index("cat")).all()
    assert (voc.masks[2, :, 32:] == 1 + CLASSES.index("dog")).all()
    assert (voc.masks[4, :, :32] == 255).all()
    assert (voc.masks[[0, 1, 3, 5]] == 255).all()
    assert voc.captions is None
    assert np.abs(voc.images[0].mean(axis=(1, 2)) - [200, 100, 50]).max() < 3  # JPEG
    devkit = open_set("voc", voc_2012 / "VOCdevkit", image_size=16)
    assert devkit.masks.shape == (6, 16, 16)


def test_with_the_annotated_test_set_of_2007_all_else_is_for_training(voc_2012):
    folder = voc_2012 / "VOCdevkit" / "VOC2007"
    for name in "xyz":
        add_voc(folder, name, [("boat", (1, 1, 9, 9), 0)])
    list_voc(folder, main_trainval="x", main_train="x", main_val="")
    assert open_set("voc", voc_2012).train_size == 5
    list_voc(folder, main_test="yz")
    voc = open_set("voc", voc_2012)  # the new list is noticed
    assert (len(voc), voc.train_size) == (9, 7)


def test_segmentation_clients_of_voc_share_the_pictures_with_masks(voc_2012):
    spec = DataSpec("voc", data_dir=str(voc_2012), partition="iid", validation_fraction=0.0)
    entries = parse_tasks("segmentation, multilabel")
    segmented, labelled = (load_task_data(spec, entries, client, 2, None) for client in (0, 1))
    assert sorted([*segmented.train.indices, *segmented.test.indices]) == [2, 4]
    assert sorted([*labelled.train.indices, *labelled.test.indices]) == [0, 1, 3, 5]
    images, masks = segmented.train.batch([0])
    assert (images.shape, masks.shape) == ((1, 3, 64, 64), (1, 64, 64))
    assert (segmented.num_classes, segmented.channels) == (20, 3)


def test_voc_is_public_data_too(voc_2012):
    grey, colour = (load_public("voc", 3, c, s, str(voc_2012)) for c, s in ((1, 16), (3, 32)))
    assert grey.images.shape == (3, 1, 16, 16)
    assert colour.images.shape == (3, 3, 32, 32)
    assert grey.fingerprint == colour.fingerprint


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: (f / "Annotations/a.xml").write_text("<annotation><obj"), "a.xml is no annot"),
        (lambda f: (f / "Annotations/a.xml").write_text("<annotation/>"), "a.xml has no object"),
        (lambda f: add_voc(f, "a", [("unicorn", (1, 1, 2, 2), 0)]), "a.xml is no annotation"),
        (lambda f: (f / "Annotations/a.xml").unlink(), "a.xml"),
        (lambda f: (f / "JPEGImages/b.jpg").unlink(), "b.jpg"),
        (lambda f: (f / "SegmentationClass/c.png").write_bytes(b"no"), "c.png"),
        (lambda f: add_voc(f, "c", [("cat", (1, 1, 2, 2), 0)], half_mask(1, 77)), "400 other"),
        (lambda f: (f / "ImageSets/Main/val.txt").unlink(), "cannot read the list val"),
    ],
)
def test_damaged_voc_files_are_named(voc_2012, damage, expected):
    damage(voc_2012 / "VOCdevkit" / "VOC2012")
    with pytest.raises(DataError, match=expected):
        open_set("voc", voc_2012)


@pytest.mark.parametrize("name", ["voc", "coco"])
def test_missing_sets_name_places_and_command(name, tmp_path):
    with pytest.raises(DataError) as caught:
        open_set(name, tmp_path / "nowhere")
    for part in (str(tmp_path / "nowhere"), "Expected the files", "Fetch them with: "):
        assert part in str(caught.value)
    with pytest.raises(DataError, match=f"{name}: no data found in .*datasets"):
        load_dataset(name)


# COCO

PETS = [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}]


def square(number, picture, category, box, crowd=0):
    x0, y0, x1, y1 = box
    return {
        **{"id": number, "image_id": picture, "category_id": category, "iscrowd": crowd},
        "segmentation": [[x0, y0, x1, y0, x1, y1, x0, y1]],
        "area": (x1 - x0) * (y1 - y0),
        "bbox": [x0, y0, x1 - x0, y1 - y0],
    }


def add_coco(root, part, pictures, captions=True):
    """Write a part of COCO: pictures are lists of annotations by picture id."""
    (root / part).mkdir(parents=True)
    (root / "annotations").mkdir(exist_ok=True)
    images = []
    for number in pictures:
        Image.new("RGB", (40, 20), (number, 0, 0)).save(root / part / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 40, "height": 20})
    objects = [item for items in pictures.values() for item in items]
    content = {"images": images, "annotations": objects, "categories": PETS}
    (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    if captions:
        lines = [
            {"id": 10 * number + at, "image_id": number, "caption": f"{word} {number} \n"}
            for number in pictures
            for at, word in ((5, "Later"), (2, "First"))
        ]
        content = {"images": images, "annotations": lines}
        (root / "annotations" / f"captions_{part}.json").write_text(json.dumps(content))
    return root


@pytest.fixture
def pycocotools():
    return pytest.importorskip("pycocotools", reason="pycocotools is not installed")


@pytest.fixture
def coco_2017(tmp_path):
    add_coco(
        tmp_path / "coco",
        "train2017",
        {
            7: [square(1, 7, 18, (0, 0, 40, 20)), square(2, 7, 3, (0, 0, 10, 20))],
            5: [square(3, 5, 3, (20, 0, 40, 20)), square(4, 5, 18, (0, 0, 40, 20), crowd=1)],
            6: [],
        },
    )
    return add_coco(tmp_path / "coco", "val2017", {9: [square(5, 9, 3, (0, 0, 40, 20))]})


def test_coco_has_classes_masks_and_captions(pycocotools, coco_2017, capsys):
    coco = open_set("coco", coco_2017)
    assert (coco.images.shape, coco.train_size) == ((3, 3, 64, 64), 2)  # picture 6 is empty
    assert coco.class_names == ("car", "dog")
    assert coco.images[:, 0, 0, 0].tolist() == [5, 7, 9]
    assert coco.presence.tolist() == [[1, 1], [1, 1], [1, 0]]
    assert coco.labels.tolist() == [0, 1, 0]
    car, dog, crowd = 1, 2, 255
    assert (coco.masks[0, :, 34:] == car).all()
    assert (coco.masks[0, :, :30] == crowd).all()
    assert (coco.masks[1, :, :14] == car).all()  # the smaller one lies above
    assert (coco.masks[1, :, 18:] == dog).all()
    assert list(coco.captions) == ["First 5", "First 7", "First 9"]
    assert capsys.readouterr().out == ""
    public = load_public("coco", 2, 1, 16, str(coco_2017))
    assert set(public.captions) == {"First 5", "First 7"}


def test_annotations_of_unlisted_pictures_are_told_of(pycocotools, coco_2017):
    path = coco_2017 / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    strays = [square(number, 77, 3, (0, 0, 9, 9)) for number in (8, 9)]
    path.write_text(json.dumps(content | {"annotations": content["annotations"] + strays}))
    assert open_set("coco", coco_2017).notes == (
        "instances_val2017.json: 2 annotations are of pictures that it does not list (77), and "
        "left out",
    )


def test_coco_without_captions_or_training_part(pycocotools, tmp_path):
    pictures = {n: [square(n, n, (3, 18)[n % 2], (0, 0, 40, 20))] for n in range(1, 21)}
    coco = open_set("coco", add_coco(tmp_path / "c", "val2017", pictures, captions=False))
    assert coco.captions is None
    assert (len(coco), coco.train_size) == (20, 16)
    assert np.bincount(coco.labels[16:]).tolist() == [2, 2]
    numbers = coco.images[:, 0, 0, 0]
    assert coco.labels.tolist() == (numbers % 2).tolist()


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("instances_train2017.json", "{", "instances_train2017.json is no COCO annotation file"),
        ("instances_train2017.json", "[]", "instances_train2017.json is no COCO annotation file"),
        ("captions_val2017.json", '{"annotations": []}', "no caption for picture 9"),
    ],
)
def test_damaged_coco_files_are_named(pycocotools, coco_2017, file, content, expected):
    (coco_2017 / "annotations" / file).write_text(content)
    with pytest.raises(DataError, match=expected):
        open_set("coco", coco_2017)


def test_a_missing_picture_of_coco_is_named(pycocotools, coco_2017):
    (coco_2017 / "val2017" / "9.png").unlink()
    with pytest.raises(DataError, match=r"9\.png"):
        open_set("coco", coco_2017)


def test_coco_says_which_package_it_needs(coco_2017, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pycocotools.coco", None)
    with pytest.raises(DataError, match=r"pip install .wildflower\[coco\]"):
        open_set("coco", coco_2017)
