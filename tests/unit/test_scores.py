"""Scores by task, and the relative change against a Local run, worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from data.tasks import task_name
from server_app.console import closing_lines
from server_app.records.client_tasks import ClientTask, is_plain, tasks_in_order
from server_app.records.local_run import check_local_clients, check_local_run
from server_app.records.recorder import Recorder
from server_app.records.relative_change import refuse_unlike, relative_changes
from server_app.records.run_reader import read_run
from server_app.records.scores import Scores, main_scores
from server_app.records.summary import summarise
from server_app.report import write_report
from strategies.base.messages import ClientInfo, MetricRow
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


# -- what the numbers rest on --------------------------------------------------------------------


def late_joiner(directory: Path, **settings: Any) -> dict[str, Any]:
    """Client 0 alone for three rounds, up to 83.6 % in round 2; then two clients, 41 % at the end.

    Client 0 has 150 test examples, client 1 50: (0.46 * 150 + 0.26 * 50) / 200 = 0.41 in round 6.
    """
    examples = {0: 150, 1: 50}
    alone = [{0: 0.7}, {0: 0.836}, {0: 0.8}]
    both = [{0: 0.4, 1: 0.2}, {0: 0.5, 1: 0.3}, {0: 0.46, 1: 0.26}]
    plain = ["accuracy", "accuracy"]
    rounds = [
        a_round(number, plain, scores, examples=examples)
        for number, scores in enumerate([*alone, *both], 1)
    ]
    write_clients(directory, ["classification"] * 2, test_examples=examples)
    record(directory, rounds)
    return finish(directory, ["classification"] * 2, **{"num-rounds": 6, **settings})


def test_the_best_of_a_run_with_a_late_joiner_is_over_the_clients_of_the_final(
    tmp_path: Path,
) -> None:
    summary = late_joiner(tmp_path / "run")
    assert summary["accuracy"]["final"] == pytest.approx(0.41)
    assert summary["accuracy"]["best"] == pytest.approx(0.45)
    assert (summary["accuracy"]["best_round"], summary["accuracy"]["best_by"]) == (5, "test")
    assert summary["scores"]["classification"]["best_round"] == 5
    assert summary["rests_on"] == {
        "classification": {
            "clients": 2, "known_clients": 2, "test_examples": 200, "rounds": 6,
            "planned_rounds": 6, "evaluations": 6, "compared_evaluations": 3, "caveats": [],
            "best_caveat": "among the 3 of 6 evaluations that have the final one's clients",
        }
    }  # fmt: skip
    lines = closing_lines(summary).splitlines()
    assert lines[0].startswith("final accuracy 41.00 % (2 of 2 clients")
    assert lines[1] == (
        "best accuracy  45.00 % in round 5, chosen by test accuracy, among the 3 of 6 evaluations "
        "that have the final one's clients"
    )


def test_the_best_so_far_starts_again_where_a_client_joins(tmp_path: Path) -> None:
    write_clients(tmp_path, ["classification"] * 2)
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    plain = ["accuracy", "accuracy"]
    found = []
    rounds = [{0: 0.8}, {0: 0.7}, {0: 0.5, 1: 0.3}, {0: 0.4, 1: 0.2}, {0: 0.75}]
    for number, scores in enumerate(rounds, 1):
        recorder.add(a_round(number, plain, scores))
        found.append(recorder.best["classification"])
    assert found == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.8])


def test_validation_chooses_among_the_evaluations_of_the_finals_clients(tmp_path: Path) -> None:
    """Round 1 is best by validation, but client 1 was away; of the others round 2 is."""
    write_clients(tmp_path / "run", ["classification"] * 2)
    plain = ["accuracy", "accuracy"]
    record(tmp_path / "run", [
        a_round(1, plain, {0: 0.9}, validations={0: 0.9}),
        a_round(2, plain, {0: 0.5, 1: 0.3}, validations={0: 0.5, 1: 0.6}),
        a_round(3, plain, {0: 0.6, 1: 0.4}, validations={0: 0.4, 1: 0.6}),
    ])  # fmt: skip
    accuracy = finish(tmp_path / "run", ["classification"] * 2)["accuracy"]
    assert (accuracy["best_round"], accuracy["best_by"]) == (2, "validation")
    assert accuracy["best"] == pytest.approx(0.4)


def test_what_a_number_rests_on_is_said_beside_it(tmp_path: Path) -> None:
    """Five clients: 2 without test examples, 3 away at the end, 1 never trained; 40 examples."""
    run = tmp_path / "run"
    write_clients(run, ["classification"] * 5, test_examples={2: 0})
    plain = ["accuracy"] * 5
    first = a_round(1, plain, {0: 0.5, 3: 0.5, 4: 0.5})
    last = a_round(2, plain, {0: 0.5, 1: 0.75, 4: 0.25}, examples={1: 20})
    last.rows = [(c, row) for c, row in last.rows if (c, row.phase) != (1, "train")]
    record(run, [first, last])
    summary = finish(run, ["classification"] * 5)
    rests_on = summary["rests_on"]["classification"]
    assert rests_on["caveats"] == [
        "no test examples: client 2", "not in the last evaluation: client 3",
        "40 test examples in all, one is 2.5 points", "2 of 10 rounds", "never trained: client 1",
    ]  # fmt: skip
    assert rests_on["best_caveat"].startswith("among the 1 of 2 evaluations")
    lines = closing_lines(summary).splitlines()
    assert lines[1] == "  note: " + "; ".join(rests_on["caveats"])
    page = write_report(run).read_text(encoding="utf-8")
    for caveat in rests_on["caveats"]:
        assert page.count(caveat) == 2, caveat  # beside the final number and the mean of clients
    assert "among the 1 of 2 evaluations" in page
    # A run that goes on has not missed its rounds; one of an older version chose among all.
    (run / "summary.json").unlink()
    page = write_report(run).read_text(encoding="utf-8")
    assert "2 of 10 rounds" not in page
    assert "not in the last evaluation: client 3" in page
    old = {k: v for k, v in summary.items() if k != "rests_on"}
    old["accuracy"] |= {"best_round": 1, "best_phase": "post"}
    (run / "summary.json").write_text(json.dumps(old), encoding="utf-8")
    assert "over 3 clients, not the final one" in write_report(run).read_text(encoding="utf-8")


def test_a_global_model_on_the_global_split_is_measured_on_purpose_by_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_clients(run, ["classification"] * 3)
    first = a_round(1, ["accuracy"] * 3, {0: 0.5}, examples={0: 500})
    first.rows = [(c, row) for c, row in first.rows if row.phase != "train"]
    first.rows.append((1, MetricRow("train", "loss", 1.0, 40)))
    record(run, [first])
    settings = {"test_split": "global", "num_rounds": 1}
    summary = finish(run, ["classification"] * 3, **settings)
    assert summary["rests_on"]["classification"]["caveats"] == [
        "not in the last evaluation: clients 1, 2", "never trained: client 0"
    ]  # fmt: skip
    # fedre's models are personal, those of fedavg global.
    (run / "summary.json").write_text(
        json.dumps(summary | {"accuracy": summary["accuracy"] | {"model": "global"}})
    )
    assert "not in the last evaluation" not in write_report(run).read_text(encoding="utf-8")


def test_the_curve_marks_where_the_clients_change(tmp_path: Path) -> None:
    late_joiner(tmp_path / "run")
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    marks = re.findall(r'<path class="change" d="M([\d.]+) \d+V\d+"><title>(.*?)</title>', page)
    assert [text for _, text in marks] == ["from round 4 on 1 more (client 1)"]
    assert "The evaluated clients change once, from round 4 on 1 more (client 1)." in page
    assert "other clients from here on" in page
    at = {float(x) for x in re.findall(r'<circle class="mean" cx="([\d.]+)"', page)}
    assert float(marks[0][0]) in at


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
