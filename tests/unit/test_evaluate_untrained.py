"""`evaluate-untrained = false`: who has not trained is in no mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import Outcome, run_federation

SETTINGS: dict[str, Any] = {"subset": 0.1, "num_rounds": 4, "sample_fraction": 0.4}


def measured(run: Outcome, number: int, metric: str = "accuracy") -> dict[str, set[str]]:
    """Return who measured a metric in a round, by phase."""
    found: dict[str, set[str]] = {}
    for row in run.metrics(metric=metric, round=number):
        found.setdefault(row["phase"], set()).add(row["client"])
    return found


def trained_before(run: Outcome, number: int) -> set[str]:
    rows = run.metrics(phase="train", metric="loss")
    return {row["client"] for row in rows if int(row["round"]) < number}


@pytest.mark.parametrize("when", ["pre", "post", "both"])
def test_only_clients_that_have_trained_are_measured(tmp_path: Path, when: str) -> None:
    """All else stays as it is, bit for bit: training, and what those clients measure."""
    whole = run_federation(tmp_path / "whole", 5, evaluate_when=when, **SETTINGS)
    run = run_federation(
        tmp_path / "part", 5, evaluate_when=when, evaluate_untrained=False, **SETTINGS
    )
    for number in range(1, 5):
        before, with_this = trained_before(run, number), trained_before(run, number + 1)
        expected = {"post": with_this} if when == "post" else {"pre": before} if before else {}
        if number == 4 and when != "post":
            expected["final"] = with_this
        assert measured(run, number) == expected
        if when == "both":
            participants = {r["client"] for r in run.metrics(phase="train", round=number)}
            assert measured(run, number, "trained_accuracy") == {"post": participants}
    assert len(trained_before(run, 5)) < 5
    rows = run.rows("metrics")
    assert [row for row in whole.rows("metrics") if row in rows] == rows
    basis = run.summary["rests_on"]["classification"]
    away = sorted({"0", "1", "2", "3", "4"} - trained_before(run, 5))
    assert f"not in the last evaluation: client{'s' if len(away) > 1 else ''} " in str(basis)
    assert "never trained" not in str(basis)


def test_the_servers_models_are_measured_by_all(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 5, method="fedavg", models="cnn5", evaluate_untrained=False, **SETTINGS
    )
    assert measured(run, 1) == {"pre": set("01234")}


def test_a_resume_goes_on_with_the_same_clients(tmp_path: Path) -> None:
    settings = {**SETTINGS, "evaluate_untrained": False}
    whole = run_federation(tmp_path / "whole", 5, **settings)
    run_federation(tmp_path / "parts", 5, **{**settings, "num_rounds": 2})
    parts = run_federation(tmp_path / "parts", 5, resume="run", **settings)
    assert parts.text("metrics.csv") == whole.text("metrics.csv")
