"""Public data: the same items in the same order on all clients, whatever their models take."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from data import (
    DataError,
    DataSpec,
    Shares,
    clear_memory,
    load_client_data,
    load_dataset,
    load_public,
)
from data.public import to_grey
from data.scene_items import load_items
from data.scenes import draw_scenes
from data.tasks import parse_tasks
from strategies.common.public import shown_in_public
from tests.unit.test_data_sources import make_fashion
from tests.unit.test_training import a_context

pytestmark = pytest.mark.usefixtures("private_cache", "no_datasets")


def test_scenes_are_the_same_for_every_shape(tmp_path):
    own = load_public("scenes", 40, 0, 0)
    assert (own.images.shape, len(own), own.source) == ((40, 1, 64, 64), 40, "scenes of digits")
    assert not own.images.flags.writeable
    tmp_path.joinpath("scratch").mkdir()
    drawn = draw_scenes(load_items(None, tmp_path / "scratch"), "public", 40)
    np.testing.assert_array_equal(own.images[:, 0], drawn.images)
    assert list(own.captions) == drawn.captions
    colour = load_public("scenes", 40, 3, 0)
    np.testing.assert_array_equal(colour.images, np.repeat(own.images, 3, axis=1))
    small = load_public("scenes", 40, 3, 16)
    assert small.images.shape == (40, 3, 16, 16)
    resized = np.array(
        Image.fromarray(own.images[7, 0]).resize((16, 16), Image.Resampling.BILINEAR)
    )
    np.testing.assert_array_equal(small.images[7, 2], resized)
    for other in (colour, small):
        assert other.fingerprint == own.fingerprint
        assert list(other.captions) == list(own.captions)
    assert colour.images[[3, 5]].shape == (2, 3, 64, 64)
    assert load_public("scenes", 40, 3, 16) is small
    more = load_public("scenes", 50, 1, 0)
    np.testing.assert_array_equal(more.images[:40], own.images)
    assert more.fingerprint != own.fingerprint


def test_public_scenes_are_not_the_private_ones(monkeypatch):
    monkeypatch.setattr("data.scenes.TRAIN_SCENES", 1000)
    monkeypatch.setattr("data.scenes.TEST_SCENES", 100)
    private = {image.tobytes() for image in load_dataset("scenes").images}
    public = {image.tobytes() for image in load_public("scenes", 1000, 0, 0).images}
    assert len(public) == 1000
    assert not private & public


def test_another_data_set_gives_training_rows_in_a_fixed_random_order():
    digits = load_dataset("digits")
    public = load_public("digits", 1000, 1, 0)
    assert public.captions is None
    assert public.source == "digits"
    rows = {image.tobytes(): row for row, image in enumerate(digits.images)}
    order = [rows[image.tobytes()] for image in public.images]
    assert max(order) < digits.train_size
    assert len(set(order)) > 990  # a few digits are alike to the pixel
    assert order != sorted(order)
    fewer = load_public("digits", 100, 3, 8)
    assert fewer.images.shape == (100, 3, 8, 8)
    first = Image.fromarray(digits.images[order[0], 0]).resize((8, 8), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(fewer.images[0, 1], first)
    assert fewer.fingerprint == load_public("digits", 100, 1, 16).fingerprint


def test_pictures_of_any_size_are_resized_from_their_files(tmp_path):
    """Not twice: once to a common size and again to the one wanted."""
    generator = np.random.default_rng(0)
    for number in range(6):
        for name in ("cat", "dog"):
            path = tmp_path / "pets" / "train" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            shape = (90 + number, 80, 3)
            Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(path)
    folder = str(tmp_path / "pets")
    small, large = (load_public("imagefolder", 5, 3, size, folder) for size in (32, 80))
    assert small.fingerprint == large.fingerprint
    direct = {image.tobytes() for image in load_dataset("imagefolder", folder, 80).images}
    assert all(image.tobytes() in direct for image in large.images)
    grey = load_public("imagefolder", 5, 1, 32, folder)
    assert grey.fingerprint == small.fingerprint
    np.testing.assert_array_equal(grey.images, to_grey(small.images))
    assert load_public("imagefolder", 5, 0, 0, folder).images.shape == (5, 3, 64, 64)


def test_grey_is_the_usual_weighted_mean():
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 20, 30], [255, 255, 255]])
    images = np.tile(colours.astype(np.uint8), (200, 1))[:, :, None, None]
    expected = np.rint(colours @ [0.299, 0.587, 0.114])
    np.testing.assert_array_equal(to_grey(images)[:, 0, 0, 0], np.tile(expected, 200))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("digits", 2000, 1, 0), "public-size=2000: digits has 1438 training images; set"),
        (("digits", 10, 4, 0), "channels=4"),
        (("digits", 0, 1, 0), "public-size=0"),
        (("diggits", 10, 1, 0), "one of digits"),
    ],
)
def test_what_cannot_be_had_is_refused(arguments, expected):
    with pytest.raises(DataError, match=expected):
        load_public(*arguments)


def reviews(tmp_path, rows=40):
    """Write a tab-separated file of sentences and return its path."""
    path = tmp_path / "all.tsv"
    lines = (f"{'bad' if row % 2 else 'good'}\tfilm number {row}\n" for row in range(rows))
    path.write_text("".join(lines))
    return str(path)


def test_public_items_may_be_sentences(tmp_path, monkeypatch):
    folder = reviews(tmp_path)
    public = load_public("tsv", 12, 0, 0, folder)
    sentences = load_dataset("tsv", folder).sentences
    assert (public.images, len(public), public.source) == (None, 12, "tsv")
    assert sorted(public.captions) == sorted(sentences[int(row)] for row in public.rows)
    clear_memory()
    monkeypatch.setattr("data.public._sentences", None)  # the second time they come from the cache
    again = load_public("tsv", 12, 0, 0, folder)
    assert list(again.captions) == list(public.captions)
    assert again.fingerprint == public.fingerprint
    with pytest.raises(DataError, match=r"public-size=99: tsv has \d+ training sentences; set"):
        load_public("tsv", 99, 0, 0, folder)


def test_numbers_are_no_public_data(tmp_path):
    (tmp_path / "train.csv").write_text("a,label\n1,x\n2,y\n3,x\n4,y\n")
    with pytest.raises(DataError, match=r"public-dataset=tabular has numbers.*scenes"):
        load_public("tabular", 1, 0, 0, str(tmp_path))


@pytest.mark.parametrize("tasks", ["", "text@tsv"])
def test_public_sentences_are_none_that_a_client_tests_on(tasks, tmp_path):
    spec = DataSpec(dataset="tsv", data_dir=reviews(tmp_path), partition="iid", min_examples=1)
    shares = Shares(spec, parse_tasks(tasks), 2)
    tested = shares.tested("tsv", spec.data_dir)
    assert len(tested) > 5
    public = load_public("tsv", 12, 0, 0, spec.data_dir, shares)
    assert len(public) == 12
    assert not np.isin(public.rows, tested).any()


@pytest.mark.parametrize("tasks", ["", "classification[0-4], multilabel@scenes"])
@pytest.mark.parametrize("name", ["digits", "scenes"])
def test_items_show_no_picture_that_a_client_tests_on(name, tasks, monkeypatch):
    monkeypatch.setattr("data.scenes.TRAIN_SCENES", 100)
    monkeypatch.setattr("data.scenes.TEST_SCENES", 20)
    spec = DataSpec(partition="iid")
    shares = Shares(spec, parse_tasks(tasks), 4)
    tested = shares.tested("digits")
    if not tasks:
        mine = [load_client_data(spec, client, 4).test.indices for client in range(4)]
        np.testing.assert_array_equal(tested, np.sort(np.concatenate(mine)))
    any_row, chosen = (load_public(name, 300, 1, 16, "", avoid) for avoid in (None, shares))
    assert len(np.intersect1d(any_row.rows, tested)) > 30
    assert len(np.intersect1d(chosen.rows, tested)) == 0
    assert (chosen.shown, len(chosen)) == ("digits", 300)
    assert chosen.fingerprint != any_row.fingerprint


@pytest.mark.parametrize("spec", [DataSpec(test_split="global"), DataSpec(dataset="cifar10")])
def test_without_an_overlap_items_stay_what_they_were(spec, monkeypatch):
    shares = Shares(spec, (), 3)
    if spec.dataset != "digits":  # whose files are not even asked for
        assert len(shares.tested("digits")) == 0
    kept = load_public("digits", 50, 1, 16, "", shares)
    assert kept.fingerprint == load_public("digits", 50, 1, 16).fingerprint


@pytest.mark.parametrize("tasks", ["", "classification"])
def test_shares_are_of_the_files_that_public_items_are_made_of(tasks, tmp_path):
    """A device with a partition may have its copy elsewhere than the run-config says."""
    make_fashion(tmp_path / "mine")
    spec = DataSpec(dataset="fashion-mnist", partition="iid", min_examples=1)
    shares = Shares(spec, parse_tasks(tasks), 2)
    tested = shares.tested("fashion-mnist", str(tmp_path / "mine"))
    at_home = dataclasses.replace(spec, data_dir=str(tmp_path / "mine"))
    mine = [load_client_data(at_home, client, 2).test.indices for client in range(2)]
    np.testing.assert_array_equal(tested, np.sort(np.concatenate(mine)))
    assert len(tested) > 0


def test_too_few_pictures_without_an_owner_are_named():
    shares = Shares(DataSpec(partition="iid"), (), 4)
    with pytest.raises(DataError, match=r"clients test on all but \d+; set public-size=.*allowed"):
        load_public("digits", 1300, 1, 16, "", shares)


@pytest.mark.parametrize("overlap", ["none", "allowed"])
def test_a_client_says_how_many_of_its_test_pictures_are_public(overlap):
    spec = DataSpec(partition="iid")
    keys = {"public_dataset": "digits", "public_size": 300, "public_overlap": overlap}
    context = dataclasses.replace(
        a_context(4, method="fedmuscle", **keys),
        data=load_client_data(spec, 0, 4),
        shares=Shares(spec, (), 4),
    )
    mine = context.data.test.indices
    count = len(np.intersect1d(mine, load_public("digits", 300, 1, 0).rows))
    said = f"public items show {count} of its {len(mine)} test pictures (public-overlap)"
    assert count > 0
    assert shown_in_public(context) == ("" if overlap == "none" else said)
