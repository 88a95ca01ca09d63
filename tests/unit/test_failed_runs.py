"""Runs that fail: one line that says why, and a directory that says so, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_app.rounds.exchange import RunError
from strategies.base.options import ConfigError
from strategies.base.server import RegistrationError
from tests.support import Outcome, run_federation


def test_wrong_value_fails_the_run_before_any_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U29: one line with key, value and what is expected; nothing is left behind."""
    with pytest.raises(ConfigError):
        run_federation(tmp_path, 3, models="resnet99")
    printed = capsys.readouterr().out.splitlines()
    (line,) = [line for line in printed if "configuration error" in line]
    assert "models" in line
    assert "'resnet99'" in line
    assert "expected" in line
    assert list(tmp_path.iterdir()) == []


def test_round_without_valid_answers_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A learning rate that diverges on every client: named, and the run does not complete."""
    with pytest.raises(RunError, match="none of 3 participants answered validly"):
        run_federation(tmp_path, 3, lr=1e30)
    assert "loss_ce became" in capsys.readouterr().out
    left = Outcome(tmp_path / "run")
    assert left.config["status"] == "failed"
    assert "none of 3 participants answered validly" in left.config["reason"]
    assert not (left.path / "summary.json").exists()


def test_missing_data_fails_the_run_and_says_what_to_do(tmp_path: Path) -> None:
    """U56: the folder looked in and what is expected there."""
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(RegistrationError, match="nowhere"):
        run_federation(tmp_path, 3, dataset="imagefolder", data_dir=nowhere, subset=1.0)
    left = Outcome(tmp_path / "run")
    assert left.config["status"] == "failed"
    assert "nowhere" in left.config["reason"]
