"""Several attacked runs side by side: rows over seeds, the first able attacker, charts."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from deploy.attack.attack import ATTACK, CONTROLS
from deploy.attack.output import Line
from deploy.attack.side_by_side import Attacked, rows_of, side_by_side, write_side_by_side
from deploy.cli import main
from server_app.records.run_reader import read_run
from tests.support import Outcome, run_federation

pytest.importorskip("skimage", reason="needs the extra attack")

SMALL = {"models": "cnn5", "subset": 0.08, "image_size": 16, "num_rounds": 1, "keep_payloads": 1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """Two seeds of a method that sends vectors, and one of a method that sends weights."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        run_federation(
            folder / name, 2, run_name=name, method=name.partition("-")[0], seed=seed, **SMALL
        )
        for name, seed in (("fedproto-seed0", 0), ("fedproto-seed1", 1), ("fedavg-seed0", 0))
    ]


def lines(attack: float, control: float, error: float = 0.1) -> list[Line]:
    ahead = attack - control
    rest = [Line(name, 1, control, control, 0, ahead, error) for name in CONTROLS]
    return [Line(ATTACK, 1, attack, attack, 0), *rest]


def test_rows_by_hand(runs: list[Outcome]) -> None:
    """Means and deviations over seeds; a row's runs differ in nothing else."""
    first, second, third = (read_run(run.path) for run in runs)
    attacked = [
        Attacked(first, "white-box", 5, lines(11.0, 10.0)),
        Attacked(second, "white-box", 5, lines(13.0, 12.9)),
        Attacked(third, "update", 8, lines(7.0, 9.0)),
    ]
    assert [[run.records.directory.name for run in row] for row in rows_of(attacked)] == [
        ["fedproto-seed0", "fedproto-seed1"], ["fedavg-seed0"],
    ]  # fmt: skip
    table = side_by_side(attacked).splitlines()
    assert "| fedproto | white-box | 2 |" in table[2]
    assert "| 5 | 12.00 ± 1.41 | 12.00 ± 1.41 | 11.45 ± 2.05 |" in table[2]
    assert table[2].endswith("| +0.55 ± 0.64 | 1 of 2 |")  # 0.1 dB is within two errors of 0.1
    assert table[3].endswith("| -2.00 | 0 of 1 |")
    assert [run.beats for run in attacked] == [True, False, False]


def test_runs_of_other_settings_are_other_rows(runs: list[Outcome], tmp_path: Path) -> None:
    other = run_federation(
        tmp_path, 2, run_name="fedproto-seed2", method="fedproto", seed=2, **{**SMALL, "lr": 0.5}
    )
    both = [Attacked(read_run(run.path), "decoder", 5, lines(1, 2)) for run in (runs[0], other)]
    assert len(rows_of(both)) == 2


def test_weights_and_vectors_are_attacked_by_who_can(
    runs: list[Outcome], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(run.path) for run in runs]
    output = tmp_path / "both"
    options = ["--attacker", "white-box,update", "--steps", "2", "--vectors", "4"]
    assert main(["attack", *paths, *options, "--output", str(output)]) == 0
    said = capsys.readouterr().out
    assert f"page: {output}.html" in said
    with output.with_name("both.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 4
    assert {(row["run"], row["attacker"]) for row in rows} == {
        ("fedproto-seed0", "white-box"), ("fedproto-seed1", "white-box"),
        ("fedavg-seed0", "update"),
    }  # fmt: skip
    accuracy = {row["run"]: row["accuracy"] for row in rows}
    for run in runs:
        assert float(accuracy[run.path.name]) == pytest.approx(
            read_run(run.path).summary["accuracy"]["final"], abs=1e-6  # type: ignore[index]
        )  # fmt: skip
    page = output.with_name("both.html").read_text()
    assert page.count("<svg") >= 1
    assert "fedproto: " in page
    assert "http" not in page.replace("http-equiv", "")
    assert output.with_name("both.md").read_text().count("\n| fed") == 2


def test_epsilon_has_a_chart_of_its_own(runs: list[Outcome], tmp_path: Path) -> None:
    records = [read_run(run.path) for run in runs[:2]]
    for record, epsilon in zip(records, (10.0, 20.0), strict=True):
        assert record.summary is not None
        record.summary["privacy"] = {"epsilon": epsilon}
    write_side_by_side(tmp_path / "p", [Attacked(r, "decoder", 5, lines(9, 8)) for r in records])
    page = (tmp_path / "p.html").read_text()
    assert "Accuracy against epsilon of the run" in page
    assert "| 15 ± 7.07 |" in (tmp_path / "p.md").read_text()


def test_a_run_without_a_score_has_no_dot(runs: list[Outcome], tmp_path: Path) -> None:
    record = read_run(runs[0].path)
    bare = dataclasses.replace(record, metrics=record.metrics.iloc[:0])
    write_side_by_side(tmp_path / "p", [Attacked(bare, "decoder", 5, lines(9, 8))])
    assert "<svg" not in (tmp_path / "p.html").read_text().split("<h1>")[1]


def test_a_wrong_option_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for option, given, said in (
        ("--attacker", "decoder,oracle", "there is no attacker 'oracle', but white-box, decoder"),
        ("--attacker", "membership,update", "membership seeks no images and stands alone"),
        ("--tv-weight", "smooth", "'smooth': expected a finite number from 0 on"),
        ("--tv-weight", "inf", "'inf': expected a finite number from 0 on"),
    ):
        with pytest.raises(SystemExit):
            main(["attack", str(tmp_path), option, given])
        assert said in capsys.readouterr().err
