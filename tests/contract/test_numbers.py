"""Every method that serves tables trains on one; the others, and regressions, are refused early."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies.base.method import get_method, method_names
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from tests.support import run_federation

METHODS = {name: get_method(name) for name in method_names()}
SERVING = [name for name, method in METHODS.items() if method.reads_numbers]
#: Those that average weights train alike; two of them, and `test_a_number_is_learned`, are enough.
LIKE_FEDAVG = ("fedprox", "fednova", "inclusivefl", "moon", "lg-fedavg", "scaffold")
REGRESSING = [name for name, method in METHODS.items() if method.regression]
#: One method of every way of training; the others share theirs with one of these.
LEARNING = ("moon", "lg-fedavg", "scaffold")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a table of 120 rows whose class and number follow from two of its columns."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(120, 3))
    kinds = draw.choice(["red", "green"], 120)
    amounts = 1000 + 50 * (rows[:, 0] - rows[:, 1]) + 20 * (kinds == "red")
    lines = ["a,b,c,kind,amount,label"]
    for row, kind, amount in zip(rows, kinds, amounts, strict=True):
        cells = [*(f"{x:.4f}" for x in row), kind, f"{amount:.3f}"]
        lines.append(",".join([*cells, "high" if amount > 1000 else "low"]))
    path = tmp_path_factory.mktemp("table") / "train.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def settings(table: str, method: str) -> dict[str, Any]:
    return {
        "method": method, "dataset": "tabular", "data_dir": table, "partition": "iid",
        "models": "mlp-small, mlp-large", "feature_dim": 32, "subset": 1.0, "num_rounds": 1,
        **({"fedmrl__d1": 32} if method == "fedmrl" else {}),
    }  # fmt: skip


@pytest.mark.parametrize("method", [name for name in SERVING if name not in LIKE_FEDAVG])
def test_one_round_on_a_table(method: str, table: str, tmp_path: Path) -> None:
    run = run_federation(tmp_path, 2, **{**settings(table, method), "label_column": "label"})
    assert run.config["status"] == "completed"
    assert run.rows("failures") == []
    assert all(math.isfinite(float(row["value"])) for row in run.rows("metrics"))
    assert {row["client"] for row in run.metrics(metric="accuracy")} == {"0", "1"}
    assert [row["features"] for row in run.rows("clients")] == ["6", "6"]


@pytest.mark.parametrize("method", LEARNING)
def test_a_number_is_learned(method: str, table: str, tmp_path: Path) -> None:
    config = {**settings(table, method), "label_column": "amount", "tasks": "regression"}
    more = {
        "num_rounds": 2,
        "local_epochs": 6,
        "optimizer": "sgd",
        "lr": 0.05,
        "batch_size": 16,
        "report": method == "moon",
    }
    run = run_federation(tmp_path, 2, **{**config, **more, "models": "mlp-small"})
    scores = run.summary["scores"]["regression"]
    assert scores["metric"] == "r2"
    assert scores["final"] > 0.7
    errors = [float(row["value"]) for row in run.metrics(metric="mae", phase="final")]
    assert all(1 < error < 40 for error in errors)  # in the column's own unit
    assert {row["num_classes"] for row in run.rows("clients")} == {"1"}
    assert "30 test examples in all" in str(run.summary["rests_on"])
    assert "points" not in str(run.summary["rests_on"])
    if method == "moon":
        assert "regression r2" in run.text("report.html").casefold()


@pytest.mark.parametrize("method", [name for name in METHODS if name not in SERVING])
def test_methods_for_images_refuse_numbers(method: str) -> None:
    with pytest.raises(ConfigError, match=f"dataset = 'tabular': method '{method}' .*numbers"):
        parse_run_config({"method": method, "dataset": "tabular"})


@pytest.mark.parametrize("method", [name for name in METHODS if name not in REGRESSING])
def test_methods_for_classes_refuse_a_regression(method: str) -> None:
    """By name, before any data is looked for: the folder does not exist."""
    values = {"method": method, "tasks": "regression@series", "data-dir": "/nowhere"}
    with pytest.raises(ConfigError, match=f"method '{method}' works on classes.*fedavg"):
        parse_run_config(values)
