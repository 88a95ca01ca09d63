"""Former names of values: understood, named in a warning, and equal to the present ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strategies.base.former_names import in_present_words, warnings
from strategies.base.parsing import parse_run_config
from tests.support import run_federation


def test_the_group_of_five_cnns_has_a_name_of_its_own() -> None:
    assert parse_run_config({}).models == "five-cnns"
    assert parse_run_config({"models": " cnn5"}) == parse_run_config({"models": "five-cnns"})
    assert in_present_words({"models": "cnn5", "lr": 1}) == {"models": "five-cnns", "lr": 1}


@pytest.mark.parametrize("models", ["five-cnns", "*=cnn5", "cnn1, cnn5", "resnet5", 5])
def test_other_values_are_left_alone(models: object) -> None:
    assert in_present_words({"models": models}) == {"models": models}
    assert not warnings({"models": models})
    assert not warnings({})


def test_the_warning_names_value_and_remedies() -> None:
    (text,) = warnings({"models": "cnn5"})
    for part in ("models = 'cnn5'", "models='five-cnns'", "models='*=cnn5'", "next version"):
        assert part in text


def test_an_old_run_goes_on_under_the_new_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"method": "local", "subset": 0.1}
    run = run_federation(tmp_path, 2, models="cnn5", num_rounds=1, **settings)
    assert capsys.readouterr().out.count("warning: models = 'cnn5'") == 1
    assert [row["model"] for row in run.rows("clients")] == ["cnn1", "cnn2"]
    assert run.config["config"]["models"] == "five-cnns"
    # As an earlier version left it
    (run.path / "config.json").write_text(
        json.dumps(run.config | {"config": run.config["config"] | {"models": "cnn5"}})
    )
    run_federation(tmp_path, 2, models="five-cnns", num_rounds=2, resume="run", **settings)
    assert "warning: models" not in capsys.readouterr().out
    assert {row["round"] for row in run.metrics(phase="train")} == {"1", "2"}
