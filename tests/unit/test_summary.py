"""summary.json against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_app.records.recorder import Recorder
from server_app.records.round_result import Failure, RoundResult, Traffic
from server_app.records.summary import summarise
from strategies.base.messages import MetricRow
from strategies.base.run_config import RunConfig


def a_round(
    number: int, tests: dict[int, tuple[float, int]], validations: dict[int, float], phase: str
) -> RoundResult:
    result = RoundResult(number, sorted(tests))
    result.rows = [(c, MetricRow(phase, "accuracy", *pair)) for c, pair in tests.items()]
    result.rows += [
        (c, MetricRow(phase, "validation_accuracy", v, 5)) for c, v in validations.items()
    ]
    result.seconds, result.compute_s, result.workers = 2.0 * number, 1.5 * number, {"a", "b"}
    return result


def summary_of(directory: Path, rounds: list[tuple[RoundResult, bool]], clients: int = 3) -> dict:
    recorder = Recorder(directory)
    recorder.begin(0)
    for result, is_closing in rounds:
        recorder.add(result, closing=is_closing)
    return summarise(directory, RunConfig(method="fedre", seed=4), clients)


ROUNDS = [
    ({0: (0.2, 10), 1: (0.6, 30)}, {0: 0.1, 1: 0.2}),
    ({0: (0.9, 10), 1: (0.9, 30)}, {0: 0.3, 1: 0.3}),
    ({0: (0.5, 10), 1: (0.7, 30)}, {0: 0.6, 1: 0.4}),
]


def test_best_is_chosen_by_validation(tmp_path: Path) -> None:
    """U24: round 2 has the best test accuracy, round 3 the best validation accuracy."""
    got = summary_of(
        tmp_path, [(a_round(i, *r, "post"), False) for i, r in enumerate(ROUNDS, start=1)]
    )
    assert (got["method"], got["dataset"], got["clients"], got["rounds"], got["seed"]) == (
        "fedre", "digits", 3, 3, 4
    )  # fmt: skip
    accuracy = got["accuracy"]
    assert accuracy["final"] == pytest.approx(0.65)  # (0.5 * 10 + 0.7 * 30) / 40
    assert accuracy["best"] == pytest.approx(0.65)
    assert (accuracy["best_round"], accuracy["best_phase"]) == (3, "post")
    assert accuracy["best_by"] == "validation"
    assert accuracy["mean_over_clients"] == pytest.approx(0.6)
    assert accuracy["std_over_clients"] == pytest.approx(0.1)
    assert accuracy["worst_client"] == 0.5
    assert accuracy["clients_evaluated"] == 2
    assert (accuracy["model"], accuracy["test_split"]) == ("personal", "personal")


def test_best_is_chosen_by_test_where_there_is_no_validation(tmp_path: Path) -> None:
    got = summary_of(
        tmp_path, [(a_round(i, r[0], {}, "pre"), False) for i, r in enumerate(ROUNDS, start=1)]
    )["accuracy"]
    assert (got["best_round"], got["best_by"]) == (2, "test")
    assert got["best"] == pytest.approx(0.9)
    assert got["final"] == pytest.approx(0.65)


def test_the_first_of_equals_is_best(tmp_path: Path) -> None:
    same = [(a_round(i, {0: (0.5, 10)}, {}, "pre"), False) for i in (1, 2, 3)]
    assert summary_of(tmp_path, same)["accuracy"]["best_round"] == 1


def test_the_closing_evaluation_is_final(tmp_path: Path) -> None:
    got = summary_of(
        tmp_path,
        [(a_round(1, {0: (0.2, 10)}, {}, "pre"), False),
         (a_round(1, {0: (0.8, 10), 1: (0.4, 10)}, {}, "final"), True)],
    )["accuracy"]  # fmt: skip
    assert got["final"] == pytest.approx(0.6)
    assert got["clients_evaluated"] == 2
    assert (got["best_round"], got["best_phase"]) == (1, "final")


def test_nothing_evaluated_is_none_and_not_zero(tmp_path: Path) -> None:
    """U30."""
    got = summary_of(tmp_path, [(a_round(1, {}, {}, "pre"), False)])["accuracy"]
    for key in ("final", "best", "best_round", "mean_over_clients", "std_over_clients",
                "worst_client"):  # fmt: skip
        assert got[key] is None, key
    assert got["clients_evaluated"] == 0


def with_models(directory: Path, models: list[str]) -> None:
    lines = [f"{client},{model}" for client, model in enumerate(models)]
    (directory / "clients.csv").write_text("\n".join(["client,model", *reversed(lines)]) + "\n")


def test_accuracy_by_model_is_weighted_within_and_not_between(tmp_path: Path) -> None:
    """The closing evaluation: (0.8 * 10 + 0.4 * 30) / 40 = 0.5 and 0.9; their mean is 0.7."""
    with_models(tmp_path, ["cnn5", "cnn2", "cnn5", "cnn3"])
    got = summary_of(
        tmp_path,
        [(a_round(1, {0: (0.1, 10), 1: (0.1, 10), 2: (0.1, 30), 3: (0.1, 5)}, {}, "pre"), False),
         (a_round(1, {0: (0.8, 10), 1: (0.9, 10), 2: (0.4, 30)}, {}, "final"), True)],
        clients=4,
    )  # fmt: skip
    assert list(got["accuracy_by_model"]) == ["cnn5", "cnn2"]
    assert got["accuracy_by_model"] == pytest.approx({"cnn5": 0.5, "cnn2": 0.9})
    assert got["accuracy"]["mean_over_models"] == pytest.approx(0.7)
    assert got["accuracy"]["final"] == pytest.approx(0.58)


def test_without_an_evaluation_no_model_has_an_accuracy(tmp_path: Path) -> None:
    with_models(tmp_path, ["cnn5", "cnn2"])
    got = summary_of(tmp_path, [(a_round(1, {}, {}, "pre"), False)])
    assert got["accuracy_by_model"] == {}
    assert got["accuracy"]["mean_over_models"] is None


def test_no_round_at_all(tmp_path: Path) -> None:
    got = summary_of(tmp_path, [])
    assert got["rounds"] == 0
    assert got["time"] == {
        "total_s": 0, "round_s_median": None, "client_compute_s": 0, "efficiency": None
    }  # fmt: skip
    assert got["traffic"]["uplink_scalars_per_round"] == 0


def test_time_and_efficiency(tmp_path: Path) -> None:
    """Rounds of 2, 4 and 6 s and a closing of 2 s, two workers, 1.5 + 3 + 4.5 + 1.5 s of work."""
    rounds = [(a_round(i, {0: (0.5, 1)}, {}, "pre"), False) for i in (1, 2, 3)]
    rounds.append((a_round(1, {0: (0.5, 1)}, {}, "final"), True))
    time = summary_of(tmp_path, rounds)["time"]
    assert time == {
        "total_s": 14.0, "round_s_median": 4.0, "client_compute_s": 10.5, "efficiency": 0.375
    }  # fmt: skip


def test_traffic_counts_the_fullest_round_and_all_bytes(tmp_path: Path) -> None:
    first, second = a_round(1, {}, {}, "pre"), a_round(2, {}, {}, "pre")
    last = a_round(2, {}, {}, "final")
    first.traffic = [
        Traffic(0, "downlink", 100, 500, "train"), Traffic(0, "uplink", 10, 60, "train"),
        Traffic(1, "downlink", 100, 500, "train"), Traffic(1, "uplink", 10, 61, "train"),
        Traffic(2, "downlink", 100, 500, "evaluate"), Traffic(2, "uplink", 0, 20, "evaluate"),
    ]  # fmt: skip
    second.traffic = [
        Traffic(0, "downlink", 100, 500, "train"), Traffic(0, "uplink", 10, 60, "train")
    ]  # fmt: skip
    last.traffic = [Traffic(0, "downlink", 100, 7, "evaluate"), Traffic(0, "uplink", 0, 3, "x")]
    got = summary_of(tmp_path, [(first, False), (second, False), (last, True)])["traffic"]
    assert got == {
        "uplink_scalars_per_round": 20, "downlink_scalars_per_round": 200,
        "uplink_bytes": 181, "downlink_bytes": 1500,
        "evaluation_uplink_bytes": 23, "evaluation_downlink_bytes": 507,
    }  # fmt: skip


def test_clients_without_examples_are_no_failures(tmp_path: Path) -> None:
    result = a_round(1, {0: (0.5, 1)}, {}, "pre")
    result.failures = [
        Failure(1, "skipped", "no training examples"), Failure(2, "train", "boom")
    ]  # fmt: skip
    assert summary_of(tmp_path, [(result, False)])["clients_failed"] == 1
