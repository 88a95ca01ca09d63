"""Who measures the test split, where a method says that not every client has to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from server_app.rounds.in_process import InProcessGrid
from strategies.base import method as registry
from strategies.base.messages import CONTROL
from strategies.base.method import get_method
from strategies.base.server import ServerContext, ServerHalf
from tests.support import Outcome, run_federation

CLIENTS, CHOSEN = 5, {"1", "3"}


def own_method(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Let clients 1 and 3 alone measure the test split; return the list of who was offered."""
    asked: list[list[int]] = []
    server: Any = get_method("fedre").server

    class Choosing(server):  # type: ignore[misc]
        def evaluates_test(self, context: ServerContext, clients: Sequence[int]) -> set[int]:
            asked.append(list(clients))
            return {1, 3}

    changed = dataclasses.replace(get_method("fedre"), server=Choosing)
    built_in = registry._built_in
    monkeypatch.setattr(
        registry, "_built_in", lambda name: changed if name == "fedre" else built_in(name)
    )
    return asked


def run(directory: Path, **config: Any) -> Outcome:
    return run_federation(
        directory, CLIENTS, test_split="global", sample_fraction=0.4, num_rounds=3,
        evaluate_every=2, subset=0.1, models="cnn1, cnn2", **config,
    )  # fmt: skip


def is_test(row: dict[str, str]) -> bool:
    return row["metric"] == "accuracy"


@pytest.mark.parametrize("when", ["pre", "post"])
def test_only_who_was_chosen_measures_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """All else stays as it is, bit for bit: training, validation, who trains, traffic down."""
    whole = run(tmp_path / "whole", evaluate_when=when)
    asked = own_method(monkeypatch)
    chosen = run(tmp_path / "chosen", evaluate_when=when)
    # Rounds 2 and 3 are evaluated, and the end where evaluation came before training.
    assert asked == [[0, 1, 2, 3, 4]] * (3 if when == "pre" else 2)
    expected = [r for r in whole.rows("metrics") if not is_test(r) or r["client"] in CHOSEN]
    assert chosen.rows("metrics") == expected
    assert {r["client"] for r in chosen.rows("metrics") if is_test(r)} == CHOSEN
    validated = {r["client"] for r in chosen.metrics(metric="validation_accuracy")}
    assert validated == {"0", "1", "2", "3", "4"}
    down = [
        [r for r in outcome.rows("traffic") if r["direction"] == "downlink"]
        for outcome in (whole, chosen)
    ]
    assert down[0] == down[1]
    assert chosen.summary["accuracy"]["clients_evaluated"] == 2


def test_who_has_nothing_to_measure_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without validation examples: who trains is asked to train, of the others the chosen only."""
    own_method(monkeypatch)
    messages: list[tuple[str, str, int, bool]] = []

    class Tapped(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            client = int(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
            metadata, control = message.metadata, message.content[CONTROL]
            if metadata.message_type != "query":
                at = (metadata.group_id, metadata.message_type)
                messages.append((*at, client, bool(control["test"])))
            return super()._answer(message)

    outcome = run(tmp_path, validation_fraction=0.0, grid_class=Tapped)
    trained = {
        number: {int(r["client"]) for r in outcome.metrics(phase="train", round=number)}
        for number in (1, 2, 3)
    }
    expected = [("1", "train", client, False) for client in sorted(trained[1])]
    for number in (2, 3):
        expected += [
            (str(number), "train", client, client in {1, 3}) for client in sorted(trained[number])
        ]
        expected += [
            (str(number), "evaluate", client, True) for client in sorted({1, 3} - trained[number])
        ]
    expected += [("3", "evaluate", 1, True), ("3", "evaluate", 3, True)]
    assert messages == expected
    assert {r["client"] for r in outcome.metrics(metric="accuracy", phase="final")} == CHOSEN
    assert outcome.rows("failures") == []


def test_by_default_all_clients_measure_it() -> None:
    assert ServerHalf.evaluates_test(None, None, [4, 2, 7]) == {2, 4, 7}  # type: ignore[arg-type]
