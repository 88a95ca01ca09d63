"""Progress within a round: rare lines, none in short rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.contract.runs import TINY
from server_app.rounds import progress
from server_app.rounds.progress import RoundProgress
from tests.support import run_federation


@pytest.mark.parametrize(("terminal", "lines"), [(True, 3), (False, 0)])
def test_lines_are_rare_and_rarer_in_a_log(
    terminal: bool, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: terminal)
    shown = RoundProgress("round 3", 10)
    for _ in range(10):
        now[0] += 2.0
        shown.answered()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == lines
    if terminal:  # after 6 s: 3 of 10, so 14 s more at this pace
        assert said[0] == "round 3: 3 of 10 clients, about 14 s left"


def test_a_round_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    monkeypatch.setattr(progress, "PAUSE_IN_LOG", 0.0)
    run_federation(tmp_path, 3, **TINY, method="local", num_rounds=1, sample_fraction=0.67)
    said = [line for line in capsys.readouterr().out.splitlines() if " s left" in line]
    assert [line.partition(",")[0] for line in said if "about" in line] == [
        "round 1: 1 of 3 clients",
        "round 1: 2 of 3 clients",
        "closing evaluation: 1 of 3 clients",
        "closing evaluation: 2 of 3 clients",
    ]
