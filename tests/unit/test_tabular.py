"""Tables that people have: what is read, what is left out, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data
from data import DataError, DataSpec, TaskSpec, VectorDataset, load_dataset, load_task_data
from data.__main__ import main
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.server import RegistrationError
from tests.support import run_federation

pytestmark = pytest.mark.usefixtures("private_cache")

CLASSES, NUMBER = TaskSpec("classification", "tabular"), TaskSpec("regression", "tabular")


def table(path: Path, rows: int = 40, *, order: str = "x,colour,label", seed: int = 0) -> Path:
    """Write a table whose columns are in this order."""
    draw = np.random.default_rng(seed)
    lines = [order]
    for number in range(rows):
        cells = {
            "x": f"{draw.normal():.3f}", "z": f"{draw.normal():.3f}",
            "colour": ("red", "green", "blue")[number % 3], "label": "ab"[number % 2],
        }  # fmt: skip
        lines.append(",".join(cells[name] for name in order.split(",")))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def opened(place: Path, **changes: Any) -> VectorDataset:
    data.clear_memory()
    found = load_dataset(DataSpec("tabular", data_dir=str(place), **changes))
    assert isinstance(found, VectorDataset)
    return found


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_inputs_by_hand(tmp_path: Path) -> None:
    """Numbers by the training rows' mean and deviation, words as one input each, gaps said."""
    written(tmp_path / "train.csv", "age,town,label\n1,A,no\n3,B,yes\n,A,no\n5,,yes\n")
    written(tmp_path / "test.csv", "label,town,age\nyes,C,3\nno,B,1e9\n")
    found = opened(tmp_path)
    scale = np.std([1, 3, 5])
    low, high = (1 - 3) / scale, (5 - 3) / scale
    assert found.inputs.tolist() == pytest.approx(
        np.array([
            [low, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 1, 1, 0, 0], [high, 0, 0, 0, 1],
            [0, 0, 0, 0, 0], [10, 0, 0, 1, 0],  # a town that is not known; far off, cut
        ], np.float32)
    )  # fmt: skip
    assert (found.train_size, found.class_names) == (4, ("no", "yes"))
    assert found.labels.tolist() == [0, 1, 0, 1, 1, 0]
    assert found.targets is None
    said = "; ".join(found.notes)
    assert "1 words that no training row has in 'town'" in said
    assert "1 numbers cut off at 10 deviations in 'age'" in said


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfx;label\r\n1,5;a\r\n2,5;b\r\n",
        "x\tlabel\n1.5\ta\n2.5\tb\n",
        '"x"|"label"\n"1.5"|a\n2.5|b\n',
        "x,label\r1.5,a\r2.5,b\r",
        "x,label\n1.5,a\n2.5,b\n".encode("utf-16"),
    ],
)
def test_files_of_any_program(tmp_path: Path, text: str | bytes) -> None:
    given = written(tmp_path / "train.csv", text)
    written(tmp_path / "test.csv", "x,label\n2,a\n")
    found = opened(given.parent)
    assert found.inputs.ravel().tolist() == [-1, 1, 0]
    assert found.class_names == ("a", "b")


def test_parquet_is_read_as_the_same_table(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": [1.5, None, 4.0, 2.0], "on": [True, False, True, True]})
    frame["label"] = [1.0, 0.0, 1.0, 0.0]
    (tmp_path / "p").mkdir()
    frame.to_parquet(tmp_path / "p/train.parquet")
    (tmp_path / "c").mkdir()
    frame.to_csv(tmp_path / "c/train.csv")  # with an index, which would tell rows apart
    one, other = opened(tmp_path / "p"), opened(tmp_path / "c")
    assert np.array_equal(one.inputs, other.inputs)
    assert one.class_names == other.class_names == ("0.0", "1.0")
    assert one.columns_hash == other.columns_hash
    assert "an index: ''" in "; ".join(other.notes)
    bad = pd.DataFrame({"x": [[1], [2]], "label": [0, 1]})
    bad.to_parquet(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="column 'x' holds list"):
        opened(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        opened(written(tmp_path / "no.parquet", "x"))


def test_columns_that_tell_nothing_are_left_out_and_said(tmp_path: Path) -> None:
    rows = "".join(f"{n},7,name {n},{n * 1e140},../../etc,{'ab'[n % 2]}\n" for n in range(30))
    text = f"id,same,name,/tmp/../x,path,label\n{rows}"
    found = opened(written(tmp_path / "t.csv", text))
    assert found.inputs.shape == (30, 1)  # the column called like a path, whose numbers are huge
    assert np.isfinite(found.inputs).all()
    assert np.abs(found.inputs).max() < 3
    said = "; ".join(found.notes)
    for part in ("an index: 'id'", "the same in all training rows: 'same'", "24 different words"):
        assert part in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x,label\n1,a\n2,a\n3,a\n", "label 'label' has 1 different values"),
        ("x,y2\n1,a\n2,b\n", "which column is the label is not clear; set label-column.*x, y2"),
        ("x,class,label\n1,a,b\n2,b,a\n", "not clear.*x, class, label"),
        ("x,label\n1,a\n2\n", "line 3 has 1 cells and the first line 2"),
        ("x,label\n1,a\n2,\n", "line 3: column 'label' is empty, as in 1 of 2 rows"),
        ("x,x,label\n1,2,a\n2,3,b\n", "two columns called 'x'"),
        ("1,a\n2,b\n", "may be an example; set label-column"),
        ("x,label\n", "has no row of data"),
        ("", "has no two columns"),
        ("x,label\ninf,a\n2,b\n", "line 2: column 'x' is 'inf'"),
        ("x,label\n1e200,a\n2,b\n", "line 2: column 'x' is '1e200'"),
        ('x,label\n"1,200",a\n"2,300",b\n', "line 2: column 'x' has numbers.*'1,200'"),
        ("x,label\n" + "1,a\n2,b\n" * 10 + "oops,a\n", "line 22: column 'x' has numbers.*'oops'"),
        ("same,label\n1,a\n1,b\n", "no column beside the label 'label' can be used"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        opened(written(tmp_path / "train.csv", text))


def test_a_file_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "1,a,5\n2,b,7\n3,a,6\n4,b,9\n5,a,2\n6,b,1\n")
    found = opened(path, label_column="2")
    assert (found.inputs.shape, found.class_names) == ((6, 2), ("a", "b"))
    with pytest.raises(DataError, match=r"label-column='4'.*a number from 1 to 3"):
        opened(path, label_column="4")


def test_several_tables_in_a_folder(tmp_path: Path) -> None:
    table(tmp_path / "data/mine.csv")
    assert len(opened(tmp_path / "data")) == 40
    table(tmp_path / "data/other.csv")
    with pytest.raises(DataError, match=r"has mine.csv, other.csv; name the training file"):
        opened(tmp_path / "data")
    with pytest.raises(DataError, match=r"no train.csv found"):
        opened(tmp_path)


def test_numbers_are_classes_or_a_quantity(tmp_path: Path) -> None:
    """A few numbers, 1.0 and 0.0, are classes; many are a quantity; both may be predicted."""
    few = written(tmp_path / "few.csv", "x,label\n" + "1,0.0\n2,1.0\n3,0\n4,1\n" * 5)
    found = opened(few)
    assert (found.num_classes, found.continuous) == (2, False)
    numbers = load_task_data(DataSpec("tabular", str(few), "iid"), [NUMBER], 0, 1, None)
    assert sorted({float(y) for y in numbers.train.batch([0, 1, 2, 3])[1]}) == [-1, 1]
    draw = np.random.default_rng(0)
    lines = [f"{x:.3f},{300 + 40 * x:.2f}" for x in draw.normal(size=100)]
    many = written(tmp_path / "many.csv", "x,label\n" + "\n".join(lines))
    spec = DataSpec("tabular", str(many), "dirichlet", alpha=1.0, min_examples=3)
    assert opened(many).continuous
    with pytest.raises(DataError, match=r"the label is a number with many.*regression@tabular"):
        load_task_data(spec, [CLASSES], 0, 2, None)
    mine = load_task_data(spec, [NUMBER], 1, 2, None)
    assert (mine.num_classes, mine.metric, mine.class_names) == (1, "r2", ("label",))
    assert mine.train.class_counts() == {0: len(mine.train)}
    assert mine.quantity is not None
    inputs, targets = mine.train.batch(range(len(mine.train)))
    values = mine.quantity.mean + mine.quantity.scale * targets.numpy()
    assert np.allclose(targets, (values - mine.quantity.mean) / mine.quantity.scale)
    assert np.corrcoef(inputs.ravel(), targets)[0, 1] > 0.999
    with pytest.raises(DataError, match="no regression on tabular: the label is a word"):
        load_task_data(DataSpec("tabular", str(table(tmp_path / "w.csv"))), [NUMBER], 0, 1, None)
    written(tmp_path / "c/test.csv", "x,label\n" + "".join(f"{n},{n}.5\n" for n in range(30)))
    written(tmp_path / "c/train.csv", "x,label\n1,3\n2,3\n3,3\n")
    with pytest.raises(DataError, match="is 3 in all training rows"):
        opened(tmp_path / "c")


def test_a_schema_makes_devices_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unlike order of columns and means: refused where weights read them, unless agreed on."""
    table(tmp_path / "a/train.csv")
    table(tmp_path / "b/train.csv", order="label,colour,z,x", seed=1)
    nodes = {
        i: {"client-id": i, "data-dir": str(tmp_path / name)} for i, name in enumerate("aab")
    }  # fmt: skip
    config: dict[str, Any] = {
        "dataset": "tabular", "models": "mlp-small", "num_rounds": 1, "feature_dim": 32,
        "subset": 1.0,
    }  # fmt: skip
    with pytest.raises(RegistrationError, match=r"client 2: features is 5, the others.*json"):
        run_federation(tmp_path / "0", 3, nodes=nodes, method="fedavg", **config)
    own = run_federation(tmp_path / "1", 3, nodes=nodes, method="fedproto", **config)
    assert own.config["status"] == "completed"  # each client's reader is its own
    capsys.readouterr()
    written(tmp_path / "a/schema.json", "")  # as a shell makes it that writes to it
    assert main([str(tmp_path / "a")]) == 0
    text = capsys.readouterr().out
    for name in "ab":
        (tmp_path / name / "schema.json").write_text(text)
    data.clear_memory()  # a process looks at files once
    run = run_federation(tmp_path / "2", 3, nodes=nodes, method="fedavg", **config)
    assert len({row["columns_hash"] for row in run.rows("clients")}) == 1
    assert "read by schema.json" in run.rows("clients")[2]["data_notes"]
    (tmp_path / "b/schema.json").write_text(text.replace('"x"', '"speed"'))
    data.clear_memory()
    with pytest.raises(RegistrationError, match="has no column 'speed', its columns are label"):
        run_federation(tmp_path / "3", 3, nodes=nodes, method="fedavg", **config)
    content = json.loads(text)
    content["columns"][0]["scale"] = 0
    (tmp_path / "b/schema.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"is no schema .*scale 0 is not above 0"):
        opened(tmp_path / "b")
    assert main([str(tmp_path / "none")]) == 1


def test_one_client_a_user(tmp_path: Path) -> None:
    rows = "".join(f"{n},u{n % 3},{'ab'[n // 3 % 2]}\n" for n in range(60))
    path = written(tmp_path / "t.csv", f"x,user id,label\n{rows}")
    spec = DataSpec("tabular", str(path), "natural:user id", validation_fraction=0)
    data.clear_memory()
    parts = [load_task_data(spec, [CLASSES], client, 3, None) for client in range(3)]
    dataset = parts[0].dataset
    assert isinstance(dataset, VectorDataset)
    assert dataset.features == 1  # whose a row is, is no input
    for client, part in enumerate(parts):
        mine = np.concatenate([part.train.indices, part.test.indices])
        assert len(mine) == 20
        assert dataset.groups is not None
        assert set(dataset.groups[mine]) == {client}
    with pytest.raises(DataError, match=r"have 3 different values of 'user id'.*there are 10 cl"):
        load_task_data(spec, [CLASSES], 0, 10, None)
    with pytest.raises(DataError, match="has no column 'site', its columns are x, user id, label"):
        load_task_data(DataSpec("tabular", str(path), "natural:site"), [CLASSES], 0, 3, None)
    with pytest.raises(DataError, match="partition=natural:site: digits has no columns"):
        data.load_client_data(DataSpec("digits", partition="natural:site"), 0, 3)
    with pytest.raises(ConfigError, match=r"expected one of .*natural:COLUMN"):
        parse_run_config({"partition": "natural:"})


def test_images_are_not_varied_where_there_are_none() -> None:
    with pytest.raises(ConfigError, match=r"augment = .*expected none with tabular"):
        parse_run_config({"method": "fedavg", "dataset": "tabular", "augment": "crop-flip"})
    with pytest.raises(DataError, match="no regression on digits: digits has no numbers"):
        load_task_data(DataSpec(), [TaskSpec("regression", "digits")], 0, 1, None)
