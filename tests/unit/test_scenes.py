"""Scenes: the same everywhere, and their labels, masks and captions say the same thing."""

import hashlib
from functools import cache

import numpy as np
import pytest

import data
from data import AnnotatedDataset, load_dataset
from data import standard_places as places
from data.captions import LARGE, NOUNS
from data.scene_items import Items, load_items
from data.scenes import CANVAS, draw_scenes, resize_items


@pytest.fixture(autouse=True)
def _fresh_memory():
    data.clear_memory()
    yield
    data.clear_memory()


@pytest.fixture
def without_fashion_mnist(no_datasets, tmp_path, monkeypatch):
    monkeypatch.setenv("WILDFLOWER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def few_scenes(monkeypatch):
    monkeypatch.setattr("data.scenes.TRAIN_SCENES", 1200)
    monkeypatch.setattr("data.scenes.TEST_SCENES", 200)


def make_items(train_size=60, side=28):
    """Squares of an own brightness each, so that a pixel tells which item it is from."""
    labels = np.arange(2 * train_size) % 10
    images = np.zeros((len(labels), side, side), dtype=np.uint8)
    images[:] = (100 + np.arange(len(labels)))[:, None, None]
    return Items(images, labels, train_size, tuple("abcdefghij"), "digits")


ITEMS = make_items()


@cache
def drawn(stream, count=1000):
    """Draw once for all tests: a block takes a good part of a second."""
    return draw_scenes(ITEMS, stream, count)


def test_the_same_scenes_on_every_machine():
    """A change of what is drawn changes everybody's data and their public hash: be sure."""
    scenes = drawn("train")
    digest = hashlib.sha256()
    for array in (scenes.images, scenes.masks, scenes.presence, scenes.labels):
        digest.update(np.ascontiguousarray(array[:50]).tobytes())
    digest.update("\n".join(scenes.captions[:50]).encode())
    assert digest.hexdigest()[:16] == "7b4c2ad80c5fdfe0"


def test_a_longer_draw_begins_with_the_shorter_one_and_streams_differ():
    short, long = drawn("public", 30), drawn("public", 1030)
    np.testing.assert_array_equal(short.images, long.images[:30])
    assert short.captions == long.captions[:30]
    assert not np.array_equal(long.images[:30], long.images[1000:])
    assert not np.array_equal(short.images, drawn("train").images[:30])


def test_one_to_four_items_of_different_classes_from_the_right_part():
    for stream in ("train", "public", "test"):
        scenes = drawn(stream, 1030 if stream == "public" else 1000)
        used = scenes.rows >= 0
        assert set(used.sum(axis=1)) == {1, 2, 3, 4}
        of_test = scenes.rows[used] >= ITEMS.train_size
        assert of_test.all() if stream == "test" else not of_test.any()
        for rows, present in zip(scenes.rows, scenes.presence, strict=True):
            classes = ITEMS.labels[rows[rows >= 0]]
            assert sorted(classes) == np.flatnonzero(present).tolist()


def test_mask_presence_label_and_caption_agree_with_the_pixels():
    """The brightness of make_items' squares says, pixel by pixel, which item is seen."""
    scenes = drawn("train")
    for row in range(200):
        picture, mask = scenes.images[row], scenes.masks[row]
        rows = scenes.rows[row][scenes.rows[row] >= 0]
        for item in rows:
            inside = picture == ITEMS.images[item, 0, 0]
            assert inside.any()
            assert (mask[inside] == 1 + ITEMS.labels[item]).all()
        background = picture[mask == 0]
        assert 32 <= background.min() == background.max() <= 96
        areas = np.bincount(mask.ravel(), minlength=11)[1:]
        np.testing.assert_array_equal(areas > 0, scenes.presence[row] == 1)
        assert areas[scenes.labels[row]] == areas.max()
        words = scenes.captions[row].replace(",", "").split()
        nouns = [word for word in words if word in NOUNS["digits"]]
        assert sorted(nouns) == sorted(NOUNS["digits"][label] for label in ITEMS.labels[rows])
        (large,) = (place for place, word in enumerate(words) if word in LARGE)
        assert words[large + 1] == NOUNS["digits"][scenes.labels[row]]


def test_captions_name_the_main_class_by_its_neighbour_only():
    """Neither the place of a noun nor a word alone gives the class away."""
    scenes = drawn("train")
    many = scenes.presence.sum(axis=1) > 1
    first = []
    for caption, label in zip(scenes.captions, scenes.labels, strict=True):
        nouns = [w for w in caption.replace(",", "").split() if w in NOUNS["digits"]]
        first.append(nouns[0] == NOUNS["digits"][label])
    assert 0.25 < np.mean(np.array(first)[many]) < 0.5  # 13/36 by chance


def test_nouns_are_words_that_no_other_class_has():
    for nouns in NOUNS.values():
        assert len(set(nouns)) == 10
        assert all(noun.isalpha() for noun in nouns)


def test_resize_is_bilinear():
    torch = pytest.importorskip("torch")
    pictures = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    for size in (17, 28, 34):
        expected = torch.nn.functional.interpolate(
            torch.from_numpy(pictures)[None].double(), size=(size, size), mode="bilinear"
        )[0].numpy()
        assert np.abs(resize_items(pictures, size) - expected).max() <= 0.5 + 1e-9


def test_the_data_set_has_all_annotations_in_step(without_fashion_mnist, few_scenes):
    scenes = load_dataset("scenes")
    assert isinstance(scenes, AnnotatedDataset)
    assert scenes.source == "digits"
    assert scenes.class_names == tuple("0123456789")
    assert scenes.images.shape == (1400, 1, CANVAS, CANVAS)
    assert scenes.train_size == 1200
    assert isinstance(scenes.images.base, np.memmap)
    assert (scenes.presence.sum(axis=1) >= 1).all()
    rows = np.arange(0, 1400, 10)
    found = np.stack([(scenes.masks[rows] == 1 + c).any(axis=(1, 2)) for c in range(10)], axis=1)
    np.testing.assert_array_equal(found, scenes.presence[rows] == 1)
    assert len(scenes.captions) == 1400
    small = load_dataset("scenes", image_size=32)
    assert small.images.shape[2:] == small.masks.shape[1:] == (32, 32)
    # Nearest: pixel (i, j) of 32 lies between (2i, 2j) and (2i + 1, 2j + 1) of 64.
    np.testing.assert_array_equal(small.masks[rows], scenes.masks[rows][:, 1::2, 1::2])
    np.testing.assert_array_equal(small.presence, scenes.presence)
    assert small.captions[77] == scenes.captions[77]


def test_fashion_mnist_is_taken_where_it_is(tmp_path):
    if places.search_folder("fashion-mnist", None) is None:
        pytest.skip("Fashion-MNIST is not on this machine (apt-get install dataset-fashion-mnist)")
    items = load_items(tmp_path / "none", tmp_path)
    assert (items.source, items.train_size, len(items.labels)) == ("fashion-mnist", 60_000, 70_000)
    scenes = draw_scenes(items, "test", 1000)
    assert (scenes.rows[scenes.rows >= 0] >= 60_000).all()
    np.testing.assert_array_equal((scenes.rows >= 0).sum(axis=1), scenes.presence.sum(axis=1))
    assert not list(tmp_path.iterdir())
