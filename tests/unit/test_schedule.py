"""A schedule of the user's own: who takes part, and when a run ends, from a file in a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import main
from server_app.rounds.exchange import RunError
from server_app.rounds.participants import choose_participants
from strategies.base import late_joiners
from strategies.base.late_joiners import LateJoiners
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.run_config import RunConfig
from strategies.base.schedule import History, Schedule, load_schedule
from strategies.base.server import ServerContext
from tests.documents import files_in
from tests.support import SMALL, Outcome, run_federation, typed
from tests.unit.test_roster import a_client_info

BEST = '''
from strategies.base.schedule import Schedule

class Best(Schedule):
    """The client that scored best trains, with one that has trained least; a pause of its own."""

    def __init__(self, run):
        self.last = run.num_rounds - 1

    def select(self, context, available, history):
        print("asked in", context.server_round, sorted(history.scores.items()),
              sorted(history.rounds_trained.items()))
        best = max(available, key=lambda client: (history.scores.get(client, 0), -client))
        least = min(available, key=lambda client: history.rounds_trained.get(client, 0))
        return [best, least]

    def should_stop(self, context, history):
        return "enough" if context.server_round == self.last else None

def absent(run):
    schedule = Schedule()
    schedule.select = lambda context, available, history: [*available, 7]
    return schedule

def number(run):
    return 3
'''
SETTINGS: dict[str, Any] = {
    "method": "local",
    "subset": 0.08,
    "image_size": 16,
    "feature_dim": 32,
    "models": "cnn5",
    "evaluate_when": "post",
}


@pytest.fixture
def schedules(folder: Path) -> Path:
    (folder / "my_schedule.py").write_text(BEST)
    return folder


def asked(printed: str) -> list[str]:
    """Return what the schedule was told in every round."""
    return re.findall(r"^asked in .*", printed, flags=re.MULTILINE)


def trained(run: Outcome) -> list[set[str]]:
    rounds = [row["round"] for row in run.rows("rounds")]
    return [{row["client"] for row in run.metrics(phase="train", round=n)} for n in rounds]


def test_wildflower_run_asks_it_and_ends_when_it_says(
    schedules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {k.replace("_", "-"): v for k, v in {**SMALL, **SETTINGS}.items()}
    keys |= {"num-rounds": 4, "output-dir": str(tmp_path), "run-name": "run"}
    keys |= {"schedule": "my_schedule:Best", "code-dir": str(schedules)}
    assert main(["run", "--clients", "4", "-c", typed(keys)]) == 0
    printed = capsys.readouterr().out
    assert "stopping after round 3: enough" in printed
    run = Outcome(tmp_path / "run")
    assert run.config["status"] == "completed"
    # Nothing was measured before round 1, so client 0 is both; then the counts decide, and scores.
    assert trained(run)[0] == {"0"}
    assert asked(printed)[0] == "asked in 1 [] []"
    assert {len(clients) for clients in trained(run)[1:]} <= {1, 2}
    for number, told in enumerate(asked(printed)[1:], 2):
        scores = {
            int(r["client"]): float(r["value"])
            for metric in ("accuracy", "validation_accuracy")  # the latter where there is one
            for r in run.metrics(metric=metric, round=number - 1)
        }
        assert scores != {
            int(r["client"]): float(r["value"])
            for r in run.metrics(metric="accuracy", round=number - 1)
        }
        counts: dict[int, int] = {}
        for clients in trained(run)[: number - 1]:
            for client in map(int, clients):
                counts[client] = counts.get(client, 0) + 1
        assert told == f"asked in {number} {sorted(scores.items())} {sorted(counts.items())}"


def test_history_after_a_resume_is_that_without(
    schedules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the run was evaluated once more at its first end, which is done again."""
    settings = {**SETTINGS, "schedule": "my_schedule:Best", "code_dir": str(schedules)}
    settings["evaluate_when"] = "pre"
    whole = run_federation(tmp_path / "whole", 3, num_rounds=5, **settings)
    told = asked(capsys.readouterr().out)
    run_federation(tmp_path / "parts", 3, num_rounds=3, **settings)
    first = asked(capsys.readouterr().out)
    parts = run_federation(tmp_path / "parts", 3, num_rounds=5, resume="run", **settings)
    assert first + asked(capsys.readouterr().out) == told
    assert parts.text("metrics.csv") == whole.text("metrics.csv")
    assert len(told) == 4


def test_one_that_chooses_who_is_absent_ends_the_run(schedules: Path, tmp_path: Path) -> None:
    reason = (
        r"round 1: schedule my_schedule:absent chose client 7, which is not among the 2 clients "
        "that can train now"
    )
    settings = {**SETTINGS, "schedule": "my_schedule:absent", "code_dir": str(schedules)}
    with pytest.raises(RunError, match=reason):
        run_federation(tmp_path, 2, **settings)
    assert Outcome(tmp_path / "run").config["status"] == "failed"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (
            "my_schedule:number",
            "what it gave is of type int, expected a strategies.base",
        ),
        ("my_schedule:Worst", "has no 'Worst'"),
        ("nowhere:Best", "cannot import 'nowhere'"),
        ("my_schedule:BEST", "no schedule could be made of it .*expected module:factory"),
    ],
)
def test_what_is_no_schedule_ends_the_run_before_any_data(
    schedules: Path, tmp_path: Path, address: str, reason: str
) -> None:
    if address.endswith("BEST"):
        (schedules / "my_schedule.py").write_text("BEST = 1")
    settings = {**SETTINGS, "schedule": address, "code_dir": str(schedules)}
    with pytest.raises(ConfigError, match=f"(?s)schedule = '{address}': .*{reason}"):
        run_federation(tmp_path, 2, **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ([], "schedule Fixed selected none of 2 clients"),
        (None, "select of schedule Fixed returned None, expected a list of client ids"),
        (["0"], r"returned \['0'\], expected a list of client ids, some of \[0, 1\]"),
        ([2], "chose client 2, which is not among the 2 clients"),
    ],
)
def test_a_choice_that_cannot_be_is_named(chosen: Any, reason: str) -> None:
    class Fixed(Schedule):
        def select(self, *args: Any) -> Any:
            return chosen

    infos = {i: a_client_info(i) for i in range(3)}
    infos[2] = a_client_info(2, classes=[], class_counts=[], train_examples=0)
    context = ServerContext(parse_run_config({"method": "local"}), infos, 4)
    with pytest.raises(RunError, match=f"round 4: .*{reason}"):
        choose_participants(Fixed(), context, [0, 1, 2], History())


def test_a_choice_is_put_in_order_and_counted_once() -> None:
    import numpy as np

    class Fixed(Schedule):
        def select(self, *args: Any) -> Any:
            return np.array([1, 0, 1])

    infos = {i: a_client_info(i) for i in range(2)}
    context = ServerContext(parse_run_config({"method": "local"}), infos, 1)
    found = choose_participants(Fixed(), context, [0, 1], History())
    assert found == [0, 1]
    assert {type(client) for client in found} == {int}


def test_the_schedule_of_the_document_runs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "my_schedule.py").write_text(
        files_in(Path("strategies/README.md"))["my_schedule.py"].replace("0.9", "0.0")
    )
    settings = {**SETTINGS, "schedule": "my_schedule:Worst", "code_dir": str(folder)}
    run = run_federation(tmp_path, 3, num_rounds=2, **settings)
    assert trained(run) == [{"0", "1"}]
    assert "stopping after round 1: every client has reached 0%" in capsys.readouterr().out


def test_the_usual_one_is_the_uniform_draw() -> None:
    assert type(load_schedule(parse_run_config({}))) is Schedule


LATE = "strategies.base.late_joiners:LateJoiners"


def test_late_joiners_take_part_after_their_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger half trains first; the others are evaluated all the while, then train as well."""
    monkeypatch.setattr(late_joiners, "ROUNDS_WITHOUT", 2)
    run = run_federation(tmp_path, 5, num_rounds=4, schedule=LATE, **SETTINGS)
    assert trained(run) == [{"0", "1", "2"}] * 2 + [{"0", "1", "2", "3", "4"}] * 2
    assert {r["client"] for r in run.metrics(metric="accuracy", round=1)} == set("01234")


def test_late_joiners_alone_take_part_rather_than_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunConfig(num_rounds=60)
    clients = {i: a_client_info(i, train_examples=0 if i == 2 else 5) for i in range(6)}
    context = ServerContext(run, clients, server_round=50)
    chosen = LateJoiners(run).select
    assert chosen(context, [0, 1, 3, 4, 5], History()) == [0, 1, 3]  # of the five that can train
    assert chosen(context, [1, 5], History()) == [1]
    assert chosen(context, [4, 5], History()) == [4, 5]
    later = ServerContext(run, clients, server_round=51)
    assert chosen(later, [0, 1, 3, 4, 5], History()) == [0, 1, 3, 4, 5]


def test_a_run_that_ends_before_anybody_joins_is_refused() -> None:
    with pytest.raises(ConfigError, match="num-rounds = 50: expected more than 50"):
        load_schedule(RunConfig(num_rounds=50, schedule=LATE))
