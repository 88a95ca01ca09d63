"""Rounds of several exchanges: what is asked, recorded and kept between them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from server_app.records.round_result import RoundResult, Traffic, merge_rows
from server_app.rounds.in_process import FIRST_NODE, InProcessGrid
from strategies.base.messages import MetricRow
from tests.support import run_federation

FAST: dict[str, Any] = {
    "method": "fedmuscle", "image_size": 16, "models": "five-cnns", "feature_dim": 16,
    "fedmuscle__batch_size": 8, "fedmuscle__steps": 2,
}  # fmt: skip


def place_of(message: Message) -> tuple[int, Any, Any]:
    """Node, round and exchange of a message."""
    control: Any = message.content.config_records.get("control", {})
    return message.metadata.dst_node_id, control.get("round"), control.get("exchange")


def test_rows_of_one_name_are_averaged_and_counters_added() -> None:
    rows = [
        (0, MetricRow("train", "loss", 4.0, 10)),
        (0, MetricRow("train", "flops", 100.0, 10)),
        (1, MetricRow("train", "loss", 1.0, 7)),
        (0, MetricRow("train", "loss", 2.0, 10)),
        (0, MetricRow("train", "flops", 11.0, 10)),
        (0, MetricRow("post", "accuracy", 0.5, 3)),
    ]
    assert merge_rows(rows) == [
        (0, MetricRow("train", "loss", 3.0, 10)),
        (0, MetricRow("train", "flops", 111.0, 10)),
        (1, MetricRow("train", "loss", 1.0, 7)),
        (0, MetricRow("post", "accuracy", 0.5, 3)),
    ]


def test_a_round_is_the_sum_of_its_exchanges() -> None:
    first = RoundResult(3, [0, 1], compute_s=1.0, seconds=2.0, workers={"a"}, late={1})
    first.traffic.append(Traffic(0, "uplink", 5, 20, "train"))
    first.rounds_trained[0] = 2
    second = RoundResult(3, [0], compute_s=0.5, seconds=0.25, workers={"b"})
    second.traffic.append(Traffic(0, "uplink", 7, 30, "train"))
    second.rounds_trained[0] = 3  # its state was saved in between
    both = first.followed_by(second)
    assert both.participants == [0, 1]
    assert [t.scalars for t in both.traffic] == [5, 7]
    assert (both.compute_s, both.seconds) == (1.5, 2.25)
    assert both.workers == {"a", "b"}
    assert both.rounds_trained == {0: 2}
    assert both.late == {1}


def test_a_late_client_is_not_waited_for_again_in_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer to the first of two exchanges is swallowed: one deadline is lost, not two."""
    monkeypatch.setattr(
        "server_app.rounds.exchange.window_of", lambda grid: None
    )  # all are sent at once

    class Silent(InProcessGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            ids = list(super().push_messages(messages))
            for message_id, message in zip(ids, messages, strict=True):
                if place_of(message) == (FIRST_NODE + 1, 1, 1):
                    del self._replies[message_id]
            return ids

    run = run_federation(tmp_path, 3, grid_class=Silent, round_timeout=8.0, **FAST)
    failures = [(r["round"], r["client"], r["reason"]) for r in run.rows("failures")]
    assert failures == [("1", "1", "no answer within 8 s (round-timeout)")]
    sent = {
        (r["round"], r["client"]): int(r["messages"])
        for r in run.rows("traffic")
        if r["direction"] == "downlink"
    }
    assert sent == {(t, c): 2 for t in "12" for c in "012"} | {("1", "1"): 1}
    assert run.metrics(round=1, client=1) == []
    assert run.metrics(round=2, client=1, metric="loss_alignment")


def test_evaluation_comes_with_the_first_or_the_last_exchange(tmp_path: Path) -> None:
    asked: list[tuple[Any, Any, bool]] = []

    class Watched(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            control: Any = message.content.config_records.get("control", {})
            if "evaluate" in control and message.metadata.message_type.endswith("train"):
                asked.append((control["round"], control["exchange"], control["evaluate"]))
            return super()._answer(message)

    for when, after, evaluating in (
        ("pre", "alignment", 1), ("post", "alignment", 2), ("post", "local", 1),
    ):  # fmt: skip
        asked.clear()
        run_federation(
            tmp_path / f"{when}-{after}", 2, grid_class=Watched, evaluate_when=when, num_rounds=1,
            fedmuscle__evaluate_after=after, **FAST,
        )  # fmt: skip
        assert set(asked) == {(1, number, number == evaluating) for number in (1, 2)}


def test_states_are_kept_between_exchanges_and_counted_once(tmp_path: Path) -> None:
    """The second exchange goes on with what the first trained; a round is one round of training."""
    run = run_federation(tmp_path, 2, fedmuscle__exchange="step", **FAST)
    assert [r["kind"] for r in run.rows("failures")] == []  # "state" would say that some was lost
    losses = {(r["round"], r["client"]) for r in run.metrics(phase="train", metric="loss")}
    assert losses == {(t, c) for t in "12" for c in "01"}
    seen = run.metrics(metric="examples_seen")
    sizes = {r["client"]: r["train_examples"] for r in run.rows("clients")}
    assert all(float(r["value"]) == float(sizes[r["client"]]) for r in seen)
