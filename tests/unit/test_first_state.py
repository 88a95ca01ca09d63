"""First states that are kept while their clients are evaluated and have not trained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from client_app import first_state, handlers
from deploy.kept_run import KeptRun
from server_app.rounds.in_process import InProcessGrid
from strategies.base.options import ConfigError
from tests.support import Outcome, run_federation

SETTINGS: dict[str, Any] = {
    "models": "*=cnn5", "subset": 0.1, "num_rounds": 4, "sample_fraction": 0.4
}  # fmt: skip
"""Two of five clients train in a round; their states have 2 to 3 MB."""


class Watched(InProcessGrid):
    """Notes after every message which clients have a first state on their disk."""

    seen: list[set[int]]
    clients: Path

    def _answer(self, message: Any) -> Any:
        reply = super()._answer(message)
        files = self.clients.glob("client-*/round-00000.safetensors")
        self.seen.append({int(path.parent.name[-5:]) for path in files})
        return reply


def watched(directory: Path) -> type[Watched]:
    return type("Here", (Watched,), {"seen": [], "clients": directory / "run" / "clients"})


def run(directory: Path, **config: Any) -> tuple[Outcome, list[set[int]]]:
    """Return a run and who had kept a first state after each of its messages."""
    grid = watched(directory)
    outcome = run_federation(directory, 5, grid_class=grid, **{**SETTINGS, **config})
    return outcome, grid.seen


def draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that is told of every client whose first state is drawn."""
    drawn: list[int] = []
    original = handlers.initial_state

    def counted(half: Any, local: Any) -> Any:
        drawn.append(local.client_id)
        return original(half, local)

    monkeypatch.setattr(handlers, "initial_state", counted)
    return drawn


@pytest.mark.parametrize("method", ["fedre", "fedproto", "fedmrl"])
def test_a_first_state_is_drawn_once_and_nothing_else_changes(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = draws(monkeypatch)
    kept, seen = run(tmp_path / "kept", method=method)
    assert sorted(drawn) == [0, 1, 2, 3, 4]
    assert max(map(len, seen)) >= 2

    monkeypatch.setattr(handlers, "is_worth_keeping", lambda *_: False)
    anew, seen = run(tmp_path / "anew", method=method)
    assert len(drawn) - 5 > 5
    assert not any(seen)
    assert anew.text("metrics.csv") == kept.text("metrics.csv")


def test_nothing_of_it_is_left_when_the_run_has_ended(tmp_path: Path) -> None:
    outcome, seen = run(tmp_path)
    assert any(seen)
    assert not list(outcome.path.glob("clients/*/round-00000.safetensors"))


@pytest.mark.parametrize(
    "config",
    [
        {"num_rounds": 1},  # no evaluation after this one
        {"evaluate_every": 4},
        {"evaluate_untrained": False},  # nobody is evaluated who has not trained
        {"sample_fraction": 1.0},  # everybody trains
    ],
)
def test_states_that_would_not_be_read_again_are_not_kept(
    config: dict[str, Any], tmp_path: Path
) -> None:
    _, seen = run(tmp_path, **config)
    assert not any(seen)


def test_small_states_are_drawn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_state, "LEAST", 2**24)
    _, seen = run(tmp_path)
    assert not any(seen)


def test_a_device_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_state, "simulated", lambda: False)
    _, seen = run(tmp_path)
    assert not any(seen)


@pytest.mark.parametrize(("free", "kept"), [(1e8, True), (1e7, False)])
def test_the_disk_must_take_all_clients_several_times(
    free: float, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = shutil.disk_usage(tmp_path)._replace(free=int(free))
    monkeypatch.setattr(first_state.shutil, "disk_usage", lambda path: room)
    _, seen = run(tmp_path)
    assert any(seen) == kept


def test_a_first_state_is_no_trained_one(tmp_path: Path) -> None:
    """A run that was interrupted may have left some; an attack or analysis wants trained ones."""
    outcome, _ = run(tmp_path)
    trained = KeptRun.of(outcome.path).trained(4)
    source = next((outcome.path / "clients").glob("*/round-*.safetensors"))
    never = next(k for k in range(5) if k not in trained)
    folder = outcome.path / "clients" / f"client-{never:05d}"
    folder.mkdir(exist_ok=True)
    shutil.copy(source, folder / "round-00000.safetensors")
    kept = KeptRun.of(outcome.path)
    assert kept.trained(4) == trained
    with pytest.raises(ConfigError, match=f"client {never}: no state of it is kept"):
        kept.newest(never, 4)
