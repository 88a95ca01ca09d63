"""Comparisons against a reference method, and of runs whose clients have unlike tasks."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.compare.cells import Spread
from deploy.compare.command import Comparison
from deploy.compare.deltas import unlike_models
from deploy.compare.differences import differences, statement, tables
from deploy.compare.output import columns_of, explanation, left_out, table_cells, write_outputs
from deploy.compare.plan import Plan, PlannedRun, make_plan
from deploy.compare.progress import COMPLETE, check_states
from deploy.compare.results import Row, collect
from server_app.records.run_directory import write_atomically
from server_app.records.summary import summarise
from strategies.base.options import ConfigError
from tests.unit.task_runs import (
    FEDMUSCLE,
    LOCAL,
    PUBLISHED,
    Evaluation,
    a_round,
    metrics_of,
    record,
    write_clients,
)

#: The published users' tasks on data sets that this version can check without having them.
TASKS = "multilabel@scenes, classification@cifar100, classification@cifar10"
OTHER = {0: 0.5, 1: 0.5, 2: 0.5}
DELTA = {0: 100 * (46.33 / 42.17 - 1), 1: 100 * (36.67 / 24.77 - 1), 2: 100 * (66.57 / 43.77 - 1)}


def plan_of(tmp_path: Path, **changes: Any) -> Plan:
    base = {
        "name": "try", "output-dir": str(tmp_path), "clients": 3, "seeds": [0, 1],
        "methods": ["local", {"name": "local", "label": "muscle", "overrides": {"lr": 0.5}}],
        "settings": {"num-rounds": 1, "tasks": TASKS}, "reference": "local",
    }  # fmt: skip
    merged = base | {key.replace("_", "-"): value for key, value in changes.items()}
    return make_plan({key: value for key, value in merged.items() if value is not ...})


def write_run(run: PlannedRun, *rounds: Evaluation, tasks: tuple[str, ...] = PUBLISHED,
              **infos: Any) -> None:  # fmt: skip
    """Write a complete run with these main scores after each round."""
    write_clients(run.directory, tasks, **infos)
    examples = {0: 30}
    results = [
        a_round(number, metrics_of(tasks), scores, examples=examples)
        for number, scores in enumerate(rounds, 1)
    ]
    record(run.directory, results)
    info = {"config": run.run.flat() | {"run-name": run.name}, "status": "completed", "clients": 3}
    write_atomically(run.directory / "config.json", json.dumps(info))
    summary = summarise(run.directory, run.run, len(tasks))
    write_atomically(run.directory / "summary.json", json.dumps(summary))


def written(tmp_path: Path, **changes: Any) -> Plan:
    """Write the published scores for seed 0 and, for seed 1, a method without any effect."""
    plan = plan_of(tmp_path, **changes)
    for run in plan.runs:
        write_run(run, FEDMUSCLE if run.label == "muscle" and run.seed == 0 else LOCAL)
    return plan


def rows_of(plan: Plan) -> list[Row]:
    return collect(plan, check_states(plan))


def number(cell: Spread | str) -> float:
    assert isinstance(cell, Spread), cell
    return cell.mean


# -- delta ---------------------------------------------------------------------------------------


def test_changes_are_taken_client_by_client_and_seed_by_seed(tmp_path: Path) -> None:
    """+9.9, +48.0 and +52.1 % with seed 0, nothing with seed 1: half of +36.7 on average."""
    plan = written(tmp_path)
    local, muscle = rows_of(plan)
    assert [round(value, 1) for value in DELTA.values()] == [9.9, 48.0, 52.1]
    mean = sum(DELTA.values()) / 3
    assert number(muscle.cells["delta"]) == pytest.approx(mean / 2)
    assert muscle.cells["delta"].std == pytest.approx(mean / math.sqrt(2))  # type: ignore[union-attr]
    assert number(muscle.cells["delta_multilabel"]) == pytest.approx(DELTA[0] / 2)
    assert number(muscle.cells["delta_classification"]) == pytest.approx((DELTA[1] + DELTA[2]) / 4)
    assert local.cells["delta"] == local.cells["delta_multilabel"] == Spread(0.0, 0.0)
    assert (muscle.notes, left_out([local, muscle])) == ([], [])


def test_the_table_has_a_column_for_each_task(tmp_path: Path) -> None:
    plan = written(tmp_path, seeds=[0])
    rows = write_outputs(plan, check_states(plan), {})
    heads, body = table_cells(plan, rows)
    assert heads[:6] == [
        "method", "multilabel map %", "classification accuracy %", "delta against local %",
        "delta multilabel %", "delta classification %",
    ]  # fmt: skip
    assert body[1][:6] == ["muscle", "46.33", "51.62", "+36.67", "+9.86", "+50.07"]
    assert body[0][3] == "+0.00"
    text = (tmp_path / "try.md").read_text()
    assert "| muscle | 46.33 | 51.62 | +36.67 | +9.86 | +50.07 |" in text
    assert "Delta is the mean over clients, all alike, of 100 (a - b) / b" in text
    assert "final accuracy" not in text
    with (tmp_path / "try.csv").open(newline="") as file:
        _, muscle = csv.DictReader(file)
    assert float(muscle["multilabel_map"]) == 0.4633
    assert float(muscle["classification_accuracy"]) == pytest.approx((0.3667 + 0.6657) / 2)
    assert float(muscle["delta"]) == pytest.approx(sum(DELTA.values()) / 3)
    assert muscle["delta_std"] == ""
    assert "final" not in muscle


def test_each_task_has_a_chart(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0], settings={"num-rounds": 2, "tasks": TASKS})
    for run in plan.runs:
        write_run(run, LOCAL, FEDMUSCLE)
    write_outputs(plan, check_states(plan), {})
    html = (tmp_path / "try.html").read_text()
    assert "<h2>Scores over rounds</h2>" in html
    assert re.findall("<h3>(.*?)</h3>", html) == [
        "All methods, multilabel map", "All methods, classification accuracy"
    ]  # fmt: skip
    assert "muscle: 46.3 % at the end" in html
    # (0.3667 + 0.6657) / 2; the mean accuracy of all three would be another one.
    assert "muscle: 51.6 % at the end" in html
    assert not any(word in html for word in ("http://", "https://", "<script", "nan"))


def test_who_is_left_out_of_delta_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path, seeds=[0])
    write_run(plan.runs[0], {0: 0.0, 1: 0.5})
    write_run(plan.runs[1], {0: 0.5, 1: 0.75, 2: 0.5})
    rows = write_outputs(plan, check_states(plan), {})
    assert number(rows[1].cells["delta"]) == 50.0
    assert (rows[1].cells["delta_multilabel"], rows[0].cells["delta_multilabel"]) == ("", "")
    words = (
        "delta of muscle: seed 0: client 0 (its score in local is 0), client 2 (no score in the "
        "last evaluation of local)"
    )
    assert (
        "\nLeft out:\n\n- delta of local: seed 0: client 0 (its score in local is 0), "
        in (tmp_path / "try.md").read_text()
    )
    assert f"- {words}\n" in (tmp_path / "try.md").read_text()
    assert f'<p class="note">{words}</p>' in (tmp_path / "try.html").read_text()
    assert Comparison(plan, check_states(plan), tmp_path).execute() == 0
    assert f"- {words}\n" in capsys.readouterr().out


def test_other_clients_are_not_comparable(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0])
    write_run(plan.runs[0], LOCAL, hashes={1: "other"})
    write_run(plan.runs[1], LOCAL)
    local, muscle = rows_of(plan)
    assert muscle.cells["delta"] == muscle.cells["delta_multilabel"] == "not comparable"
    assert local.cells["delta"] == Spread(0.0, None)
    (note,) = left_out([local, muscle])
    assert note.startswith("delta of muscle: seed 0: the clients are not those of run 'local': ")
    assert "client 1: other data" in note


def test_delta_rests_on_the_seeds_complete_for_both(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert rows_of(plan)[1].cells["delta"] == "not run"
    write_run(plan.runs[1], FEDMUSCLE)
    write_run(plan.runs[2], LOCAL)
    assert [row.cells["delta"] for row in rows_of(plan)] == [Spread(0.0, None), ""]
    write_run(plan.runs[0], LOCAL)
    local, muscle = rows_of(plan)
    assert local.cells["delta"] == Spread(0.0, 0.0)
    assert number(muscle.cells["delta"]) == pytest.approx(sum(DELTA.values()) / 3)
    assert muscle.cells["delta"].std is None  # type: ignore[union-attr]


def test_each_variant_has_its_own_reference_and_tasks(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, seeds=[0], settings={"num-rounds": 1},
        variants=[
            {"label": "plain"},
            {"label": "mixed", "settings": {"tasks": "multilabel@scenes, text@scenes"}},
        ],
    )  # fmt: skip
    plain, mixed = ("classification",) * 3, ("multilabel@scenes", "text@scenes")
    for run, scores in zip(plan.runs, (LOCAL, FEDMUSCLE, LOCAL, OTHER), strict=True):
        here = {i: scores[i] for i in range(3 if run.variant == "plain" else 2)}
        write_run(run, here, tasks=plain if run.variant == "plain" else mixed)
    assert plan.tasks == {
        "classification": "accuracy", "multilabel": "map", "text": "accuracy"
    }  # fmt: skip
    rows = {(row.variant, row.label): row.cells for row in rows_of(plan)}
    assert number(rows["plain", "muscle"]["delta"]) == pytest.approx(sum(DELTA.values()) / 3)
    changes = (100 * (0.5 / 0.4217 - 1), 100 * (0.5 / 0.2477 - 1))
    assert number(rows["mixed", "muscle"]["delta"]) == pytest.approx(sum(changes) / 2)
    assert number(rows["mixed", "muscle"]["delta_text"]) == pytest.approx(changes[1])
    assert rows["mixed", "muscle"]["classification_accuracy"] == ""
    assert rows["plain", "muscle"]["multilabel_map"] == rows["plain", "muscle"]["delta_text"] == ""


def test_one_accuracy_needs_no_columns_by_task(tmp_path: Path) -> None:
    """A reference without a target gives delta, and no ratio of rounds."""
    plan = plan_of(tmp_path, seeds=[0], settings={"num-rounds": 1})
    for run in plan.runs:
        write_run(run, LOCAL if run.label == "local" else FEDMUSCLE, tasks=("classification",) * 3)
    assert plan.tasks == {}
    names = list(columns_of(plan))
    assert names[:6] == [
        "final", "best", "mean_over_clients", "spread", "worst_client", "delta"
    ]  # fmt: skip
    assert not any(name.startswith(("delta_", "rounds_")) for name in names)
    heads, body = table_cells(plan, rows_of(plan))
    assert body[1][heads.index("delta against local %")] == "+36.67"
    with_target = plan_of(tmp_path, target_accuracy=0.5, settings={"num-rounds": 1})
    names = list(columns_of(with_target))
    assert names.index("delta") < names.index("rounds_to_target")
    assert "rounds_over_reference" in names
    assert not any("delta" in name for name in columns_of(plan_of(tmp_path, reference=...)))


def test_a_single_task_of_another_metric_replaces_the_accuracies(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0], settings={"num-rounds": 1, "tasks": "multilabel@scenes"})
    names = list(columns_of(plan))
    assert names[:2] == ["multilabel_map", "delta"]
    assert "delta_multilabel" not in names


# -- differences ---------------------------------------------------------------------------------


def test_differences_of_unlike_scores_have_no_mean(tmp_path: Path) -> None:
    plan = written(tmp_path, seeds=[0], differences=[["muscle", "local"]])
    rows = write_outputs(plan, check_states(plan), {})
    (found,) = differences(plan, rows)
    assert statement(found) == "muscle is better on 3 of 3 clients"
    lines = tables([found]).splitlines()
    assert "| 0 (map) | 46.33 | 42.17 | +4.16 | 1 of 1 |" in lines
    assert "| 2 (accuracy) | 66.57 | 43.77 | +22.80 | 1 of 1 |" in lines
    assert any(line.startswith("Final score of each client") for line in lines)
    assert "Final score in percentage points" in (tmp_path / "try.html").read_text()


def test_methods_with_other_tasks_cannot_be_subtracted(tmp_path: Path) -> None:
    methods = ["local", {"name": "local", "label": "muscle", "overrides": {"tasks": "text@tsv"}}]
    with pytest.raises(ConfigError, match="the clients of muscle and local have unlike data"):
        plan_of(tmp_path, methods=methods, differences=[["muscle", "local"]])


def test_a_comparison_without_runs_shows_its_columns(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    rows = write_outputs(plan, {}, {})
    heads, body = table_cells(plan, rows)
    assert heads[1] == "multilabel map %"
    assert set(body[0][1:-1]) == {"not run"}
    assert "no complete run so far" in (tmp_path / "try.html").read_text()
    assert COMPLETE not in check_states(plan).values()


def test_models_of_another_form_are_named(tmp_path: Path) -> None:
    """A task model of a pretrained encoder has adapters; without tasks Local trains all weights."""

    def plan(tasks: str, *methods: str) -> Plan:
        return plan_of(tmp_path, settings={"num-rounds": 1, "tasks": tasks}, methods=list(methods))

    unlike = plan("", "local", "fedmuscle", "fedproto")
    said = unlike_models(unlike.runs)
    assert said.startswith("The models of fedmuscle are task models")
    assert "those of fedproto, local are not" in said
    assert said in explanation(unlike)
    assert unlike_models(plan("classification", "local", "fedmuscle").runs) == ""
    assert unlike_models(plan("", "local", "fedproto").runs) == ""
