"""Trackers: what they hold is what the records hold, through a resume; none can end a run."""

from __future__ import annotations

import importlib
import json
import struct
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.contract.runs import TINY
from server_app.records.recorder import Recorder
from server_app.tracking import tracking, worker
from server_app.tracking.base import Point, missing_tracker
from server_app.tracking.points import RecordFollower
from strategies.base.options import ConfigError
from strategies.base.run_config import TRACKERS, RunConfig
from tests.support import Outcome, run_federation
from tests.unit.task_runs import MIXED, metrics_of, write_clients
from tests.unit.task_runs import a_round as a_mixed_round
from tests.unit.test_recorder import a_round, closing

Series = dict[str, dict[int, list[float]]]
INSTALLED = [name for name in TRACKERS if missing_tracker([name]) is None]
QUICK: dict[str, Any] = {**TINY, "method": "local", "evaluate_when": "pre"}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run of two rounds that was resumed for a third, in every tracker that is installed."""
    place = tmp_path_factory.mktemp("tracked")
    names = ", ".join(INSTALLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "FINISH_WAIT", 120.0)
        for variable in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY"):
            patch.delenv(variable, raising=False)
        patch.setenv("WANDB_MODE", "offline")
        shown = {**QUICK, "tracker": names, "report": True}
        run_federation(place, 2, **shown, num_rounds=2)
        return run_federation(place, 2, **shown, num_rounds=3, resume="run")


def recorded(run: Outcome) -> Series:
    found: Series = defaultdict(dict)
    for row in run.metrics(phase="train") + run.metrics(phase="pre"):
        name = f"{row['phase']}/{row['metric']}/client-{row['client']}"
        found[name][int(row["round"])] = [float(row["value"])]
    return found


def check(shown: Series, run: Outcome, *, exact: bool = True) -> None:
    """Every series by client has each round once, with the value that metrics.csv has."""
    by_client = recorded(run)
    assert {"pre/accuracy/client-0", "train/loss/client-1"} <= set(by_client)
    for name, values in by_client.items():
        about = {n: pytest.approx(v, rel=0 if exact else 1e-6) for n, v in values.items()}
        assert shown[name] == about, name
    assert set(shown["pre/accuracy/mean"]) == {1, 2, 3}
    assert set(shown["time/seconds"]) == {1, 2, 3}
    assert set(shown["final/accuracy/mean"]) >= {3}


def test_tensorboard_holds_the_records(tracked: Outcome) -> None:
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(tracked.path / "tensorboard"))
    found.Reload()
    tags = found.Tags()
    shown = {
        tag: {e.step: [e.value for e in found.Scalars(tag) if e.step == step.step]
              for e in found.Scalars(tag) for step in [e]}
        for tag in tags["scalars"]
    }  # fmt: skip
    check(shown, tracked, exact=False)
    text = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"method": "local"' in text
    assert "report.html" in str(found.Tensors("report/text_summary")[-1].tensor_proto)


def test_mlflow_goes_on_with_one_run(tracked: Outcome) -> None:
    pytest.importorskip("mlflow")
    client = importlib.import_module("mlflow.tracking").MlflowClient(
        (tracked.path.parent / ".mlflow").as_uri()
    )
    experiment = client.get_experiment_by_name("wildflower").experiment_id
    (run,) = client.search_runs([experiment])
    shown: Series = defaultdict(lambda: defaultdict(list))
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            shown[name][metric.step].append(metric.value)
    check(shown, tracked)
    assert run.info.status == "FINISHED"
    assert (run.data.params["num-rounds"], run.data.tags["resumed.num-rounds"]) == ("2", "3")
    assert "report.html" in {file.path for file in client.list_artifacts(run.info.run_id)}
    final = tracked.summary["accuracy"]["final"]
    assert run.data.metrics["summary/accuracy/final"] == final


def test_wandb_goes_on_with_one_run_offline(tracked: Outcome) -> None:
    pytest.importorskip("wandb")
    files = sorted((tracked.path / "wandb").glob("offline-run-*/*.wandb"))
    assert [file.stem for file in files] == [f"run-{tracked.config['token']}"] * 2
    shown: Series = defaultdict(lambda: defaultdict(list))
    artifacts = []
    for file in files:
        for record in records_of(file):
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                for name, value in items.items():
                    shown[name][items["round"]].append(value)
            text = str(record)
            artifacts += ["report.html"] * ("report.html" in text and "artifact" in text)
    check(shown, tracked)
    assert artifacts


def records_of(file: Path) -> list[Any]:
    """Read a log in blocks of 32 KiB, of chunks with checksum, size and kind (first, last, ...)."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content, place, found, whole = file.read_bytes(), 7, [], b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:  # no header fits: zeros up to the next block
            place += left
            continue
        size, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # all of a record, or its last chunk
            found.append(messages.Record.FromString(whole))
            whole = b""
    return found


def test_series_of_means_traffic_and_time(tmp_path: Path) -> None:
    recorder, follower = Recorder(tmp_path), RecordFollower(tmp_path)
    recorder.begin(0)
    recorder.add(a_round(1))
    found = {point.series: point.value for point in follower.new_points()}
    assert found["pre/accuracy/mean"] == (0.5 * 10 + 1.0 * 30) / 40
    assert found["traffic/train/uplink-bytes"] == 2100 + 2101
    assert found["traffic/train/downlink-scalars"] == 2 * 5130
    assert found["time/seconds"] == 2.0
    assert found["aggregate/server_loss"] == 1 / 3
    recorder.add(closing(1), closing=True)
    later = follower.new_points()
    assert {point.round for point in later} == {1}
    assert not {point.series for point in later} & set(found), "rows are read once"


def test_means_are_taken_within_a_task(tmp_path: Path) -> None:
    write_clients(tmp_path, MIXED)
    recorder, follower = Recorder(tmp_path), RecordFollower(tmp_path)
    recorder.begin(0)
    metrics = metrics_of(MIXED)
    recorder.add(a_mixed_round(1, metrics, dict.fromkeys(range(len(MIXED)), 0.5)))
    means = {p.series for p in follower.new_points() if "/mean" in p.series}
    assert {"post/accuracy/mean-of-classification", "train/loss/mean-of-multilabel"} <= means
    assert all("/mean-of-" in name for name in means)


class Memory:
    """A tracker that keeps what it is given."""

    place = "memory"

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.end: tuple[str, Mapping[str, float], Sequence[Path]] | None = None

    def write(self, points: Sequence[Point]) -> None:
        self.points += points

    def finish(self, status: str, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        self.end = status, summary, files


def follow(directory: Path, rounds: range, status: str = "completed") -> None:
    """Record rounds, with a tracker, as a server does that starts after `rounds.start - 1`."""
    recorder, done = Recorder(directory), rounds.start - 1
    recorder.begin(done)
    shown = tracking.Tracking(("tensorboard",), directory)
    shown.begin({"token": "abc", "config": {"seed": 0}}, done)
    for number in rounds:
        recorder.add(a_round(number))
        shown.follow()
    shown.finish(status)


def test_one_that_was_away_is_filled_up_from_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "open_tracker", broken)
    follow(tmp_path, range(1, 3))
    said = capsys.readouterr().out
    assert (
        said.count("tracker tensorboard is not written any more, the run goes on (OSError: no") == 1
    )
    memory = Memory()
    monkeypatch.setattr(worker, "open_tracker", lambda name, run: memory)
    follow(tmp_path, range(3, 4))
    follow(tmp_path, range(2, 4), "interrupted")  # back to round 1: 2 and 3 are made again
    rounds = [point.round for point in memory.points if point.series == "time/seconds"]
    assert rounds == [1, 2, 3, 2, 3]
    assert memory.end is not None
    assert memory.end[0] == "interrupted"


def broken(name: str, run: Any) -> Any:
    raise OSError("no route")


def test_a_run_with_a_tracker_that_fails_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "open_tracker", broken)
    run = run_federation(tmp_path, 2, **QUICK, num_rounds=1, tracker="tensorboard")
    assert run.config["status"] == "completed"
    assert "warning: tracker tensorboard" in capsys.readouterr().out


def test_one_that_hangs_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = threading.Event()
    hanging = SimpleNamespace(place="nowhere", write=lambda points: held.wait(60))
    monkeypatch.setattr(worker, "open_tracker", lambda name, run: hanging)
    monkeypatch.setattr(worker, "LONGEST_QUEUE", 3)
    monkeypatch.setattr(tracking, "FINISH_WAIT", 0.1)
    follow(tmp_path / "short", range(1, 2))
    assert "was not ready 0 s after" in capsys.readouterr().out
    follow(tmp_path / "long", range(1, 9))
    assert "3 rounds behind" in capsys.readouterr().out
    held.set()


def test_unknown_and_missing_trackers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord'.*did you mean tensorboard"):
        RunConfig(tracker="tensorbord")
    with pytest.raises(ConfigError, match="each once"):
        RunConfig(tracker="mlflow, mlflow")
    monkeypatch.setattr("server_app.tracking.base.is_installed", lambda name: False)
    with pytest.raises(ConfigError, match=r"pip install 'wildflower\[wandb\]'"):
        run_federation(tmp_path, 2, **QUICK, tracker="wandb")
    assert not list(tmp_path.iterdir())
