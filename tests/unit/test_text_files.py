"""The one reader of text files that users write, and every place that goes through it."""

import codecs
import os

import numpy as np
import pytest
from PIL import Image

import data
from data import DataError, DataSpec, load_dataset
from data.text_files import read_user_text
from deploy.compare.plan import read_plan
from deploy.fleet.fleet_file import read_fleet
from deploy.yaml_files import read_yaml
from strategies.base.options import ConfigError

pytestmark = pytest.mark.usefixtures("private_cache")

TEXT = "grün\tgut 好\nrot\tschlecht\n"
ENCODINGS = {
    "utf-8": TEXT.encode(),
    "utf-8 with a mark": codecs.BOM_UTF8 + TEXT.encode(),
    "utf-16 little": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "utf-16 big": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "utf-32": codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
    "windows line ends": TEXT.replace("\n", "\r\n").encode(),
    "old macintosh line ends": TEXT.replace("\n", "\r").encode(),
}


@pytest.mark.parametrize("content", ENCODINGS.values(), ids=ENCODINGS)
def test_one_text_however_an_editor_saved_it(tmp_path, content):
    path = tmp_path / "some.txt"
    path.write_bytes(content)
    assert read_user_text(path) == TEXT


def test_a_carriage_return_within_a_line_stays(tmp_path):
    path = tmp_path / "some.txt"
    path.write_bytes(b"a\rb\nc\r\n")
    assert read_user_text(path) == "a\rb\nc\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb\ncaf\xe9\n", r"line 3 is not UTF-8 \(byte 0xe9.*iconv -f latin1 -t utf-8"),
        ("a\nb".encode("utf-16-le"), r"line 1 holds a zero byte.*iconv -f utf-16le"),
        (codecs.BOM_UTF16_LE + "a\n\ud800b".encode("utf-16-le", "surrogatepass"), "line 2 is not"),
        (codecs.BOM_UTF16_LE + "ab".encode("utf-16-le")[:3], "line 1 is not UTF-16-LE"),
    ],
)
def test_what_is_no_text_is_named_with_its_line(tmp_path, content, expected):
    path = tmp_path / "some.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=expected) as caught:
        read_user_text(path)
    assert str(path) in str(caught.value)


def test_only_regular_files_of_a_bounded_size_are_opened(tmp_path):
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(DataError, match="no regular file"):
            read_user_text(path)
    large = tmp_path / "large.txt"
    large.write_bytes(b"x" * 11)
    with pytest.raises(DataError, match=r"11 bytes; at most 10 are read"):
        read_user_text(large, limit=10)
    with pytest.raises(DataError, match=r"none\.txt cannot be read \(No such file"):
        read_user_text(tmp_path / "none.txt")


def forms(text):
    """Return a text in the forms that editors leave it in."""
    yield codecs.BOM_UTF8 + text.encode()
    yield codecs.BOM_UTF16_LE + text.encode("utf-16-le")
    yield text.replace("\n", "\r\n").encode()


LATIN = "\n# caf\xe9\n".encode("latin-1")


def test_class_lists(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "train" / name / "0.png")
    for content in forms("cat\ndog\nbird\n"):
        (tmp_path / "classes.txt").write_bytes(content)
        data.clear_memory()
        dataset = load_dataset(DataSpec("imagefolder", data_dir=str(tmp_path)))
        assert dataset.class_names == ("cat", "dog", "bird")
    (tmp_path / "classes.txt").write_bytes(b"cat\ndog\n" + LATIN)
    data.clear_memory()
    with pytest.raises(DataError, match=r"classes\.txt, line 4 is not UTF-8"):
        load_dataset(DataSpec("imagefolder", data_dir=str(tmp_path)))


def test_sentences(tmp_path):
    for content in forms("label\ttext\na\tx\nb\ty\na\tz\n"):
        (tmp_path / "train.tsv").write_bytes(content)
        data.clear_memory()
        texts = load_dataset(DataSpec("tsv", data_dir=str(tmp_path)))
        assert sorted(texts.sentences) == ["x", "y", "z"]
        assert np.bincount(texts.labels).tolist() == [2, 1]


COMPARISON = """\
name: mine
output-dir: /tmp/none
clients: 2
methods: [local]
seeds: [0]
"""
FLEET = """\
name: mine
devices:
  - {client-id: 0, model: cnn1, data-dir: /tmp/none}
"""


@pytest.mark.parametrize(("read", "text"), [(read_plan, COMPARISON), (read_fleet, FLEET)])
def test_comparisons_and_fleets(tmp_path, read, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    plain = read(path)
    for content in forms(text):
        path.write_bytes(content)
        assert repr(read(path)) == repr(plain)
    path.write_bytes(text.encode() + LATIN)
    line = text.count("\n") + 2
    with pytest.raises(ConfigError, match=rf"mine\.yaml, line {line} is not UTF-8.*iconv"):
        read(path)
    path.write_text(text + "name: other\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: .*'name' is given twice"):
        read(path)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001), (".5", 0.5), ("-1.5E+2", -150.0), ("1.", 1.0), ("010", 10), ("0x1f", 31),
        ("-7", -7), ("true", True), ("null", None), ("", None), ("off", "off"), ("no", "no"),
        ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("'1e-3'", "1e-3"), ("[1e1, a]", [10.0, "a"]),
    ],
)  # fmt: skip
def test_a_plain_yaml_value_is_what_it_looks_like(tmp_path, written, value):
    file = tmp_path / "one.yaml"
    file.write_text(f"key: {written}\n")
    (read,) = read_yaml(file, "YAML").values()
    assert (read, type(read)) == (value, type(value))
