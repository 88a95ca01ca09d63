"""A poisoned update that passed all checks: resuming goes back to the state before it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from server_app.rounds.exchange import RunError
from server_app.rounds.in_process import InProcessGrid
from strategies.base.messages import INFO
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import ARRAYS
from strategies.base.wire import read_entries, write_entries
from tests.support import Outcome, run_federation

SETTINGS: dict[str, Any] = {
    "method": "fedavg", "models": "resnet10-w4", "subset": 0.05, "image_size": 16,
    "feature_dim": 16, "num_rounds": 3, "max_update": 0.0,
}  # fmt: skip


class PoisoningGrid(InProcessGrid):
    """Client 1 sends 1e30 for every weight in round 2."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        messages = list(super().pull_messages(message_ids))
        for message in messages:
            if message.has_error():
                continue
            info = message.content.get(INFO)
            if info and (info["client-id"], info["round"]) == (1, 2) and ARRAYS in message.content:
                entries = read_entries(message.content)
                poisoned = [
                    (key, np.full_like(item, 1e30) if item.dtype.kind == "f" else item)
                    for key, item in entries.items()
                ]
                message.content.update(write_entries(poisoned))
        return messages


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_federation(tmp_path_factory.mktemp("untouched"), 2, **SETTINGS)


def test_resume_goes_back_to_the_newest_good_state(
    untouched: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match="round 3: none of 2 participants answered validly"):
        run_federation(tmp_path, 2, grid_class=PoisoningGrid, **SETTINGS)
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["round-00001.safetensors", "round-00002.safetensors"]
    with pytest.raises(ConfigError, match=r"resume-round = 3: expected a round .* \(1, 2\), or 0"):
        run_federation(tmp_path, 2, resume="run", resume_round=3, **SETTINGS)
    capsys.readouterr()
    again = run_federation(tmp_path, 2, resume="run", **SETTINGS)
    printed = capsys.readouterr().out
    assert "training diverged after round 1, so that is where the run goes on" in printed
    assert "resuming after round 1" in printed
    assert again.config["status"] == "completed"
    # As if nothing had been: the very numbers of a run without the poisoned update.
    assert again.text("metrics.csv") == untouched.text("metrics.csv")
    # The finished run, taken back to a round of one's choice, ends as it did.
    again = run_federation(tmp_path, 2, resume="run", resume_round=2, **SETTINGS)
    printed = capsys.readouterr().out
    assert "resuming after round 2" in printed
    assert "diverged" not in printed
    assert again.text("metrics.csv") == untouched.text("metrics.csv")
    assert again.config["config"]["resume-round"] == 0


def test_a_poisoned_update_is_refused_where_updates_are_bounded(tmp_path: Path) -> None:
    run = run_federation(tmp_path, 2, grid_class=PoisoningGrid, **SETTINGS | {"max_update": 1e15})
    (row,) = run.rows("failures")
    assert (row["round"], row["client"], row["kind"]) == ("2", "1", "train")
    assert row["reason"].startswith("refused payload: weights: its size is 1e+30, more than 1e+15")


def test_a_round_to_resume_from_needs_a_run_to_resume() -> None:
    with pytest.raises(ConfigError, match="resume-round = 3: expected 0 without resume"):
        parse_run_config({"resume-round": 3})
