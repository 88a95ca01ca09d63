"""Labelled sentences in tab-separated files."""

import time
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


def rows(*columns):
    """Return 12 lines: the columns L (label), S (sentence), N (number) in the order given."""
    made = []
    for row in range(12):
        cells = {"L": "ab"[row % 2], "S": f"sentence {row}", "N": str(row), "E": "en"}
        made.append("\t".join(cells[column] for column in columns))
    return "\n".join(made) + "\n"


@pytest.mark.parametrize(
    ("header", "columns", "keys"),
    [
        ("sentence\tlabel", "SL", {}),
        ("Text\tCategory", "SL", {}),
        ("id\tclass label\treview\tlanguage", "NLSE", {}),
        ("stars\treview", "LS", {}),
        ("sentiment\twords", "LS", {}),
        ("words\tsentiment", "SL", {}),
        ("Stimmung\tSatz", "LS", {"label_column": "stimmung", "text_column": "satz"}),
        ("Satz\tStimmung", "SL", {"label_column": "Stimmung"}),
        ("id\ttitle\ttext\tlabel", "NESL", {"text_column": "text"}),
        ("sentence\tlabel", "SL", {"label_column": "2", "text_column": "1"}),
        (None, "SL", {"label_column": "2", "text_column": "1"}),
        (None, "NSL", {"label_column": "3", "text_column": "2"}),
        (None, "SL", {"text_column": "1"}),
        ('"label"\t"text"', "LS", {}),
    ],
)
def test_headers_and_keys_tell_which_column_is_which(tmp_path, header, columns, keys):
    text = (f"{header}\n" if header else "") + rows(*columns)
    texts = open_tsv(write(tmp_path / "all.tsv", text), **keys)
    assert texts.class_names == ("a", "b")
    assert sorted(texts.sentences) == sorted(f"sentence {row}" for row in range(12))
    for sentence, label in zip(texts.sentences, texts.labels, strict=True):
        assert int(sentence.split()[1]) % 2 == label


def test_a_first_example_is_not_taken_for_a_header(tmp_path):
    for text in ("a\tquestion\nb\tx\na\ty\n", "topic\tx\nb\ty\ntopic\tz\nb\tu\n"):
        assert len(open_tsv(write(tmp_path / "all.tsv", text))) == text.count("\n")


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        (
            rows("S", "L"),
            {},
            r"12 different labels in 12 lines.*'sentence 0' is the label of 'a'.*"
            r"Column 2 has 2 different values.*label-column='2' text-column='1'",
        ),
        (
            "Stimmung\tSatz\n" + rows("L", "S"),
            {},
            r"first line of .* is 'Stimmung', 'Satz'.*"
            r"label-column='Stimmung' text-column='Satz'.*label-column='1' text-column='2'",
        ),
        (rows("N", "L", "S"), {}, r"3 columns and no header.*1 '0', 2 'a', 3 'sentence 0'"),
        (
            "id\ttitle\ttext\tlabel\n" + rows("N", "E", "S", "L"),
            {},
            r"several columns that may be meant: .*; set text-column",
        ),
        ("id\tlabel\twords\n" + rows("N", "L", "S"), {}, r"the sentence is not known.*text-column"),
        (rows("L", "S"), {"label_column": "mood"}, r"label-column='mood'.*names of its header"),
        (rows("L", "S"), {"label_column": "3"}, r"label-column='3'.*number from 1 to 2"),
        (rows("N", "L", "S"), {"label_column": "2"}, r"text-column is not set"),
        (rows("L", "S"), {"label_column": "1", "text_column": "1"}, r"are both column 1"),
        ("label\tid\ttext\na\t1\tx\nb\t2\n", {}, r"line 3 is .*3 columns as the first one is"),
        ("a,good film\nb,bad film\n", {}, r"line 1 is .*separated by commas \(CSV\).*excel-tab"),
        ("label;text\na;x\n", {}, r"separated by semicolons"),
    ],
)
def test_what_cannot_be_told_apart_names_the_first_lines_and_the_remedy(
    tmp_path, text, keys, expected
):
    path = write(tmp_path / "all.tsv", text)
    with pytest.raises(DataError, match=expected) as caught:
        open_tsv(path, **keys)
    assert str(path) in str(caught.value)


def test_unique_labels_are_accepted_where_the_user_named_the_columns(tmp_path):
    path = write(tmp_path / "all.tsv", rows("S", "L"))
    assert open_tsv(path, label_column="1", text_column="2").num_classes == 12


def test_quoted_cells(tmp_path):
    text = (
        'label\ttext\na\t"says ""no"", twice"\nb\t"over\ntwo lines"\na\t"a\ttab"\n'
        'b\t"open quote\na\t"great" he said\nb\t5" wide\n'
    )
    texts = open_tsv(write(tmp_path / "d/train.tsv", text + "\n"))
    assert sorted(texts.sentences) == [
        '"great" he said', '"open quote', '5" wide', "a\ttab", "over\ntwo lines",
        'says "no", twice',
    ]  # fmt: skip
    swapped = 'text\tlabel\n"a\ttab"\tx\nplain\ty\n'
    assert sorted(open_tsv(write(tmp_path / "s.tsv", swapped)).sentences) == ["a\ttab", "plain"]


def test_labels_that_differ_in_case_or_blanks_are_one_class(tmp_path):
    text = "Good\tx\ngood \ty\ngood\tz\nBAD\tu\nbad\tv\nCafe\u0301\tw\nCaf\u00e9\tq\n"
    texts = open_tsv(write(tmp_path / "all.tsv", text))
    assert texts.num_classes == 3
    assert texts.class_names[1:] == ("Cafe\u0301", "good")
    assert np.bincount(texts.labels).tolist() == [2, 2, 3]
    assert "labels that differ in case only are one class: 'Good', 'good'; " in texts.notes[-1]


def test_a_test_file_has_its_own_header_or_none(tmp_path):
    write(tmp_path / "d/train.tsv", "text\tlabel\nx\ta\ny\tb\n")
    for content in ("z\ta\n", "text\tlabel\nz\ta\n", "label\ttext\na\tz\n"):
        write(tmp_path / "d/test.tsv", content)
        texts = open_tsv(tmp_path / "d")
        assert list(texts.sentences) == ["x", "y", "z"]
        assert texts.labels.tolist() == [0, 1, 0]
    assert texts.notes[:2] == (
        "tsv: sentences of 2 classes, 2 in train.tsv and 1 in test.tsv",
        "the first line is a header: label 'label', text 'text'",
    )


def test_a_csv_file_in_its_place_is_named(tmp_path):
    write(tmp_path / "d/train.csv", "label,text\na,x\n")
    with pytest.raises(DataError, match=r"no train\.tsv found.*There is .*train\.csv: save it"):
        open_tsv(tmp_path / "d")


def test_many_lines_and_labels_take_seconds(tmp_path):
    lines = [f"label {row // 10}\tsentence {row}" for row in range(50_000)]
    path = write(tmp_path / "all.tsv", "\n".join(lines))
    start = time.perf_counter()
    assert open_tsv(path).num_classes == 5_000
    assert time.perf_counter() - start < 20
    path.write_text("\n".join(f"label {row}\tx" for row in range(21_000)))
    with pytest.raises(DataError, match=r"21000 different labels in 21000 lines"):
        open_tsv(path)
    with pytest.raises(DataError, match=r"21,000 different labels, at most 20,000"):
        open_tsv(path, label_column="1", text_column="2")


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


def test_labels_that_are_one_number_or_look_alike_are_one_class(tmp_path):
    """pandas writes 1.0 for 1 beside a missing value; copied cells bring signs of no width."""
    write(tmp_path / "d/train.tsv", "0.0\tx\n1.0\ty\n1.0\tz\n2.5\tu\nno\u200b\tv\nno\tw\n")
    write(tmp_path / "d/test.tsv", "0\tp\n1\tq\n2.50\tr\n\ufeffno\ts\n")
    texts = open_tsv(tmp_path / "d")
    assert texts.num_classes == 5  # 0, 1, 2.5, 2.50, no
    assert texts.labels[[1, 2, 7]].tolist() == [1, 1, 1]
    assert len(set(texts.labels[[4, 5, 9]])) == 1
    assert "labels that are one number are one class: '0', '0.0'; '1', '1.0'" in texts.notes


def test_a_label_that_may_be_missing_is_told(tmp_path):
    path = write(tmp_path / "all.tsv", "a\tx\na\ty\nb\tz\nb\tu\nnan\tv\nN/A\tw\nnan\tq\n")
    assert (
        "taken as classes: 'N/A' (1 lines), 'nan' (2 lines); if these labels are missing, remove "
        "the lines"
    ) in open_tsv(path).notes
