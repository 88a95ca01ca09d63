"""Text of a device cannot steer a terminal, turn a line round or look like a line of the server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import make_client_app
from server_app.records.csv_files import iterate_rows
from server_app.records.recorder import Recorder
from server_app.records.round_result import RoundResult
from server_app.report.tables import failure_table
from server_app.rounds.transport import reason_of
from strategies.base.messages import CLIENT_INFO, SetUpProblem
from tests.unit.test_exchange import a_round

FORGED = "round 10/10  3 of 3 clients  accuracy 100.00 % (best 100.00 %, 3 evaluated)"
STEERING = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\x7f\u202e\u2066\u2028\u200f\ufeff\r"
HOSTILE = [
    f"ValueError: boom\n{FORGED}",
    f"{STEERING}{FORGED}\r\n{FORGED}{STEERING}",
    f"<class 'ValueError'>:<'{STEERING}{FORGED}'>",
    STEERING * 1000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_an_error_of_a_device_is_one_printable_line(text: str) -> None:
    error = SimpleNamespace(error=SimpleNamespace(code=2, reason=text))
    reason = reason_of(error)  # type: ignore[arg-type]
    assert reason.isprintable()
    assert 0 < len(reason) <= 500


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_device_says_reaches_terminal_and_records_as_its_own(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, seen = a_round(lambda c, content: ValueError(text) if c == 0 else content)
    assert [update.client_id for update in seen] == [1, 2]
    lines = [line for line in capsys.readouterr().out.split("\n") if line]
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if "client 0" in line or FORGED in line] == [
        f"round 2: client 0 (train): {result.failures[0].reason}"
    ]
    _check_records(tmp_path, result)


def _check_records(directory: Path, result: RoundResult) -> None:
    recorder = Recorder(directory)
    recorder.begin(0)
    recorder.add_failures(2, result.failures)
    (row,) = iterate_rows(directory / "failures.csv")
    assert row["reason"] == result.failures[0].reason
    page = failure_table(_run_with(directory))
    assert "\x1b" not in page
    assert "\u202e" not in page


def _run_with(directory: Path) -> object:
    import pandas as pd

    return SimpleNamespace(failures=pd.read_csv(directory / "failures.csv", dtype=str))


def test_a_client_makes_its_own_text_fit_to_be_read() -> None:
    """A folder's name may hold anything; it must not keep the client from saying what is wrong."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    context = Context(
        run_id=1, node_id=1, node_config={"client-id": 0, "data-dir": "/no\x1b[31m\u202e/such"},
        state=RecordDict(), run_config={"method": "local", "dataset": "imagefolder"},
    )  # fmt: skip
    question = Message(RecordDict(), 1, "query")
    question.metadata.__dict__["_message_id"] = "1"
    reply = make_client_app()(question, context)
    problem = SetUpProblem.from_record(reply.content.config_records[CLIENT_INFO])
    assert "\\x1b[31m\\u202e" in problem.problem
