"""Scores by task, and the relative change against a Local run, worked out by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from server_app.records.client_tasks import ClientTask, is_plain, task_name, tasks_in_order
from server_app.records.local_run import check_local_clients, check_local_run
from server_app.records.relative_change import refuse_unlike, relative_changes
from server_app.records.run_reader import read_run
from server_app.records.scores import Scores, main_scores
from server_app.records.summary import summarise
from strategies.base.messages import ClientInfo
from strategies.base.options import ConfigError
from strategies.base.run_config import RunConfig
from tests.unit.task_runs import (
    FEDMUSCLE,
    LOCAL,
    MIXED,
    PUBLISHED,
    a_round,
    finish,
    metrics_of,
    published,
    record,
    write_clients,
)
from tests.unit.test_roster import a_client_info

METRICS = metrics_of(MIXED)


def test_a_task_is_named_without_data_set_and_classes() -> None:
    assert task_name("multilabel@scenes") == "multilabel"
    assert task_name("classification@fashion-mnist[0+1]") == "classification"
    assert task_name("classification[0+1]") == task_name("classification") == "classification"


def test_tasks_come_in_the_order_of_their_first_clients() -> None:
    clients = {5: ClientTask(), 0: ClientTask("text"), 3: ClientTask("multilabel", "map")}
    assert list(tasks_in_order(clients).items()) == [
        ("text", "accuracy"), ("multilabel", "map"), ("classification", "accuracy")
    ]  # fmt: skip
    assert [is_plain(t) for t in ({}, {"text": "accuracy"}, {"multilabel": "map"})] == [
        True, True, False
    ]  # fmt: skip
    assert not is_plain({"text": "accuracy", "classification": "accuracy"})


# -- scores --------------------------------------------------------------------------------------


def test_means_are_taken_within_a_task(tmp_path: Path) -> None:
    """By validation, round 1 is best for multilabel and round 2 for classification."""
    write_clients(tmp_path / "run", MIXED)
    weights = {1: 30, 3: 40}
    first = a_round(1, METRICS, {0: 0.2, 1: 0.6, 2: 0.5, 3: 0.25, 4: 0.1, 5: 0.9},
                    validations={0: 0.9, 1: 0.9, 2: 0.1, 3: 0.1}, examples=weights)  # fmt: skip
    last = a_round(2, METRICS, {0: 0.8, 1: 0.4, 2: 1.0, 3: 0.5, 5: 0.7},
                   validations={0: 0.2, 1: 0.2, 2: 0.3, 3: 0.3}, examples=weights)  # fmt: skip
    record(tmp_path / "run", [first, last])
    summary = finish(tmp_path / "run", MIXED)
    scores = summary["scores"]
    assert list(scores) == ["multilabel", "classification", "segmentation", "text"]
    assert scores["multilabel"] == {
        "metric": "map", "final": pytest.approx(0.5), "best": pytest.approx(0.5),
        "best_round": 1, "best_phase": "post", "best_by": "validation", "clients": 2,
    }  # fmt: skip
    # (1.0 * 10 + 0.5 * 40) / 50
    assert scores["classification"]["final"] == pytest.approx(0.6)
    assert scores["classification"]["best_round"] == 2
    # Nobody of it was evaluated in round 2: its last evaluation is that of round 1.
    assert (scores["segmentation"]["final"], scores["segmentation"]["clients"]) == (0.1, 1)
    assert (scores["text"]["best_round"], scores["text"]["best_by"]) == (1, "test")
    # Accuracy is that of clients 2, 3 and 5: (1.0 * 10 + 0.5 * 40 + 0.7 * 10) / 60.
    assert summary["accuracy"]["final"] == pytest.approx(37 / 60)
    assert summary["accuracy"]["clients_evaluated"] == 3
    assert summary["accuracy"]["mean_over_clients"] == pytest.approx(2.2 / 3)
    assert list(summary["accuracy_by_model"]) == ["cnn5", "text-small"]


def test_a_run_without_accuracies_has_none(tmp_path: Path) -> None:
    write_clients(tmp_path / "run", MIXED[:2])
    record(tmp_path / "run", [a_round(1, METRICS, {0: 0.5, 1: 0.25})])
    summary = finish(tmp_path / "run", MIXED[:2])
    assert summary["scores"]["multilabel"]["final"] == 0.375
    for key in ("final", "best", "best_round", "mean_over_clients", "worst_client"):
        assert summary["accuracy"][key] is None
    assert summary["accuracy"]["clients_evaluated"] == 0
    assert summary["accuracy_by_model"] == {}
    assert (summary["delta"], summary["delta_reason"]) == (None, None)


def test_a_run_that_evaluated_nobody_lists_its_tasks(tmp_path: Path) -> None:
    write_clients(tmp_path / "run", MIXED[:1])
    record(tmp_path / "run", [a_round(1, METRICS, {})])
    assert finish(tmp_path / "run", MIXED[:1])["scores"] == {
        "multilabel": {"metric": "map", "final": None, "best": None, "best_round": None,
                       "best_phase": None, "best_by": "test", "clients": 0}
    }  # fmt: skip


def test_the_last_scores_are_of_the_closing_evaluation(tmp_path: Path) -> None:
    write_clients(tmp_path, MIXED)
    record(
        tmp_path,
        [a_round(1, METRICS, {0: 0.25, 1: 0.25, 4: 0.5}, phase="pre")],
        a_round(1, METRICS, {0: 0.5, 2: 0.75}, phase="final"),
    )
    scores = main_scores(read_run(tmp_path))
    # Client 1 is missing from its task's last evaluation; segmentation was not closed at all.
    assert scores.last() == {0: 0.5, 2: 0.75, 4: 0.5}
    assert list(scores.clients) == [0, 1, 2, 3, 4, 5]
    assert list(scores.of_task("segmentation").tests) == [(1, "pre")]


# -- delta ---------------------------------------------------------------------------------------


def test_delta_of_the_published_users(tmp_path: Path) -> None:
    """FedMuscle: 42.17 to 46.33 is +9.9 %, 24.77 to 36.67 +48.0 %, 43.77 to 66.57 +52.1 %."""
    published(tmp_path / "alone", LOCAL, method="local")
    summary = published(tmp_path / "together", FEDMUSCLE, local_run="alone")
    delta = summary["delta"]
    assert [round(change, 1) for change in delta["by_client"].values()] == [9.9, 48.0, 52.1]
    assert list(delta["by_client"]) == ["0", "1", "2"]
    # (9.8648 + 48.0420 + 52.0905) / 3
    assert delta["percent"] == pytest.approx(36.6658, abs=1e-4)
    assert delta["by_task"] == pytest.approx(
        {"multilabel": 9.8648, "classification": 50.0663}, abs=1e-4
    )
    assert (delta["against"], delta["clients_compared"], delta["left_out"]) == ("alone", 3, {})
    assert summary["delta_reason"] is None
    read_again = json.loads((tmp_path / "together" / "summary.json").read_text())
    assert read_again["delta"] == delta


def test_a_reference_of_zero_and_a_missing_client_are_left_out_and_named(tmp_path: Path) -> None:
    published(tmp_path / "alone", {0: 0.0, 1: 0.5}, method="local")
    delta = published(tmp_path / "run", {0: 0.5, 1: 0.75, 2: 1.0}, local_run="alone")["delta"]
    assert (delta["percent"], delta["clients_compared"]) == (50.0, 1)
    assert delta["by_client"] == {"1": 50.0}
    assert delta["by_task"] == {"classification": 50.0}
    assert delta["left_out"] == {
        "0": "its score in alone is 0", "2": "no score in the last evaluation of alone"
    }  # fmt: skip


def test_where_no_client_can_be_compared_there_is_no_delta(tmp_path: Path) -> None:
    published(tmp_path / "alone", {0: 0.0}, method="local")
    summary = published(tmp_path / "run", {0: 0.5, 1: 0.5}, local_run="alone")
    assert summary["delta"] is None
    assert "no client could be compared with 'alone': client 0: its" in summary["delta_reason"]


def test_other_clients_are_refused_by_name_without_losing_the_run(tmp_path: Path) -> None:
    published(tmp_path / "alone", LOCAL, method="local")
    run = tmp_path / "run"
    write_clients(run, [PUBLISHED[0], "text@tsv", PUBLISHED[2]], hashes={2: "other"})
    record(run, [a_round(1, metrics_of(PUBLISHED), FEDMUSCLE)])
    summary = finish(run, PUBLISHED, local_run="alone")
    assert summary["delta"] is None
    assert summary["scores"]["multilabel"]["final"] == 0.4633
    reason = summary["delta_reason"]
    assert "not those of run 'alone'" in reason
    assert "client 1: task text here, classification there; client 2: other data" in reason
    assert "client 0" not in reason


def test_many_unlike_clients_are_named_in_part() -> None:
    own = {i: ClientTask(data_hash="a") for i in range(12)}
    other = {i: ClientTask(data_hash="b") for i in range(12)}
    with pytest.raises(ConfigError, match="client 9: other data; and 2 more; compare runs of"):
        refuse_unlike(own, other, "x")
    refuse_unlike(own, {20: ClientTask(data_hash="b")}, "x")


def test_a_run_that_is_not_whole_is_refused_at_the_start(tmp_path: Path) -> None:
    check_local_run(tmp_path, "")
    published(tmp_path / "whole", LOCAL, method="local")
    check_local_run(tmp_path, "whole")
    published(tmp_path / "other", LOCAL)
    published(tmp_path / "half", LOCAL, method="local", status="running")
    published(tmp_path / "empty", {}, method="local")
    published(tmp_path / "broken", LOCAL, method="local")
    (tmp_path / "broken" / "config.json").write_text("{")
    published(tmp_path / "strange", LOCAL, method="local")
    (tmp_path / "strange" / "config.json").write_text("[]")
    (tmp_path / "bare").mkdir()
    for name, words in {
        "nowhere": "there is no completed run in",
        "bare": "config.json is missing",
        "other": "is a run of method 'fedre'",
        "half": "is not completed (its status is 'running')",
        "empty": "no client was evaluated in",
        "broken": "are damaged (JSONDecodeError",
        "strange": "are damaged (TypeError",
    }.items():
        with pytest.raises(ConfigError) as caught:
            check_local_run(tmp_path, name)
        assert str(caught.value).startswith(f"local-run = {name!r}: ")
        assert words in str(caught.value), name
        assert "run method local below the same output-dir first" in str(caught.value)


def test_a_run_that_vanished_meanwhile_costs_only_the_delta(tmp_path: Path) -> None:
    summary = published(tmp_path / "run", FEDMUSCLE, local_run="gone")
    assert summary["delta"] is None
    assert "there is no completed run in" in summary["delta_reason"]
    published(tmp_path / "gone", LOCAL, method="local")
    path = tmp_path / "gone" / "metrics.csv"
    path.write_text(path.read_text().replace("0.4217", "a lot"))
    run = RunConfig(method="fedre", output_dir=str(tmp_path), local_run="gone")
    reason = summarise(tmp_path / "run", run, 3)["delta_reason"]
    assert "damaged (ValueError: could not convert string to float: 'a lot')" in reason


def infos(**first: Any) -> dict[int, ClientInfo]:
    """Return the client information of the published users, that of user 0 with changes."""
    found = {
        i: dataclasses.replace(a_client_info(i), task=task, metric=metric, data_hash=f"d{i}")
        for i, (task, metric) in enumerate(zip(PUBLISHED, metrics_of(PUBLISHED), strict=True))
    }
    return found | {0: dataclasses.replace(found[0], **first)}


def test_clients_are_compared_after_the_roll_call(tmp_path: Path) -> None:
    published(tmp_path / "alone", LOCAL, method="local")
    check_local_clients(tmp_path, "alone", infos())
    check_local_clients(tmp_path, "alone", {7: a_client_info(7)})
    check_local_clients(tmp_path, "", infos(data_hash="x"))
    with pytest.raises(ConfigError, match="client 0: other data; compare"):
        check_local_clients(tmp_path, "alone", infos(data_hash="x"))
    with pytest.raises(ConfigError, match="there is no completed run"):
        check_local_clients(tmp_path, "nowhere", infos())


def test_old_runs_without_tasks_are_compared_by_accuracy() -> None:
    clients = {0: ClientTask(data_hash="a")}
    own, before = (Scores(clients, {(1, "post"): {0: (value, 10)}}, {}) for value in (0.75, 0.5))
    found = relative_changes(own, before, "old")
    assert (found.percent, found.by_client, found.by_task) == (
        50.0, {0: 50.0}, {"classification": 50.0}
    )  # fmt: skip
