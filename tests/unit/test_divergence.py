"""A loss that grows a thousandfold is said to be a divergence, and nothing else is."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from server_app.records.round_result import RoundResult
from server_app.rounds.divergence import DivergenceWatch
from server_app.rounds.server_steps import ServerStepWatch, smaller_steps
from strategies.base.kept import loss_growth
from strategies.base.parsing import parse_run_config
from tests.support import Outcome, run_federation

GUESS = math.log(10)
SETTINGS: dict[str, Any] = {
    "subset": 0.08,
    "image_size": 16,
    "feature_dim": 16,
    "models": "cnn5, cnn2",
}


def diverged(run: Outcome) -> list[tuple[str, str]]:
    return [(r["round"], r["client"]) for r in run.rows("failures") if r["kind"] == "diverged"]


@pytest.mark.parametrize(
    ("loss", "first", "expected"),
    [
        (2999.0, 3.0, None),
        (3000.0, 3.0, 1000.0),
        (2.0, 1e-9, None),  # a trained model came, and then another: no divergence
        (1001 * GUESS, 1e-9, 1001.0),
        (0.0, 0.0, None),
        (1e20, 1e20, 1e20 / GUESS),  # seen too late to know what it was before
    ],
)
def test_growth(loss: float, first: float, expected: float | None) -> None:
    assert loss_growth(loss, first, 10) == (expected and pytest.approx(expected))


def test_one_class_has_a_reference_too() -> None:
    assert loss_growth(500.0, 0.0, 1) is None
    assert loss_growth(700.0, 0.0, 1) == pytest.approx(700 / math.log(2))


@pytest.mark.parametrize("method", ["fedproto", "fd", "fml", "fedavg"])
def test_divergence_is_a_warning_by_client_and_round(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on; its records and its console say who, when and by how much."""
    models = "five-cnns" if method == "fedavg" else SETTINGS["models"]
    settings = {**SETTINGS, "models": models, "num_rounds": 1, "lr": 1e4, "report": True}
    run = run_federation(tmp_path, 2, method=method, **settings)
    assert run.config["status"] == "completed"
    assert diverged(run)[0] == ("1", "0")
    reason = next(r["reason"] for r in run.rows("failures") if r["kind"] == "diverged")
    assert "training diverged: its loss is " in reason
    assert "; lower lr" in reason
    printed = capsys.readouterr().out
    assert "warning: round 1: client 0" in printed
    assert "training diverged" in (run.path / "report.html").read_text()
    assert run.summary["clients_failed"] == len(run.rows("failures"))


def test_a_growth_over_rounds_is_seen_after_a_resume(tmp_path: Path) -> None:
    """The first loss of the run is in the client's private state: a fresh process has it."""
    settings = {**SETTINGS, "method": "local", "models": "five-cnns", "optimizer": "sgd"}
    run_federation(tmp_path, 2, num_rounds=1, lr=0.01, **settings)
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"lr": 0.01', '"lr": 100000.0'))
    run = run_federation(tmp_path, 2, num_rounds=2, resume="run", lr=1e5, **settings)
    assert diverged(run) == [("2", "0"), ("2", "1")]
    for row, loss in zip(
        run.metrics(metric="loss_growth"), run.metrics(metric="loss", round=2), strict=True
    ):
        first = float(loss["value"]) / float(row["value"])
        assert 2.0 < first < 3.0  # about log 10, of an untrained model


@pytest.mark.parametrize("method", ["fedgen", "fedallrep"])
def test_the_servers_own_training_is_watched(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server_lr = {f"{method}__server_lr": 1e4}
    run = run_federation(tmp_path, 2, method=method, **SETTINGS, **server_lr)
    assert ("1", "") in diverged(run) or ("2", "") in diverged(run)
    assert "the server" in capsys.readouterr().out
    reasons = [r["reason"] for r in run.rows("failures") if r["client"] == ""]
    assert all("the server's loss is " in text for text in reasons)
    keys = f"; lower {method}.server-lr or lr"
    keys += ", or set fedallrep.reduction='stable'" * (method == "fedallrep")
    assert all(text.endswith(keys) for text in reasons)


def test_the_servers_first_loss_is_that_of_the_run(tmp_path: Path) -> None:
    """It is read back from the records, so that a resumed run compares with the same one."""

    def look(watch: DivergenceWatch, number: int, loss: float) -> list[str]:
        result = RoundResult(number, [0], server_metrics={"server_loss": loss})
        return [failure.reason for failure in watch.look(result, 10)]

    path = tmp_path / "metrics.csv"
    path.write_text("round,client,phase,metric,value,examples\n")
    watch = DivergenceWatch(path, parse_run_config({"method": "fedre"}))
    watch.begin()
    assert look(watch, 1, 50.0) == []
    assert look(watch, 2, 49_000.0) == []
    with path.open("a") as file:
        file.write(
            "1,server,aggregate,server_loss,50.0,1\n2,server,aggregate,server_loss,49000,1\n"
        )
    again = DivergenceWatch(path, parse_run_config({"method": "fedre"}))
    again.begin()
    assert look(again, 3, 49_000.0) == []
    (reason,) = look(again, 4, 60_000.0)
    assert "the server's loss is 6e+04, 1.2e+03 times the 50 of the start" in reason


def test_a_run_without_divergence_says_nothing(tmp_path: Path) -> None:
    run = run_federation(tmp_path, 2, method="fedtgp", **SETTINGS)
    assert run.rows("failures") == []
    assert run.metrics(metric="loss_growth") == []


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"method": "fedavg"}, "lower lr"),
        ({"method": "fedgh"}, "lower fedgh.server-lr or lr"),
        ({"method": "fedre", "fedre.reduction": "stable"}, "lower fedre.server-lr or lr"),
    ],
)
def test_only_keys_that_the_method_has_are_named(keys: dict[str, Any], said: str) -> None:
    assert smaller_steps(parse_run_config(keys)) == said


def test_keys_of_a_method_in_a_package_go_by_its_own_name() -> None:
    run = dataclasses.replace(parse_run_config({"method": "fedre"}), method="my_package.fedre")
    assert smaller_steps(run) == "lower fedre.server-lr or lr, or set fedre.reduction='stable'"


def test_a_server_whose_steps_raise_its_loss_is_named_once(tmp_path: Path) -> None:
    """In three rounds of five; rounds in which it did not train do not count, nor is it said again
    by a resumed run, which reads what was from the records."""

    def said(watch: ServerStepWatch, number: int, before: float, after: float) -> str | None:
        losses = {"server_loss_before": before, "server_loss_after": after}
        return watch.look(RoundResult(number, [0], server_metrics=losses))

    path = tmp_path / "metrics.csv"
    path.write_text("round,client,phase,metric,value,examples\n")
    rows = [(1.0, 0.9), (0.83, 1.22), (1.0, 1.1), (1.0, 1.0), (1.0, 0.5), (0.8, 1.5), (1.0, 2.0)]
    watch = ServerStepWatch(path, parse_run_config({"method": "fedre"}))
    watch.begin()
    assert watch.look(RoundResult(1, [0])) is None
    told = [said(watch, number, *pair) for number, pair in enumerate(rows, start=1)]
    assert [text is None for text in told] == [True] * 5 + [False, True]
    assert "round 6: fedre: the server's training raised its own loss in 3 of its last 5" in told[5]
    assert told[5].endswith("lower fedre.server-lr or lr, or set fedre.reduction='stable'")
    for finished in (5, 6):
        with path.open("w") as file:
            file.write("round,client,phase,metric,value,examples\n")
            for number, (before, after) in enumerate(rows[:finished], start=1):
                file.write(f"{number},server,aggregate,server_loss_after,{after},1\n")
                file.write(f"{number},server,aggregate,server_loss_before,{before},1\n")
        resumed = ServerStepWatch(path, parse_run_config({"method": "fedre"}))
        resumed.begin()
        assert (said(resumed, finished + 1, *rows[finished]) is None) == (finished == 6)
