"""`evaluate-when = "both"`: what participants score after training, beside the main evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import MetricRecord, RecordDict

from deploy.compare.output import columns_of, explanation, shown_columns, table_cells
from deploy.compare.plan import make_plan
from deploy.compare.progress import COMPLETE
from deploy.compare.results import collect
from server_app.report import write_report
from server_app.rounds.method_server import MethodServer
from strategies.base.messages import INFO, METRICS, ReplyInfo
from strategies.base.payload import PayloadError
from strategies.base.replies import _metric_row
from strategies.base.run_config import RunConfig
from tests.support import Outcome, run_federation
from tests.unit.test_roster import a_client_info

SETTINGS: dict[str, dict[str, Any]] = {
    "fedre": {},
    "fedproto": {},  # predicts by what it received
    "fedavg": {"models": "cnn5"},
    # Two exchanges a round; the main evaluation comes with the first.
    "fedmuscle": {"public_dataset": "digits", "public_size": 32, "image_size": 16},
}


def scores(run: Outcome, metric: str, phase: str) -> list[tuple[str, ...]]:
    rows = run.metrics(metric=metric, phase=phase)
    return [(r["round"], r["client"], r["value"], r["examples"]) for r in rows]


@pytest.mark.parametrize("method", SETTINGS)
def test_both_measures_what_pre_and_post_measure(tmp_path: Path, method: str) -> None:
    """Bit for bit: the further rows are those of "post", and all others are those of "pre"."""
    runs = {
        when: run_federation(
            tmp_path / when, 3, method=method, evaluate_when=when, subset=0.1, num_rounds=3,
            evaluate_every=2, **SETTINGS[method],
        )
        for when in ("pre", "post", "both")
    }  # fmt: skip
    both = runs["both"]
    after = scores(both, "trained_accuracy", "post")
    assert after == scores(runs["post"], "accuracy", "post")
    assert {number for number, *_ in after} == {"2", "3"}
    rest = [r for r in both.rows("metrics") if not r["metric"].startswith("trained_")]
    assert rest == runs["pre"].rows("metrics")
    last = [(float(v), float(n)) for number, _, v, n in after if number == "3"]
    mean = sum(v * n for v, n in last) / sum(n for _, n in last)
    accuracy, before = both.summary["accuracy"], runs["pre"].summary["accuracy"]
    assert accuracy.pop("trained") == pytest.approx(mean)
    assert accuracy == before
    assert runs["post"].summary["accuracy"].get("trained") is None


def test_only_participants_are_scored_after_training(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 4, evaluate_when="both", sample_fraction=0.5, num_rounds=2, subset=0.1
    )
    for number in ("1", "2"):
        trained = {r["client"] for r in run.metrics(phase="train", metric="loss", round=number)}
        scored = {r["client"] for r in run.metrics(metric="trained_accuracy", round=number)}
        assert scored == trained
        assert len(trained) == 2


def test_report_and_comparison_show_it(tmp_path: Path) -> None:
    """Beside what was measured before, in a column that other comparisons do not have."""
    content = {
        "name": "both", "output-dir": str(tmp_path), "clients": 2, "methods": ["local"],
        "seeds": [0],
        "settings": {
            "num-rounds": 2, "models": "cnn5", "subset": 0.1, "evaluate-when": "both",
        },
    }  # fmt: skip
    plan = make_plan(content)
    run = run_federation(tmp_path, 2, run_name=plan.runs[0].name, **_keys(content))
    text = write_report(tmp_path / plan.runs[0].name).read_text(encoding="utf-8")
    assert "participants&#39; mean after local training" in text
    rows = collect(plan, {plan.runs[0].name: COMPLETE})
    heads, body = table_cells(plan, rows)
    place = heads.index("after training %")
    assert body[0][place] == f"{100 * run.summary['accuracy']['trained']:.2f}"
    assert heads[place - 1] == "worst client %"
    assert "After training: what the participants" in explanation(plan)
    assert "trained" not in columns_of(plan)
    unlike = make_plan({**content, "settings": {"num-rounds": 2}})
    assert "trained" not in shown_columns(unlike, [])
    assert "After training" not in explanation(unlike)


def _keys(content: dict[str, Any]) -> dict[str, Any]:
    settings = {key.replace("-", "_"): value for key, value in content["settings"].items()}
    return {"method": "local", **settings}


@pytest.mark.parametrize(
    ("when", "key", "accepted"),
    [
        ("both", "post/trained_accuracy", True),
        ("both", "pre/trained_accuracy", True),  # of the phase that was asked for, and no score
        ("both", "post/accuracy", False),
        ("pre", "post/trained_accuracy", False),
    ],
)
def test_a_phase_that_was_not_asked_for_is_refused(when: str, key: str, accepted: bool) -> None:
    server = MethodServer(RunConfig(method="local", evaluate_when=when))
    server.admit([a_client_info(0)])
    info = ReplyInfo(
        client_id=0, round=0, num_examples=0, compute_s=0.0, worker="w", rounds_trained=0
    )
    reply = RecordDict({METRICS: MetricRecord({key: [0.5, 1.0]}), INFO: info.to_record()})
    if accepted:
        assert server.read(0, reply, "pre").rows[0].value == 0.5
    else:
        with pytest.raises(PayloadError, match="phase was not asked for"):
            server.read(0, reply, "pre")


@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_a_share_that_is_none_is_refused(value: float) -> None:
    for name in ("trained_accuracy", "trained_map"):
        with pytest.raises(PayloadError, match="is not between 0 and 1"):
            _metric_row(f"post/{name}", [value, 1.0])
