"""Clients that send wrong numbers, in a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from deploy.attack.poison import Cell, Trial, multiplied, poison, table
from deploy.cli import main
from deploy.contract.runs import TINY
from server_app.records.run_reader import read_run
from server_app.records.scores import main_scores, weighted_mean
from strategies.base.options import ConfigError


def a_trial(directory: Path, **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "name": "poison", "clients": 4, "bad": 1, "methods": ("fedavg",),
        "means": ("off", "median"), "factors": (1.0, -1.0), "seeds": (0,),
        "settings": {
            **{key.replace("_", "-"): value for key, value in TINY.items()},
            "num-rounds": 1, "models": "cnn5", "partition": "iid",
            "output-dir": str(directory), "report": False,
        },
    }  # fmt: skip
    return Trial(**{**fields, **changes})


def test_only_floating_point_numbers_are_multiplied() -> None:
    record = ArrayRecord({
        "weight": Array(np.array([1.5, -2.0], dtype=np.float32)),
        "half": Array(np.array([6e4], dtype=np.float16)),
        "counts": Array(np.array([3, 4], dtype=np.int64)),
    })  # fmt: skip
    found = {name: array.numpy() for name, array in multiplied(record, -10.0).items()}
    assert found["weight"].tolist() == [-15.0, 20.0]
    assert found["half"].tolist() == [-np.inf]  # as a device would send it
    assert found["counts"].tolist() == [3, 4]
    assert [found[name].dtype.name for name in found] == ["float32", "float16", "int64"]


def test_a_trial_scores_the_honest_and_is_not_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = a_trial(tmp_path)
    cells = poison(trial)
    assert [(c.mean, c.factor, c.status) for c in cells] == [
        ("off", 1.0, "completed"), ("median", 1.0, "completed"),
        ("off", -1.0, "completed"), ("median", -1.0, "completed"),
    ]  # fmt: skip
    bad = read_run(tmp_path / "poison-1-bad-x-1-fedavg-off-seed0")
    final = main_scores(bad).final()
    assert set(final) == {0, 1, 2, 3}
    assert cells[2].score == weighted_mean(final[client] for client in (1, 2, 3))
    honest = read_run(tmp_path / "poison-honest-fedavg-off-seed0")
    assert not honest.metrics.equals(bad.metrics)
    assert "poison-1-bad-x-1-fedavg-median-seed0" in capsys.readouterr().out
    monkeypatch.setattr("deploy.attack.poison.server_app", None)
    assert poison(trial) == cells


def test_a_run_goes_on_without_who_is_in_quarantine(tmp_path: Path) -> None:
    """FedRE's label of negative numbers is refused three times; the others finish their rounds."""
    settings = a_trial(tmp_path).settings | {"num-rounds": 4}
    (cell,) = poison(a_trial(
        tmp_path, methods=("fedre",), means=("off",), factors=(-1.0,), settings=settings
    ))  # fmt: skip
    assert cell.status == "completed"
    assert cell.refused == 4  # three answers, and the quarantine that they led to
    assert cell.score is not None


def test_what_cannot_be_meant_is_refused_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="robust-mean = 'median': expected off with method"):
        poison(a_trial(tmp_path, methods=("fedavg", "local")))
    assert not list(tmp_path.iterdir())
    arguments = ["poison", "--methods", "fedavg", "--clients", "4", "--bad", "4"]
    assert main(arguments) == 2
    assert "--bad = 4: expected at least 1 and fewer than --clients = 4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["poison", "--methods", "fedavg", "--factors", "1"])
    assert "expected finite numbers by commas, none 1" in capsys.readouterr().err


def test_the_table_says_what_was_refused_and_what_did_not_complete() -> None:
    trial = a_trial(Path(), means=("off",), factors=(1.0, 10.0), seeds=(0, 1))
    cells = [
        Cell("fedavg", "off", 1.0, "completed", 0.9, 0),
        Cell("fedavg", "off", 1.0, "completed", 0.8, 0),
        Cell("fedavg", "off", 10.0, "completed", 0.7, 2),
        Cell("fedavg", "off", 10.0, "failed", None, 1),
    ]
    assert table(trial, cells).splitlines() == [
        "| method | mean | all honest | 1 bad, x 10 |",
        "|---|---|---:|---:|",
        "| fedavg | off | 85.00 ± 7.07 | 70.00, 3 refused, 1 not completed |",
    ]
