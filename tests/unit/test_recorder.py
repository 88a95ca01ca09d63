"""The records: exact rows, cut back on resume, and robust against a killed process."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_app.records.client_tasks import TaskScore
from server_app.records.csv_files import HEADERS, read_rows
from server_app.records.recorder import Recorder
from server_app.records.round_result import Failure, RoundResult, Traffic
from server_app.records.scores import weighted_mean
from strategies.base.messages import MetricRow
from strategies.base.state import StateError
from tests.unit.task_runs import MIXED, metrics_of, write_clients
from tests.unit.task_runs import a_round as a_mixed_round


def a_round(number: int, *, accuracies: tuple[float, ...] = (0.5, 1.0)) -> RoundResult:
    """Client 0 and 1 evaluate before training on 10 and 30 examples; replies came 1 first."""
    result = RoundResult(number, [1, 0])
    for client in reversed(range(len(accuracies))):
        result.rows += [
            (client, MetricRow("train", "loss", 2.0 + client, 40)),
            (client, MetricRow("pre", "validation_accuracy", accuracies[client] / 2, 4)),
            (client, MetricRow("pre", "accuracy", accuracies[client], 10 + 20 * client)),
        ]
    result.traffic = [
        Traffic(1, "uplink", 512, 2100, "train"),
        Traffic(0, "downlink", 5130, 20600, "train"),
        Traffic(1, "downlink", 5130, 20600, "train"),
        Traffic(0, "uplink", 512, 2101, "train"),
    ]
    result.server_metrics = {"server_loss": 1 / 3}
    result.compute_s, result.seconds, result.workers = 1.5, 2.0, {"a", "b"}
    return result


def closing(number: int) -> RoundResult:
    result = RoundResult(number, [])
    result.rows = [(0, MetricRow("final", "accuracy", 0.75, 10))]
    result.traffic = [Traffic(0, "uplink", 0, 100, "evaluate")]
    result.failures = [Failure(1, "evaluate", "gone")]
    result.compute_s, result.seconds, result.workers = 0.5, 1.0, {"a"}
    return result


def recorded(directory: Path) -> Recorder:
    recorder = Recorder(directory)
    recorder.begin(0)
    recorder.add(a_round(1))
    recorder.add(a_round(2, accuracies=(0.25, 0.5)))
    problems = [(5, 'node said "no", twice'), (None, "x")]
    recorder.add_failures(2, [Failure(client, "registration", text) for client, text in problems])
    recorder.add(closing(2), closing=True)
    return recorder


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_rows_are_exact_and_in_a_fixed_order(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    # (0.5 * 10 + 1.0 * 30) / 40
    assert recorder.add(a_round(1)) == (0.875, 2)
    assert lines(tmp_path / "metrics.csv") == [
        "round,client,phase,metric,value,examples",
        "1,0,train,loss,2.0,40",
        "1,1,train,loss,3.0,40",
        "1,0,pre,accuracy,0.5,10",
        "1,0,pre,validation_accuracy,0.25,4",
        "1,1,pre,accuracy,1.0,30",
        "1,1,pre,validation_accuracy,0.5,4",
        "1,server,aggregate,server_loss,0.3333333333333333,2",
    ]
    assert lines(tmp_path / "traffic.csv") == [
        "round,client,direction,messages,scalars,bytes,purpose",
        "1,0,downlink,1,5130,20600,train",
        "1,1,downlink,1,5130,20600,train",
        "1,0,uplink,1,512,2101,train",
        "1,1,uplink,1,512,2100,train",
    ]
    assert lines(tmp_path / "rounds.csv") == [
        ",".join(HEADERS["rounds.csv"]),
        "1,2.0000,1.5000,2,0,2,0.875,0.375,2,False",
    ]
    assert lines(tmp_path / "failures.csv") == ["round,client,kind,reason"]
    assert recorder.accuracy == {0: 0.5, 1: 1.0}


def test_a_round_without_evaluation_has_no_number(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    result = RoundResult(1, [0], rows=[(0, MetricRow("train", "loss", 1.0, 5))])
    result.failures = [Failure(2, "train", "boom"), Failure(3, "skipped", "no training examples")]
    assert recorder.add(result) == (None, 0)
    assert lines(tmp_path / "rounds.csv")[1] == "1,0.0000,0.0000,1,1,0,,,0,False"
    assert lines(tmp_path / "failures.csv")[1:] == [
        "1,2,train,boom", "1,3,skipped,no training examples"
    ]  # fmt: skip
    assert recorder.accuracy == {}


def test_the_closing_evaluation_is_marked(tmp_path: Path) -> None:
    recorder = recorded(tmp_path)
    assert lines(tmp_path / "rounds.csv")[-1] == "2,1.0000,0.5000,0,1,1,0.75,,1,True"
    assert lines(tmp_path / "traffic.csv")[-1] == "2,0,uplink,1,0,100,closing"
    assert lines(tmp_path / "failures.csv")[1:] == [
        '2,5,registration,"node said ""no"", twice"', "2,,registration,x", "2,1,closing,gone"
    ]  # fmt: skip
    assert recorder.accuracy == {0: 0.75, 1: 0.5}


def test_beginning_again_keeps_finished_rounds_and_drops_the_closing(tmp_path: Path) -> None:
    recorded(tmp_path)
    whole = {name: lines(tmp_path / name) for name in HEADERS}
    again = Recorder(tmp_path)
    again.begin(2)
    assert lines(tmp_path / "metrics.csv") == whole["metrics.csv"][:-1]
    assert lines(tmp_path / "rounds.csv") == whole["rounds.csv"][:-1]
    assert lines(tmp_path / "traffic.csv") == whole["traffic.csv"][:-1]
    assert lines(tmp_path / "failures.csv") == whole["failures.csv"][:-1]
    assert again.accuracy == {0: 0.25, 1: 0.5}
    again.begin(1)
    assert {r["round"] for r in read_rows(tmp_path / "metrics.csv")} == {"1"}
    assert read_rows(tmp_path / "failures.csv") == []
    again.begin(0)
    assert [read_rows(tmp_path / name) for name in HEADERS] == [[], [], [], []]


def test_a_resumed_run_leaves_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    recorded(tmp_path / "a")
    recorder = Recorder(tmp_path / "b")
    recorder.begin(0)
    recorder.add(a_round(1))
    recorder.add(a_round(2))  # this round's checkpoint was never written
    recorder = Recorder(tmp_path / "b")
    recorder.begin(1)
    recorder.add(a_round(2, accuracies=(0.25, 0.5)))
    recorder.add(closing(2), closing=True)
    for name in ("metrics.csv", "traffic.csv", "rounds.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("cut", range(1, 27))
def test_an_unfinished_last_line_is_dropped(cut: int, tmp_path: Path) -> None:
    """Also where the cut leaves something that looks like a row: 30 examples become 3."""
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    recorder.add(a_round(1))
    path = tmp_path / "metrics.csv"
    last = b"2,1,pre,accuracy,0.75,300\r\n"
    path.write_bytes(path.read_bytes() + last[:-cut])
    assert len(read_rows(path)) == 7
    Recorder(tmp_path).begin(1)
    assert len(lines(path)) == 8


def test_a_cut_through_a_character_is_survived(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    reasons = ["Datei fehlt", "Gerät läuft heiß"]
    recorder.add_failures(1, [Failure(i, "train", text) for i, text in enumerate(reasons)])
    path = tmp_path / "failures.csv"
    path.write_bytes(path.read_bytes()[: -len("ß\r\n".encode()) + 1])
    assert [row["reason"] for row in read_rows(path)] == ["Datei fehlt"]
    Recorder(tmp_path).begin(0)


def test_a_round_that_is_not_recorded_is_not_resumed_after(tmp_path: Path) -> None:
    """A checkpoint is on the disk after its records; if they lack a round, something is wrong."""
    Recorder(tmp_path).begin(0)
    with pytest.raises(StateError, match="round 1 is not recorded"):
        Recorder(tmp_path).begin(2)


def test_reasons_with_line_breaks_come_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    recorder.add_failures(1, [Failure(0, "train", 'two\nlines, "quoted"')])
    assert read_rows(tmp_path / "failures.csv")[0]["reason"] == 'two\nlines, "quoted"'


def test_values_come_back_as_the_same_float(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    values = [0.1, 1 / 3, 1e-300, 12345678.9, 0.0]
    result = RoundResult(1, [0])
    result.rows = [(i, MetricRow("train", "loss", v, 1)) for i, v in enumerate(values)]
    recorder.add(result)
    assert [float(row["value"]) for row in read_rows(tmp_path / "metrics.csv")] == values


def test_means_are_weighted() -> None:
    assert weighted_mean([(0.5, 10), (1.0, 30)]) == 0.875
    assert weighted_mean([(0.5, 0), (1.0, 3)]) == 1.0
    assert weighted_mean([(0.5, 0)]) is None
    assert weighted_mean([]) is None


def test_a_client_is_remembered_by_the_metric_of_its_task(tmp_path: Path) -> None:
    """Client 0's accuracy is not its main score; client 5, a text client, has one."""
    write_clients(tmp_path, MIXED)
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    tests = {0: 0.25, 1: 0.75, 2: 0.5, 3: 1.0, 4: 0.125, 5: 0.25}
    result = a_mixed_round(
        1, metrics_of(MIXED), tests, validations={0: 0.5, 2: 0.75}, examples={1: 30}
    )
    result.rows.append((0, MetricRow("post", "accuracy", 0.99, 10)))
    # Accuracy: (0.5 + 1.0 + 0.25) / 3 over clients 2, 3 and 5.
    assert recorder.add(result) == (pytest.approx(1.75 / 3), 6)
    assert recorder.accuracy == tests
    assert recorder.latest == [
        TaskScore("multilabel", "map", 0.625, 2),  # (0.25 * 10 + 0.75 * 30) / 40
        TaskScore("classification", "accuracy", 0.75, 2),
        TaskScore("segmentation", "miou", 0.125, 1),
        TaskScore("text", "accuracy", 0.25, 1),
    ]
    row = read_rows(tmp_path / "rounds.csv")[0]
    assert float(row["accuracy"]) == pytest.approx(1.75 / 3)
    assert (row["validation_accuracy"], row["evaluated"]) == ("0.75", "6")
    again = Recorder(tmp_path)
    again.begin(1)
    assert again.accuracy == tests


def test_validation_chooses_the_best_so_far_and_the_test_score_is_said(tmp_path: Path) -> None:
    """Round 2 is best by test scores, round 1 by validation scores; round 3 equals round 1."""
    write_clients(tmp_path, ["classification"])
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    found = []
    for number, (test, validation) in enumerate([(0.4, 0.9), (0.8, 0.5), (0.6, 0.9)], 1):
        result = RoundResult(number, [0])
        result.rows = [
            (0, MetricRow("pre", "accuracy", test, 10)),
            (0, MetricRow("pre", "validation_accuracy", validation, 4)),
        ]
        recorder.add(result)
        found.append(recorder.best["classification"])
    assert found == [0.4, 0.4, 0.4]
    assert (recorder.accuracy, recorder.validation) == ({0: 0.6}, {0: 0.9})
    again = Recorder(tmp_path)
    again.begin(3)
    assert (again.accuracy, again.validation) == ({0: 0.6}, {0: 0.9})


def test_the_best_mean_of_a_task_leaves_the_closing_out(tmp_path: Path) -> None:
    write_clients(tmp_path, MIXED)
    metrics = metrics_of(MIXED)
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    for number, value in enumerate((0.25, 0.5, 0.375), 1):
        assert recorder.add(a_mixed_round(number, metrics, {0: value})) == (None, 1)
    assert read_rows(tmp_path / "rounds.csv")[0]["accuracy"] == ""
    recorder.add(a_mixed_round(3, metrics, {0: 0.75, 4: 0.5}, phase="final"), closing=True)
    assert recorder.best == {"multilabel": 0.5}
    assert [(score.task, score.mean, score.clients) for score in recorder.latest] == [
        ("multilabel", 0.75, 1), ("classification", None, 0), ("segmentation", 0.5, 1),
        ("text", None, 0),
    ]  # fmt: skip


def test_a_client_that_joined_is_looked_up(tmp_path: Path) -> None:
    write_clients(tmp_path, MIXED[2:3])
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    write_clients(tmp_path, [MIXED[2], MIXED[0]])
    recorder.add(a_mixed_round(1, ["accuracy", "map"], {0: 0.5, 1: 0.25}))
    assert recorder.accuracy == {0: 0.5, 1: 0.25}
    assert [score.task for score in recorder.latest] == ["classification", "multilabel"]


def test_cards_of_a_run_without_tasks_mean_accuracy(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("client,model,data_hash\n1,cnn5,b\n0,cnn5,a\n")
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    assert recorder.add(a_round(1)) == (0.875, 2)
    assert recorder.latest == [TaskScore("classification", "accuracy", 0.875, 2)]


def test_the_messages_of_several_exchanges_become_one_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.begin(0)
    result = a_round(1)
    result.traffic += [
        Traffic(0, "uplink", 8, 100, "train"), Traffic(0, "uplink", 2, 1, "evaluate"),
        Traffic(0, "uplink", 8, 100, "train"), Traffic(0, "downlink", 24, 96, "train"),
    ]  # fmt: skip
    recorder.add(result)
    assert lines(tmp_path / "traffic.csv")[1:] == [
        "1,0,uplink,1,2,1,evaluate",
        "1,0,downlink,2,5154,20696,train",
        "1,1,downlink,1,5130,20600,train",
        "1,0,uplink,3,528,2301,train",
        "1,1,uplink,1,512,2100,train",
    ]
