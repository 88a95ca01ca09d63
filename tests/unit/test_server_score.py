"""The score of the server's own model: in records, summary, console, report; and when it is off."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.compare.cells import Spread
from deploy.compare.output import shown_columns, table_cells
from deploy.compare.progress import COMPLETE
from deploy.compare.results import SERVER_FIELD, collect
from deploy.contract.runs import TINY
from deploy.reproduce.quantities import check_quantity, quantity
from server_app.records.run_reader import read_run
from server_app.records.server_score import server_score, server_scores
from strategies.base.method import get_method
from strategies.base.server import NotScoredError, ServerContext
from strategies.common.server_models import official_test
from tests.support import run_federation
from tests.unit.layerwise_support import a_server, card_of
from tests.unit.test_compare_tasks import LOCAL, plan_of
from tests.unit.test_compare_tasks import write_run as write_planned
from tests.unit.test_report import write_run

GLOBAL: dict[str, Any] = {
    **TINY, "test_split": "global", "public_dataset": "digits", "public_size": 24,
    "models": "cnn5, cnn4", "partition": "iid",
}  # fmt: skip


def test_feddf_scores_what_its_clients_measure(tmp_path: Path, capsys: Any) -> None:
    """At the end clients measure the models that the server has just scored, on the same images."""
    run = run_federation(tmp_path, 2, method="feddf", num_rounds=2, report=True, **GLOBAL)
    clients = {row["client"]: row for row in run.metrics(phase="final", metric="accuracy")}
    scored = run.metrics(client="server", phase="server", round=2)
    by_name = {row["metric"]: float(row["value"]) for row in scored}
    assert by_name.keys() == {"accuracy", "accuracy_cnn4", "accuracy_cnn5"}
    for client, model in (("0", "cnn5"), ("1", "cnn4")):
        assert by_name[f"accuracy_{model}"] == float(clients[client]["value"])
    assert by_name["accuracy"] == pytest.approx(sum(by_name.values()) / 3)
    assert {row["examples"] for row in scored} == {clients["0"]["examples"]}
    of_server = run.summary["server"]
    assert of_server["final"] == by_name["accuracy"]
    assert of_server["examples"] == int(clients["0"]["examples"])
    assert "official test examples" in of_server["on"]
    shown = capsys.readouterr().out
    assert "the server's own model is scored by accuracy on" in shown
    assert "server accuracy " in shown
    assert "server's model" in shown
    assert "Score of the server&#39;s model over rounds" in run.text("report.html")


def test_fedet_scores_its_own_model_and_resumes_exactly(tmp_path: Path) -> None:
    """A run that is resumed leaves the same metrics.csv, its server's scores among them."""
    settings = {"method": "fedet", "num_rounds": 2, **GLOBAL}
    whole = run_federation(tmp_path, 2, **settings).text("metrics.csv")
    again = run_federation(tmp_path, 2, resume="run", resume_round=1, **settings)
    assert again.text("metrics.csv") == whole
    rows = again.metrics(client="server", phase="server")
    assert [(row["round"], row["metric"]) for row in rows] == [("1", "accuracy"), ("2", "accuracy")]


def test_best_is_the_highest_and_the_first_of_equals(tmp_path: Path) -> None:
    """Rounds 1, 2, 3 with 0.5, 0.75, 0.75: final in 3, best in 2; a run without has none."""
    write_run(tmp_path)
    with (tmp_path / "metrics.csv").open("a") as file:
        for number, value in ((1, 0.5), (2, 0.75), (3, 0.75)):
            file.write(f"{number},server,server,accuracy,{value},40\n")
    found = server_score(read_run(tmp_path), get_method("fedet"))
    assert found is not None
    assert (found["final_round"], found["best_round"], found["best"]) == (3, 2, 0.75)
    assert (found["examples"], found["best_by"]) == (40, "test")
    assert server_score(read_run(tmp_path), get_method("fedre")) is None
    assert server_scores(read_run(tmp_path)) == {"accuracy": {1: 0.5, 2: 0.75, 3: 0.75}}


# When it is off -----------------------------------------------------------------------------------


def a_context(**settings: Any) -> ServerContext:
    run = a_server({}, "feddf", **settings).run
    card = dataclasses.replace(card_of(0, "cnn5"), feature_dim=8)
    return ServerContext(run, {0: card})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, r"test-split = 'personal'.*set test-split = 'global'"),
        ({"test_split": "global", "tasks": "multilabel@scenes"}, "clients that all classify alike"),
        ({"test_split": "global"}, "num_classes is 10 on the server, 3 on client 0"),
        ({"test_split": "global", "dataset": "imagefolder"}, "is not on the server"),
    ],
)
def test_it_is_off_with_a_reason(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(NotScoredError, match=said):
        official_test(a_context(**settings), "cnn5")


def test_a_run_without_a_score_says_why_and_records_none(tmp_path: Path, capsys: Any) -> None:
    run = run_federation(
        tmp_path, 2, method="feddf", **{**GLOBAL, "test_split": "personal", "num_rounds": 1}
    )
    shown = capsys.readouterr().out
    assert "warning: the server's own model gets no score: with test-split" in shown
    assert run.metrics(phase="server") == []
    assert "server" not in run.summary


# In comparisons and in tables of papers -----------------------------------------------------------


def test_a_comparison_has_a_column_where_a_run_has_a_score(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0])
    for planned in plan.runs:
        write_planned(planned, LOCAL)
    complete = {planned.name: COMPLETE for planned in plan.runs}
    assert SERVER_FIELD not in shown_columns(plan, collect(plan, complete))
    first = plan.runs[0].directory / "summary.json"
    scores = {"final": 0.25, "finals": {"recall": 0.25, "recall_i2t": 0.5}}
    first.write_text(json.dumps({**json.loads(first.read_text()), "server": scores}))
    rows = collect(plan, complete)
    heads, body = table_cells(plan, rows)
    place = heads.index("server's model %")
    assert [line[place] for line in body] == ["25.00", ""]
    cell = quantity("server-recall_i2t").take(plan, rows[0], rows)
    assert isinstance(cell, Spread)
    assert cell.mean == 50
    check_quantity("server-recall_i2t", "here")
    assert quantity("server-recall").heading == "server's model, recall %"
