"""Data sets of the Hugging Face hub's layout, read from copies: no test reaches the hub."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from PIL import Image as Pillow
from pyarrow import parquet

import data
from data import DataError, DataSpec, ImageDataset, TextDataset, load_client_data, load_dataset
from data.hub import folders_of
from data.hub_examples import _stored
from tests.support import run_federation

pytestmark = pytest.mark.usefixtures("private_cache")


def png(value: int, mode: str = "RGB", size: int = 8) -> bytes:
    file = io.BytesIO()
    Pillow.new(mode, (size, size), value if mode == "L" else (value, 0, 0)).save(file, "PNG")
    return file.getvalue()


def rows_of(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def images(count: int, **more) -> list[dict]:
    return [
        {"image": {"bytes": png(10 * n), "path": None}, "label": n % 2, **more}
        for n in range(count)
    ]


def opened(path: Path, name: str = "hf:me/mine", **changes):
    data.clear_memory()
    return load_dataset(DataSpec(name, data_dir=str(path), **changes))


def refused(path: Path, match: str, **changes) -> None:
    with pytest.raises(DataError, match=match):
        opened(path, **changes)


def test_a_copy_of_the_hubs_layout(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for part, count in (("train", 6), ("validation", 3), ("test", 2)):
        rows_of(folder / f"data/{part}-00000-of-00001.parquet", images(count, user=f"u{part}"))
    found = opened(folder)
    assert isinstance(found, ImageDataset)
    assert (len(found), found.train_size, found.validation_size) == (11, 9, 3)
    assert found.class_names == ("0", "1")
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1]
    assert found.images[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50, 0, 10, 20, 0, 10]
    assert "images in column 'image', label 'label' of 2 classes, 6 in train" in found.notes[0]
    both = opened(folder, data_split="validation, test")
    assert (both.train_size, len(both), both.notes[1]) == (3, 5, "splits not used: train")
    held_out = opened(folder, data_split="train")
    assert (held_out.train_size, len(held_out)) == (4, 6)
    refused(
        folder, r"data-split='Train'.*has the splits train, validation, test", data_split="Train"
    )


def test_classes_keep_the_names_that_the_data_set_gives(tmp_path: Path) -> None:
    features = Features(img=Image(), fine=ClassLabel(names=["b", "a", "none here"]))
    pictures = [Pillow.new("L", (8, 8), n) for n in range(10)]
    made = Dataset.from_dict({"img": pictures, "fine": [0, 1] * 5}, features=features)
    DatasetDict({"all": made}).save_to_disk(tmp_path / "saved")
    made.to_parquet(tmp_path / "one.parquet")
    for place in (tmp_path / "saved", tmp_path / "one.parquet"):
        found = opened(place)
        assert found.class_names == ("b", "a", "none here")
        assert found.images.shape == (10, 1, 8, 8)
        assert sorted(found.images[:, 0, 0, 0]) == list(range(10))
        assert (found.labels == found.images[:, 0, 0, 0] % 2).all()
    unknown = Dataset.from_dict({"img": pictures, "fine": [-1] * 10}, features=features)
    unknown.to_parquet(tmp_path / "unknown.parquet")
    refused(tmp_path / "unknown.parquet", "10 of 10 rows of its train part have no label in col")


def test_images_in_folders_and_labels_that_are_words_or_numbers(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name, value in (("cat", 1), ("dog", 2)):
            folder = tmp_path / "folders" / part / name
            folder.mkdir(parents=True)
            for number in range(3):
                (folder / f"{number}.png").write_bytes(png(value))
    assert opened(tmp_path / "folders").class_names == ("cat", "dog")
    scores = [{"photo": png(n, "L"), "label": 10 * (n % 2) - 1.0} for n in range(6)]
    found = opened(rows_of(tmp_path / "n.parquet", scores))
    assert (found.class_names, found.channels) == (("-1.0", "9.0"), 1)
    (tmp_path / "files").mkdir()
    paths = [{"image": f"{n}.png", "kind": "ab"[n % 2]} for n in range(6)]
    for n in range(6):
        (tmp_path / f"files/{n}.png").write_bytes(png(n))
    (tmp_path / "files/rows.jsonl").write_text("\n".join(json.dumps(row) for row in paths))
    found = opened(tmp_path / "files/rows.jsonl", label_column="kind")
    assert sorted(found.images[:, 0, 0, 0]) == [0, 1, 2, 3, 4, 5]
    assert found.class_names == ("a", "b")


@pytest.mark.parametrize("as_record", [False, True])
def test_images_stay_in_their_folder(tmp_path: Path, as_record: bool) -> None:
    """Rows are a stranger's; they must not have other files of this device read."""
    for name in ("outside.png", "mine/0.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(1))
    places = (
        "../outside.png",
        str(tmp_path / "outside.png"),
        str(tmp_path / "mine/../outside.png"),
    )
    for place in places:
        named = ["0.png", "0.png", "0.png", place]
        rows = [
            {"image": {"bytes": None, "path": name} if as_record else name, "label": n % 2}
            for n, name in enumerate(named)
        ]
        file = rows_of(tmp_path / "mine/rows.parquet", rows)
        refused(file, "row 4 of its train part names the picture .*outside.png', which is no file")


def test_files_from_the_hub_lie_where_it_puts_them(tmp_path: Path) -> None:
    found = folders_of(None, tmp_path)
    assert found[0] == tmp_path
    assert {"downloads", "hub"} <= {folder.name for folder in found[1:]}
    with pytest.raises(DataError, match="row names the picture"):
        _stored({"bytes": None, "path": "/etc/x.png"}, found, "row")
    inner = found[2] / "x" / "1.png"
    assert _stored({"bytes": None, "path": str(inner)}, found, "row") == (None, inner)


def test_what_is_not_clear_is_refused_by_key(tmp_path: Path) -> None:
    file = rows_of(tmp_path / "x.parquet", images(6, other=png(1), target=1))
    refused(
        file, "image-column='pic'.*no such column; it has image .*label .int64", image_column="pic"
    )
    refused(file, "several columns that may be meant: label, target; set label-column")
    refused(
        file,
        "image-column='target'.*int64.*expected are images",
        image_column="target",
        label_column="label",
    )
    refused(file, "the one label '1'", label_column="target")
    refused(file, "expected are one class an example", label_column="other")
    refused(
        file,
        "text-column='other'.*expected are sentences",
        text_column="other",
        label_column="label",
    )
    bad = images(6)
    bad[3]["image"]["bytes"] = b"no image"
    refused(rows_of(tmp_path / "bad.parquet", bad), "row 4 of its train part.*not an image")
    gap = images(6)
    gap[1]["image"] = None
    refused(rows_of(tmp_path / "gap.parquet", gap), "row 2 of its train part has no image")
    rows_of(tmp_path / "parts/one.parquet", images(2))
    plain = rows_of(tmp_path / "plain.parquet", [{"a": 1.5, "label": n % 2} for n in range(6)])
    refused(plain, "no column of images or sentences; it has a .float64.*dataset=tabular")
    refused(tmp_path / "none", "there is no such folder or file")
    refused(rows_of(tmp_path / "x.npz", images(2)), "one file that ends in .parquet, .csv")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/code.py").write_text("raise SystemExit(3)")
    refused(tmp_path / "code", "Code of a data set is not run")
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1")
    refused(damaged, "damaged.parquet: .*data-dir has to be a copy")


def test_sentences_from_any_column(tmp_path: Path) -> None:
    rows = [
        {"title": f"t{n}", "body": f"it is number {n}", "mood": "good" if n % 2 else "bad"}
        for n in range(10)
    ]
    file = rows_of(tmp_path / "x.parquet", rows)
    refused(file, "which column is the label is not known; set label-column to one of title")
    refused(
        file, "several columns that may be meant: title, body; set text-column", label_column="mood"
    )
    found = opened(file, label_column="mood", text_column="body")
    assert isinstance(found, TextDataset)
    assert (found.class_names, found.train_size, len(found)) == (("bad", "good"), 8, 10)
    for sentence, label in zip(found.sentences, found.labels, strict=True):
        assert int(sentence[-1]) % 2 == label
    refused(
        file,
        "column 'title' has 10 different values in 10 rows",
        label_column="title",
        text_column="body",
    )
    with pytest.raises(DataError, match=r'has sentences and no images.*tasks="text@hf:me/mine"'):
        load_client_data(
            DataSpec("hf:me/mine", data_dir=str(file), label_column="mood", text_column="body"),
            0,
            2,
        )


@pytest.mark.parametrize(("suffix", "sign"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_sentences_in_a_table_of_text(tmp_path: Path, suffix: str, sign: str) -> None:
    lines = [["id", "Kommentar", "Sterne"]]
    lines += [[str(n), f'"number {n}{sign} quoted"', str(1 + 4 * (n % 2))] for n in range(20)]
    file = tmp_path / f"reviews.{suffix}"
    file.write_text("\n".join(sign.join(line) for line in lines), encoding="utf-8-sig")
    refused(file, "which column is the label is not known; set label-column to one of id")
    found = opened(file, label_column="Sterne")
    assert isinstance(found, TextDataset)
    assert found.class_names == ("1", "5")
    assert sorted(found.sentences)[0] == f"number 0{sign} quoted"


def test_one_client_a_writer(tmp_path: Path) -> None:
    rows = [{"image": png(n), "label": n % 2, "writer_id": n // 8} for n in range(24)]
    file = rows_of(tmp_path / "x.parquet", rows)
    spec = DataSpec("hf:me/mine", data_dir=str(file), partition="natural:writer_id")
    for client in range(3):
        mine = load_client_data(spec, client, 3)
        shown = [mine.train, mine.validation, mine.test]
        values = np.concatenate([part.dataset.images[part.indices, 0, 0, 0] for part in shown])
        assert sorted(values) == list(range(8 * client, 8 * client + 8))
    with pytest.raises(DataError, match="3 different values of 'writer_id'"):
        load_client_data(spec, 0, 2)
    refused(file, "has no column 'user'", partition="natural:user")


@pytest.mark.parametrize(
    ("raised", "match"),
    [
        ("ConnectionError:Couldn't reach 'o/n' on the Hub", "hf download .* --local-dir DIR"),
        ("DatasetNotFoundError:Dataset 'o/n' is a gated dataset on the Hub.", "Accept its terms"),
        ("ValueError:Config name is missing. Pick one of: ['a', 'b']", "'a'.*data-config=''"),
        ("RuntimeError:Dataset scripts are no longer supported", "o/n@refs/convert/parquet"),
    ],
)
def test_what_the_hub_refuses_is_said_with_the_remedy(monkeypatch, raised, match) -> None:
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    kinds = {"DatasetNotFoundError": DatasetNotFoundError, "ConnectionError": ConnectionError}
    kind, _, text = raised.partition(":")
    asked = []

    def fail(*arguments, **keywords):
        asked.append((arguments, keywords["revision"]))
        raise kinds.get(kind, {"ValueError": ValueError}.get(kind, RuntimeError))(text)

    monkeypatch.setattr(datasets, "load_dataset", fail)
    data.clear_memory()
    with pytest.raises(DataError, match=match) as caught:
        load_dataset(DataSpec("hf:o/n@v1"))
    assert "\n" not in str(caught.value)
    assert asked == [(("o/n", None), "v1")]


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c", "hf:../x y", "hub"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(DataError, match=r"dataset=.*or hf:ORG/NAME"):
        DataSpec(name)


def test_a_run_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"image": png(n % 2), "text": ["it is bad", "so good"][n % 2], "label": n % 2}
        for n in range(60)
    ]
    run = run_federation(
        tmp_path, 2, method="fedavg", models="text-small", tasks="text", dataset="hf:me/mine",
        data_dir=str(rows_of(tmp_path / "x.parquet", rows)), text_column="text", subset=1.0,
        num_rounds=1, partition="iid", feature_dim=16, optimizer="adam", lr=0.003, batch_size=8,
        local_epochs=4,
    )  # fmt: skip
    assert run.summary["accuracy"]["final"] > 0.9
    assert "sentences in column 'text'" in capsys.readouterr().out


def test_public_items_by_name(tmp_path: Path) -> None:
    """The same pictures for every shape, of training rows; a run aligns with them."""
    rows_of(tmp_path / "data/train-0.parquet", images(20))
    rows_of(tmp_path / "data/test-0.parquet", images(4))
    grey = data.load_public("hf:me/mine", 6, 1, 0, str(tmp_path))
    large = data.load_public("hf:me/mine", 6, 3, 16, str(tmp_path))
    assert (grey.images.shape, large.images.shape) == ((6, 1, 64, 64), (6, 3, 16, 16))
    assert grey.fingerprint == large.fingerprint
    assert grey.rows.max() < 20
    assert set(large.images[:, 0].max(axis=(1, 2)).tolist()) == {10 * int(r) for r in grey.rows}
    run = run_federation(
        tmp_path, 2, method="fedmuscle", models="cnn5", dataset="digits", subset=0.1, num_rounds=1,
        public_dataset="hf:me/mine", public_size=8, data_dir=str(tmp_path), image_size=16,
        **{"fedmuscle.batch-size": 4},
    )  # fmt: skip
    assert run.config["status"] == "completed"


def test_public_items_whose_columns_must_be_named_are_refused(tmp_path: Path) -> None:
    rows = [{"front": row["image"], "back": row["image"], "label": 0} for row in images(8)]
    rows_of(tmp_path / "data/train-0.parquet", rows)
    with pytest.raises(DataError, match=r"public-dataset=hf:me/mine: .* are of dataset alone"):
        data.load_public("hf:me/mine", 4, 3, 8, str(tmp_path))
