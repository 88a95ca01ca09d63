"""What is said of a user's own split, where an accuracy on it would mislead."""

import numpy as np
import pytest
from PIL import Image

import data
from data import DataSpec, load_dataset
from data.part_notes import part_notes

NAMES = ("ant", "bee", "cat")


def said(labels, trained, contents="abcdefgh"):
    contents = [sign.encode() for sign in contents[: len(labels)]]
    return part_notes(np.array(labels), NAMES, trained, contents)


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1, 2], [0, 1, 0, 1], [0, 1, 2]])
def test_nothing_is_said_of_a_sound_split(labels):
    """A class that no part has is another device's, and without test examples none is missed."""
    assert said(labels, 3 if len(labels) != 4 else 2) == []


def test_a_class_that_only_one_side_has():
    assert said([0, 0, 1, 0, 2, 2], 3) == [
        "only the test or validation part has 'cat' (2 examples)",
        "only the training part has 'bee'",
    ]


def test_examples_on_both_sides():
    assert said([0, 1, 2, 0, 1, 2], 3, "aabaac") == [
        "2 of 3 examples of the test and validation parts are in the training part, too, which may "
        "raise accuracy; remove repeated ones"
    ]


@pytest.mark.usefixtures("private_cache")
def test_folders_and_tables_of_ones_own_are_looked_through(tmp_path):
    for place, value in (("train/ant", 1), ("train/bee", 2), ("test/bee", 2), ("test/cat", 3)):
        (tmp_path / "images" / place).mkdir(parents=True)
        Image.new("L", (4, 4), value).save(tmp_path / "images" / place / "a.png")
    (tmp_path / "train.tsv").write_text("ant\tx\nbee\ty\n")
    (tmp_path / "test.tsv").write_text("bee\ty\ncat\tz\n")
    for name, folder in (("imagefolder", tmp_path / "images"), ("tsv", tmp_path)):
        data.clear_memory()
        notes = load_dataset(DataSpec(name, data_dir=str(folder))).notes
        at = notes.index("only the test or validation part has 'cat' (1 examples)")
        assert notes[at + 1] == "only the training part has 'ant'"
        assert notes[at + 2].startswith("1 of 2 examples of the test and validation parts are in")
