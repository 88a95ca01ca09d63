"""The private state store: which file a round starts from, and which files may go."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from client_app.state_store import StateStore, state_directory
from strategies.base.round_files import prune_rounds
from strategies.base.state import StateError

ABOUT: dict[str, Any] = {
    "method": "fedre", "model": "cnn5", "client": 3, "seed": 0, "run": "token-a"
}  # fmt: skip


@dataclasses.dataclass
class State:
    weight: Tensor


def store(directory: Path, **changes: Any) -> StateStore:
    return StateStore(directory, {**ABOUT, **changes})


def saved(directory: Path, *rounds: int) -> StateStore:
    kept = store(directory)
    for trained, number in enumerate(rounds, start=1):
        kept.save(number, State(torch.full((2,), float(number))), trained)
    return kept


def names(directory: Path) -> list[int]:
    return sorted(int(path.name[6:11]) for path in directory.iterdir())


def test_directories_are_named_by_client() -> None:
    assert state_directory(Path("/x"), 3) == Path("/x/client-00003")


@pytest.mark.parametrize(
    ("server_round", "expected"),
    [(1, None), (2, None), (3, 2), (5, 2), (6, 5), (9, 5), (10, 9), (100, 9)],
)
def test_a_round_starts_from_the_newest_before_it(
    server_round: int, expected: int | None, tmp_path: Path
) -> None:
    path = saved(tmp_path / "c", 2, 5, 9).newest_before(server_round)
    if expected is None:
        assert path is None
    else:
        assert path == tmp_path / "c" / f"round-{expected:05d}.safetensors"


def test_a_client_that_never_trained_has_none(tmp_path: Path) -> None:
    assert store(tmp_path / "none").newest_before(5) is None


def test_loading_gives_state_and_count(tmp_path: Path) -> None:
    kept = saved(tmp_path, 2, 5, 9)
    path = kept.newest_before(10)
    assert path is not None
    state, trained = kept.load(path, State(torch.zeros(2)))
    assert state.weight.tolist() == [9, 9]
    assert trained == 3


def test_a_round_made_again_replaces_its_file(tmp_path: Path) -> None:
    kept = saved(tmp_path, 2, 5)
    kept.save(5, State(torch.full((2,), 50.0)), 2)
    path = kept.newest_before(6)
    assert path is not None
    assert kept.load(path, State(torch.zeros(2)))[0].weight.tolist() == [50, 50]


@pytest.mark.parametrize(
    ("keep_from", "left"),
    [
        (0, [2, 5, 9, 12]),
        (1, [2, 5, 9, 12]),
        (2, [2, 5, 9, 12]),
        (4, [2, 5, 9, 12]),  # a resume after round 4 starts from 2
        (5, [5, 9, 12]),
        (8, [5, 9, 12]),
        (9, [9, 12]),
        (99, [12]),
    ],
)
def test_pruning_keeps_what_a_resume_needs(keep_from: int, left: list[int], tmp_path: Path) -> None:
    kept = saved(tmp_path, 2, 5, 9, 12)
    needed = {t: kept.newest_before(t + 1) for t in range(keep_from, 15)}
    prune_rounds(tmp_path, keep_from)
    assert names(tmp_path) == left
    assert {t: kept.newest_before(t + 1) for t in range(keep_from, 15)} == needed


def test_pruning_nothing_is_harmless(tmp_path: Path) -> None:
    prune_rounds(tmp_path / "none", 5)
    (tmp_path / "notes.txt").write_text("x")
    prune_rounds(tmp_path, 5)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("key", "now"),
    [("method", "local"), ("model", "cnn1"), ("client", 4), ("seed", 1), ("run", "token-b")],
)
def test_changed_facts_are_refused_with_both_values(key: str, now: Any, tmp_path: Path) -> None:
    path = saved(tmp_path, 2).newest_before(3)
    assert path is not None
    with pytest.raises(StateError) as caught:
        store(tmp_path, **{key: now}).load(path, State(torch.zeros(2)))
    text = str(caught.value)
    assert f"{key} = {ABOUT[key]!r} (now {now!r})" in text
    assert str(path) in text
    assert "run-name" in text


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    kept = saved(tmp_path, 2)
    path = kept.newest_before(3)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StateError, match=r"round-00002\.safetensors: damaged"):
        kept.load(path, State(torch.zeros(2)))


def test_clients_do_not_share_files(tmp_path: Path) -> None:
    for client in (1, 11):
        own = store(state_directory(tmp_path, client), client=client)
        own.save(1, State(torch.full((2,), float(client))), 1)
    first = store(state_directory(tmp_path, 1), client=1)
    path = first.newest_before(2)
    assert path is not None
    assert first.load(path, State(torch.zeros(2)))[0].weight.tolist() == [1, 1]


def test_states_of_lost_rounds_are_forgotten(tmp_path: Path) -> None:
    """Session A saved round 6, the server resumed at 5, and the client missed B's round 6.

    Neither pruning nor a third session may prefer A's round 6 to the round 5 that counts.
    """
    first = StateStore(tmp_path, ABOUT, session="a")
    for number in (5, 6):
        first.save(number, State(torch.full((2,), float(number))), number)
    second = StateStore(tmp_path, ABOUT, session="b", resumed_at=5)
    second.discard_lost()
    prune_rounds(tmp_path, 6)
    assert names(tmp_path) == [5]
    assert str(second.newest_before(8)).endswith("round-00005.safetensors")
    third = StateStore(tmp_path, ABOUT, session="c", resumed_at=8)
    third.discard_lost()
    assert str(third.newest_before(9)).endswith("round-00005.safetensors")


def test_own_and_finished_rounds_are_not_forgotten(tmp_path: Path) -> None:
    for session, number in (("a", 3), ("b", 4)):
        StateStore(tmp_path, ABOUT, session=session).save(number, State(torch.ones(2)), 1)
    StateStore(tmp_path, ABOUT, session="b", resumed_at=3).discard_lost()
    assert names(tmp_path) == [3, 4]


def test_another_runs_states_are_left_alone(tmp_path: Path) -> None:
    """They are refused on loading, by name; deleting them is not this run's business."""
    saved(tmp_path, 7)
    StateStore(tmp_path, {**ABOUT, "run": "token-b"}, session="b").discard_lost()
    assert names(tmp_path) == [7]


def test_damaged_files_are_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A client whose newest state is torn goes on from the one before, and says so."""
    kept = saved(tmp_path, 2, 5)
    newest = kept.newest_before(6)
    assert newest is not None
    newest.write_bytes(newest.read_bytes()[:40])
    kept.discard_lost()
    assert str(kept.newest_before(6)).endswith("round-00002.safetensors")
    assert "round-00005" in capsys.readouterr().out
    assert (tmp_path / "round-00005.damaged").is_file()
