"""Runs as data frames, the list of runs, and what `wildflower clean` deletes."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

import wildflower
from deploy.cli import main
from deploy.contract.runs import TINY
from server_app.records.run_directory import lock_run
from strategies.base.options import ConfigError
from tests.support import Outcome, run_federation
from tests.unit.test_compare import REPOSITORY, content, plan_of, write_run

PAGE = REPOSITORY / "deploy" / "notebook.md"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    place = tmp_path_factory.mktemp("runs")
    return run_federation(place, 2, **TINY, method="local", num_rounds=2)


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """A comparison of four runs, of which three are complete."""
    file = tmp_path / "comparison.yaml"
    file.write_text(yaml.safe_dump(content(tmp_path)))
    for number, run in enumerate(plan_of(tmp_path).runs[:3]):
        write_run(run, [0.5, 0.5, 0.6 + number / 10])
    return file


def test_frames_hold_what_the_files_do(finished: Outcome) -> None:
    run = wildflower.load_run(finished.path)
    assert (run.name, run.status, run.settings["method"]) == ("run", "completed", "local")
    assert run.summary == finished.summary
    assert len(run.metrics) == len(finished.rows("metrics")) - len(run.server_metrics)
    assert list(run.metrics.columns) == [
        "round", "client", "phase", "metric", "value", "examples",
    ]  # fmt: skip
    for row in finished.metrics(metric="accuracy", client="1"):
        own = run.metrics.query(f"client == 1 and metric == 'accuracy' and round == {row['round']}")
        assert float(row["value"]) in set(own["value"])
    assert run.clients.loc[1, "model"] == "cnn4"
    assert run.clients["train_examples"].sum() == sum(
        int(row["train_examples"]) for row in finished.rows("clients")
    )
    assert list(run.rounds["round"]) == [1, 2]
    assert run.traffic["bytes"].sum() == sum(int(r["bytes"]) for r in finished.rows("traffic"))
    with pytest.raises(FileNotFoundError, match="there is no run here"):
        wildflower.load_run(finished.path.parent)


def test_a_comparison_is_one_table(comparison: Path, tmp_path: Path) -> None:
    found = wildflower.load_comparison(comparison)
    assert list(found.table["complete"]) == [True, True, True, False]
    assert list(found.table["final"])[:3] == [0.6, 0.7, 0.8]
    assert list(found.table["method"]) == ["local", "fedre"] * 2
    assert found.table["seed"].tolist() == [0, 0, 1, 1]
    assert set(found.metrics["run"]) == set(found.runs)
    assert list(found.rounds.groupby("run").size()) == [3, 3, 3]
    comparison.write_text(yaml.safe_dump(content(tmp_path, name="other")))
    with pytest.raises(ConfigError, match="none of its runs is complete"):
        wildflower.load_comparison(comparison)


def test_the_page_in_the_documents_runs(
    finished: Outcome, comparison: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib").use("agg")
    code = "".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    monkeypatch.chdir(comparison.parent)
    exec(code.replace("~/wildflower/RUN-NAME", str(finished.path)), {})
    assert (comparison.parent / "accuracy.png").stat().st_size > 1000


def make_run(place: Path, status: str, hours: int = 1) -> Path:
    """Make a run directory with states of 3 MB."""
    started = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
    info = {"run_name": place.name, "status": status, "started": started}
    info["config"] = {"method": "fedre", "dataset": "digits", "run-name": place.name}  # type: ignore[assignment]
    (place / "clients" / "0").mkdir(parents=True)
    (place / "clients" / "0" / "round-00001.safetensors").write_bytes(bytes(2_000_000))
    (place / "checkpoints").mkdir()
    (place / "checkpoints" / "round-00001.safetensors").write_bytes(bytes(1_000_000))
    (place / "config.json").write_text(json.dumps(info))
    summary = {"rounds": 4, "scores": {"classification": {"metric": "accuracy", "final": 0.9}}}
    if status == "completed":
        (place / "summary.json").write_text(json.dumps(summary))
    return place


def test_runs_are_listed_with_the_newest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "old", "completed", hours=24 * 5)
    make_run(tmp_path / "cut", "running", hours=3)
    (make_run(tmp_path / "bad", "failed") / "config.json").write_text("{")
    (tmp_path / "logs").mkdir()
    assert main(["runs", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["cut", "interrupted", "fedre", "digits", "3", "h"]
    assert lines[2][:6] == ["old", "completed", "fedre", "digits", "4", "accuracy"]
    assert lines[2][6:] == ["90.00", "%", "5", "d"]
    assert lines[3] == ["bad", "damaged", "unknown"]
    assert main(["runs", str(tmp_path / "logs")]) == 2


def test_clean_asks_and_deletes_states_of_completed_runs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, cut, used = (
        make_run(tmp_path / name, status)
        for name, status in (("done", "completed"), ("cut", "failed"), ("used", "completed"))
    )
    lock = lock_run(used)  # it is being resumed
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))  # no terminal: nobody is asked
    assert main(["clean", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "3.0 MB  done" in said
    assert "of 1 completed runs take 3.0 MB" in said
    assert (done / "checkpoints").is_dir()
    assert main(["clean", str(tmp_path), "--yes"]) == 0
    assert "3.0 MB were freed" in capsys.readouterr().out
    lock.release()
    assert sorted(path.name for path in done.iterdir()) == [
        "config.json", "run.lock", "summary.json",
    ]  # fmt: skip
    assert all((run / "clients" / "0").is_dir() for run in (cut, used))
    assert main(["clean", str(done)]) == 0
    assert "no completed run" in capsys.readouterr().out


def test_a_cleaned_run_is_not_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without checkpoints it would begin with round 1, and lose its records."""
    run = run_federation(tmp_path, 2, **TINY, method="local", num_rounds=1)
    before = run.text("metrics.csv")
    assert main(["clean", str(run.path), "--yes"]) == 0
    with pytest.raises(ConfigError, match="`wildflower clean` deleted"):
        run_federation(tmp_path, 2, **TINY, method="local", num_rounds=2, resume="run")
    assert run.text("metrics.csv") == before
    assert wildflower.load_run(run.path).status == "completed"


def test_a_run_may_keep_no_states(tmp_path: Path) -> None:
    config = {**TINY, "method": "local", "num_rounds": 2}
    whole = run_federation(tmp_path / "whole", 2, **config)
    run = run_federation(tmp_path / "bare", 2, **config, keep_states=False)
    assert run.config["status"] == "completed"
    assert not {"clients", "checkpoints"} & {path.name for path in run.path.iterdir()}
    assert {"clients", "checkpoints"} <= {path.name for path in whole.path.iterdir()}
    assert run.text("metrics.csv") == whole.text("metrics.csv")
    with pytest.raises(ConfigError, match="or the run did"):
        run_federation(tmp_path / "bare", 2, **{**config, "num_rounds": 3}, resume="run")
