"""Labelled sentences in tab-separated files."""

from pathlib import Path

import numpy as np
import pytest

import data
from data import DataError, DataSpec, TextDataset, load_client_data, load_dataset
from data import standard_places as places

ROOT = Path(__file__).parents[2]
REVIEWS = ROOT.parent / "shared" / "data" / "rt-polarity"


pytestmark = pytest.mark.usefixtures("private_cache")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return path


def open_tsv(path, **changes):
    data.clear_memory()
    return load_dataset(DataSpec("tsv", data_dir=str(path), **changes))


def test_a_folder_with_both_parts(tmp_path):
    write(tmp_path / "d/train.tsv", "good\tvery nice , ä\nbad\tawful\n\ngood\tfine\r\n")
    write(tmp_path / "d/test.tsv", "odd\tstrange\tthing")
    texts = open_tsv(tmp_path / "d")
    assert isinstance(texts, TextDataset)
    assert list(texts.sentences) == ["very nice , ä", "awful", "fine", "strange\tthing"]
    assert texts.class_names == ("bad", "good", "odd")
    assert texts.labels.tolist() == [1, 0, 1, 2]
    assert (texts.train_size, len(texts), texts.num_classes) == (3, 4, 3)


@pytest.mark.parametrize(
    "header", ["label\tsentence\n", "Label\tText\r\n", "\ufefflabel\ttext\n", ""]
)
def test_a_header_is_optional(tmp_path, header):
    path = write(tmp_path / "some.tsv", header + "a\tx\nb\ty\na\tlabel\n")
    texts = open_tsv(path)
    assert sorted(texts.sentences) == ["label", "x", "y"]


def test_one_file_has_a_fixed_stratified_test_set(tmp_path):
    lines = [f"{'ab'[row % 4 == 0]}\tnumber {row}" for row in range(200)]
    path = write(tmp_path / "all.tsv", "\n".join(lines))
    write(tmp_path / "folder/train.tsv", "\n".join(lines))
    texts = open_tsv(path)
    assert texts.train_size == 160
    assert np.bincount(texts.labels[160:]).tolist() == [30, 10]
    assert sorted(texts.sentences) == sorted(line.partition("\t")[2] for line in lines)
    for sentence, label in zip(texts.sentences, texts.labels, strict=True):
        assert (int(sentence.split()[1]) % 4 == 0) == label
    assert open_tsv(tmp_path / "folder").fingerprint == texts.fingerprint


def test_a_changed_file_is_read_again(tmp_path):
    path = write(tmp_path / "all.tsv", "a\tx\nb\ty\n")
    before = open_tsv(path).fingerprint
    write(path, "a\tx\nb\tother\n")
    assert open_tsv(path).fingerprint != before


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a\tx\nb y\n", "train.tsv, line 2 is 'b y'; a line is a label, a tab and a sentence"),
        ("a\tx\nb\t \n", "line 2 is"),
        ("\tx\n", "line 1 is"),
        (b"a\tx\nb\tcaf\xe9\n", "line 2 is not UTF-8"),
        ("label\tsentence\n", "has no example"),
        ("", "has no example"),
        ("a\tx\na\ty\n", "has the one label 'a'"),
    ],
)
def test_errors_name_file_and_line(tmp_path, content, expected):
    path = write(tmp_path / "d/train.tsv", content)
    with pytest.raises(DataError) as caught:
        open_tsv(tmp_path / "d")
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_files_are_looked_for_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "DEBIAN_DATASETS", tmp_path / "none")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataError) as caught:
        open_tsv(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(caught.value)
    assert "train.tsv" in str(caught.value)
    with pytest.raises(DataError, match=r"no train\.tsv found in"):
        load_dataset("tsv")
    write(tmp_path / "datasets/tsv/train.tsv", "a\tx\nb\ty\n")
    data.clear_memory()
    assert len(load_dataset("tsv")) == 2


def test_classifying_images_of_it_is_refused(tmp_path):
    path = write(tmp_path / "all.tsv", "a\tx\nb\ty\n")
    with pytest.raises(DataError, match=r'dataset=tsv has sentences .* tasks="text@tsv"'):
        load_client_data(DataSpec("tsv", data_dir=str(path)), 0, 1)


def test_film_reviews(tmp_path):
    """Real sentences, all of them, as one file."""
    if not REVIEWS.is_dir():
        pytest.skip(f"the film reviews are not at {REVIEWS}")
    lines = []
    for label, name in (("negative", "rt-polarity.neg"), ("positive", "rt-polarity.pos")):
        text = (REVIEWS / name).read_bytes().decode("latin-1")
        lines += [f"{label}\t{line}" for line in text.split("\n") if line.strip()]
    texts = open_tsv(write(tmp_path / "reviews.tsv", "\n".join(lines)))
    assert len(texts) == 10_662
    assert texts.class_names == ("negative", "positive")
    assert np.bincount(texts.labels).tolist() == [5331, 5331]
    assert np.bincount(texts.labels[texts.train_size :]).tolist() == [1066, 1066]
    assert any("é" in sentence for sentence in texts.sentences)
