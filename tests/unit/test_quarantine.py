"""Who is refused three times in a row takes no more part; nobody counts with any number at will."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from server_app.records.recorder import Recorder
from server_app.records.round_result import QUARANTINE_KIND, Failure, RoundResult, Traffic
from server_app.rounds.example_limit import example_limit, limited
from server_app.rounds.in_process import FIRST_NODE, InProcessGrid
from server_app.rounds.method_server import MethodServer
from server_app.rounds.quarantine import Quarantine
from strategies import fedgen
from strategies.base.messages import INFO, ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.fedre import Uplink
from tests.support import Outcome, run_federation
from tests.unit.test_roster import a_client_info

SMALL: dict[str, Any] = {
    "subset": 0.08, "image_size": 16, "feature_dim": 16, "models": "cnn5, cnn2", "min_clients": 1,
}  # fmt: skip


def a_result(number: int, refused: tuple[int, ...], accepted: tuple[int, ...]) -> RoundResult:
    failures = [Failure(client, "train", "refused payload: s: shape (1,)") for client in refused]
    traffic = [Traffic(client, "uplink", 1, 4, "train") for client in accepted]
    return RoundResult(number, [*refused, *accepted], failures=failures, traffic=traffic)


def test_three_refusals_in_a_row_are_too_many(tmp_path: Path) -> None:
    watch = Quarantine(tmp_path)
    assert watch.look(a_result(1, (3, 4), (0,))) == []
    assert watch.look(a_result(2, (3, 4), (0,))) == []
    assert watch.look(a_result(3, (), (0, 4))) == []  # 3 was not asked, 4 is well again
    (found,) = watch.look(a_result(4, (3, 4), (0,)))
    assert (found.client_id, found.kind) == (3, QUARANTINE_KIND)
    assert watch.clients == {3}
    assert watch.look(a_result(5, (4,), (0,))) == []
    assert [f.client_id for f in watch.look(a_result(6, (4,), (0,)))] == [4]
    assert watch.look(a_result(7, (4,), (0,))) == []  # said once


def test_failures_of_other_kinds_are_no_refusals(tmp_path: Path) -> None:
    watch = Quarantine(tmp_path)
    for number in range(1, 6):
        late = Failure(1, "train", "no answer within 5 s (round-timeout)")
        assert watch.look(RoundResult(number, [1], failures=[late])) == []


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    """Who is out stays out, and two refusals before the resume are two after it."""
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    first = Quarantine(tmp_path)
    for number, (refused, accepted) in enumerate(
        [((1, 3), (2,)), ((1, 3), (2,)), ((2, 3), (1,)), ((1, 2), ())], start=1
    ):
        outcome = a_result(number, refused, accepted)
        outcome.failures += first.look(outcome)
        recorder.add(outcome)
    assert first.clients == {3}
    again = Quarantine(tmp_path)
    again.begin()
    assert again.clients == {3}
    assert [f.client_id for f in again.look(a_result(5, (1, 2), ()))] == [2]


class Liar(InProcessGrid):
    """Client 1 answers for another round, always."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if message.metadata.dst_node_id == FIRST_NODE + 1 and INFO in reply.content:
            info = reply.content[INFO]
            assert isinstance(info, ConfigRecord)
            info["round"] = 99
        return reply


def test_a_run_goes_on_without_who_is_refused_again_and_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_federation(tmp_path, 3, num_rounds=4, grid_class=Liar, report=True, **SMALL)
    printed = capsys.readouterr().out
    assert [r["round"] for r in run.rows("failures") if r["client"] == "1"] == list("1233")
    assert run.summary["quarantined"] == [1]
    assert "in quarantine, refused again and again: client 1" in printed
    assert [r["participants"] for r in run.rows("rounds")][:4] == list("3332")
    assert QUARANTINE_KIND in run.text("report.html")
    resumed = run_federation(tmp_path, 3, num_rounds=5, resume="run", grid_class=Liar, **SMALL)
    assert "in quarantine from before: client 1" in capsys.readouterr().out
    assert asked(resumed, 5) == {"0", "2"}


def asked(run: Outcome, number: int) -> set[str]:
    rows = [r for r in run.rows("traffic") if r["round"] == str(number)]
    return {r["client"] for r in rows if r["direction"] == "downlink"}


# Self-declared counts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "setting", "devices", "expected"),
    [
        ([5, 7, 9], "auto", True, 70),
        ([5, 7, 10**12], "auto", True, 70),
        ([0, 0, 0, 5, 7], "auto", True, 60),
        ([0, 0], "auto", True, None),
        ([5, 7, 10**12], "auto", False, None),
        ([5, 7, 9], 6, True, 6),
        ([5, 7, 9], 6, False, 6),
    ],
)
def test_the_limit_is_ten_times_the_median(
    counts: list[int], setting: int | str, devices: bool, expected: int | None
) -> None:
    infos = [a_client_info(i, train_examples=count) for i, count in enumerate(counts)]
    assert example_limit(setting, infos, devices=devices) == expected


def counted(devices: bool, **config: Any) -> list[tuple[int, int]]:
    """Return with how many examples clients of 5, 6 and 10^12 examples count in a method's mean."""
    server = MethodServer(parse_run_config({"method": "fedre", **config}))
    server.devices = devices
    sizes = (5, 6, 10**12)
    server.admit(
        a_client_info(i, train_examples=n, class_counts=[n - 1, 1]) for i, n in enumerate(sizes)
    )
    server.begin()
    seen: list[tuple[int, int]] = []

    def aggregate(context: Any, state: Any, updates: Any) -> dict[str, float]:
        seen.extend((update.client_id, update.num_examples) for update in updates)
        return {}

    server.half.aggregate = aggregate  # type: ignore[method-assign]
    sent = Uplink(np.zeros(1, np.float32), np.zeros(1, np.float32))
    server.aggregate(ClientUpdate(i, n, sent, [], 0.0, 0, 0, "w") for i, n in enumerate(sizes))
    return seen


def test_a_count_of_its_own_making_does_not_decide_a_mean() -> None:
    assert counted(devices=True) == [(0, 5), (1, 6), (2, 60)]
    assert counted(devices=True, **{"max-examples": 5}) == [(0, 5), (1, 5), (2, 5)]
    assert counted(devices=False) == [(0, 5), (1, 6), (2, 10**12)]


def test_counts_by_class_are_smaller_in_proportion() -> None:
    """7e11 + 3e11 + 1 examples of three classes become 42 + 18 + 1, one more than 60."""
    counts = np.array([7 * 10**11, 0, 3 * 10**11, 1])
    sent = fedgen.Uplink(np.zeros((4, 2)), np.zeros(4), counts)
    update = limited(ClientUpdate(0, int(counts.sum()), sent, [], 0.0, 0, 0, "w"), 60)
    assert (update.num_examples, update.uplink.label_counts.tolist()) == (60, [42, 0, 18, 1])
    assert update.uplink.head_bias is sent.head_bias
    assert counts[3] == 1  # what arrived is not changed
    assert limited(update, 60) is update


def test_who_counts_with_less_than_it_says_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_federation(tmp_path, 3, num_rounds=2, max_examples=2, **SMALL)
    printed = capsys.readouterr().out
    assert printed.count("in means it counts with 2 (max-examples)") == 3
