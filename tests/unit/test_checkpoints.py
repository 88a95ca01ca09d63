"""Server checkpoints: the newest few, and what happens when one is damaged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from server_app.records.checkpoints import Checkpoints
from server_app.records.soundness import unsound_rounds
from strategies.base.state import StateError


@dataclasses.dataclass
class State:
    weight: Tensor


def filled(directory: Path, rounds: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep)
    for number in range(1, rounds + 1):
        checkpoints.save(number, State(torch.full((50,), float(number))))
    return checkpoints


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(("keep", "left"), [(1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_newest_are_kept(keep: int, left: list[int], tmp_path: Path) -> None:
    checkpoints = filled(tmp_path / "c", 5, keep)
    assert checkpoints.rounds() == left
    assert checkpoints.oldest() == left[0]
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        f"round-{number:05d}.safetensors" for number in left
    ]
    state = State(torch.zeros(50))
    assert checkpoints.load_newest(state) == 5
    assert state.weight.tolist() == [5.0] * 50


def test_rounds_are_ordered_as_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    for number in (99_999, 100_000, 7):
        checkpoints.save(number, State(torch.ones(1)))
    assert checkpoints.rounds() == [7, 99_999, 100_000]
    assert checkpoints.load_newest(State(torch.zeros(1))) == 100_000


def test_before_the_first_there_is_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none", 2)
    assert checkpoints.rounds() == []
    assert checkpoints.oldest() == 0
    state = State(torch.zeros(1))
    assert checkpoints.load_newest(state) == 0
    assert state.weight.tolist() == [0]


def test_a_truncated_newest_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U23."""
    checkpoints = filled(tmp_path, 3)
    truncate(tmp_path / "round-00003.safetensors")
    state = State(torch.zeros(50))
    assert checkpoints.load_newest(state) == 2
    assert state.weight.tolist() == [2.0] * 50
    out = capsys.readouterr().out
    assert "warning: checkpoint round-00003.safetensors cannot be used" in out
    # It is set aside, and the round can be saved anew.
    assert checkpoints.rounds() == [1, 2]
    checkpoints.save(3, State(torch.full((50,), 30.0)))
    assert checkpoints.load_newest(state) == 3
    assert state.weight[0] == 30


@pytest.mark.parametrize("content", [b"", b"\0" * 100])
def test_an_empty_or_blank_newest_is_passed_over(content: bytes, tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 2)
    (tmp_path / "round-00002.safetensors").write_bytes(content)
    assert checkpoints.load_newest(State(torch.zeros(50))) == 1


def test_all_damaged_is_an_error_and_stays_one(tmp_path: Path) -> None:
    """A second attempt must not take the empty directory for a run that has not begun."""
    checkpoints = filled(tmp_path, 2)
    for path in tmp_path.iterdir():
        truncate(path)
    for _ in range(2):
        with pytest.raises(StateError, match=r"none of 2 checkpoints can be used.*00001.*00002"):
            checkpoints.load_newest(State(torch.zeros(50)))


def test_other_files_are_not_looked_at(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 1)
    for name in (".round-00009.safetensors.1.partial", "round-9.safetensors", "notes.txt"):
        (tmp_path / name).write_text("x")
    assert checkpoints.rounds() == [1]
    assert checkpoints.load_newest(State(torch.zeros(50))) == 1


def test_a_state_that_spoilt_the_next_round_is_passed_over(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 3)
    state = State(torch.zeros(50))
    assert checkpoints.load_newest(state, unsound={4}) == 2
    assert state.weight.tolist() == [2.0] * 50
    assert checkpoints.load_newest(state, unsound={3}) == 1
    assert checkpoints.load_newest(state, unsound={1, 2, 3, 4}) == 3  # none is better
    truncate(tmp_path / "round-00002.safetensors")
    assert checkpoints.load_newest(state, unsound={4}) == 1


def test_the_newest_good_state_stays_while_rounds_are_unsound(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 2, keep=2)
    for number in (3, 4, 5):
        checkpoints.save(number, State(torch.ones(50)), unsound=range(3, number + 1))
    assert checkpoints.rounds() == [1, 4, 5]
    assert checkpoints.oldest() == 1
    checkpoints.save(6, State(torch.ones(50)), unsound={3, 4, 5})
    checkpoints.save(7, State(torch.ones(50)), unsound={3, 4, 5})
    assert checkpoints.rounds() == [6, 7]


def test_states_after_the_one_that_is_resumed_are_made_anew(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 3)
    state = State(torch.zeros(50))
    checkpoints.load(1, state)
    assert state.weight.tolist() == [1.0] * 50
    checkpoints.drop_after(1)
    assert checkpoints.rounds() == [1]


RECORDED = """round,client,kind,reason
2,1,diverged,lr
3,0,diverged,lr
3,1,train,TrainingDivergedError: NaN
4,0,train,no answer
4,1,train,no answer
5,,diverged,the server
6,0,train,TrainingDivergedError: NaN
6,1,train,TrainingDivergedError: NaN
7,0,closing,TrainingDivergedError: NaN
"""


def test_unsound_is_a_round_that_diverged_for_most(tmp_path: Path) -> None:
    """Round 6 ended the run, and so is not among the finished ones."""
    (tmp_path / "failures.csv").write_text(RECORDED)
    rounds = "".join(f"{number},3,False\n" for number in range(1, 6))
    (tmp_path / "rounds.csv").write_text("round,participants,closing\n" + rounds)
    assert unsound_rounds(tmp_path) == {3, 5, 6}
    assert unsound_rounds(tmp_path / "none") == set()
