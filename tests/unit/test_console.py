"""What a run prints."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from server_app.console import (
    clients_table,
    closing_lines,
    data_lines,
    final_table,
    human,
    percent,
    round_scores,
    settings,
    table,
)
from server_app.records.client_tasks import TaskScore
from strategies.base.parsing import default_run_config, parse_run_config
from tests.unit.test_roster import a_client_info


def test_tables_align_numbers_right_and_texts_left() -> None:
    assert table(("name", "n", "x"), [("a", 1, "0.5"), ("long", 1200, "-10.25")]) == "\n".join(
        ["  name     n       x", "  a        1     0.5", "  long  1200  -10.25"]
    )
    assert table(("a", "b"), []) == "  a  b"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8312, "83.12 %"), (0.0, "0.00 %"), (1, "100.00 %"), (None, "not evaluated")],
)
def test_percent(value: float | None, text: str) -> None:
    assert percent(value) == text


def test_what_clients_read_is_said_once_for_those_alike() -> None:
    infos = {i: a_client_info(i, data_notes="left out: 1 file") for i in range(8)}
    assert data_lines(infos) == ["  data of all clients: left out: 1 file"]
    infos[7] = a_client_info(7, data_notes="all read")
    assert data_lines(infos) == [
        "  data of clients 0, 1, 2, 3, 4 and 2 more: left out: 1 file",
        "  data of client 7: all read",
    ]
    many = {i: a_client_info(i, data_notes=str(i)) for i in range(25)}
    assert data_lines(many)[-1] == "  and 5 more, see clients.csv"
    assert data_lines({0: a_client_info(0)}) == []


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (512, "512"), (5120, "5.12k"), (513_000, "513k"), (8_863_080, "8.86M"), (2e9, "2G")],
)
def test_human(number: float, text: str) -> None:
    assert human(number) == text


def test_clients_are_listed_by_id_up_to_a_limit() -> None:
    text = clients_table({i: a_client_info(i) for i in reversed(range(25))})
    rows = text.splitlines()
    assert rows[0].split() == [
        "client", "model", "parameters", "width", "classes", "train", "val", "test", "device"
    ]  # fmt: skip
    assert rows[1].split() == ["0", "cnn5", "10", "500-512", "2", "of", "10", "5", "0", "2", "cpu"]
    assert rows[-1].strip() == "and 5 more, see clients.csv"
    assert len(rows) == 22


def test_the_final_table_says_who_was_not_evaluated() -> None:
    text = final_table({0: a_client_info(0), 1: a_client_info(1)}, {0: 0.5}, {0: 3})
    rows = [row.split() for row in text.splitlines()[1:]]
    assert rows == [
        ["0", "cnn5", "3", "2", "50.00", "%"],
        ["1", "cnn5", "0", "2", "not", "evaluated"],
    ]


def summary(**accuracy: Any) -> dict[str, Any]:
    return {
        "clients": 5,
        "clients_failed": 1,
        "accuracy": {
            "final": 0.5, "best": 0.75, "best_round": 2, "best_by": "validation",
            "clients_evaluated": 4, "model": "personal", "test_split": "global",
            "mean_over_models": 0.25, **accuracy,
        },
        "traffic": {"uplink_scalars_per_round": 5120, "downlink_scalars_per_round": 513_000},
        "time": {"total_s": 12.34},
    }  # fmt: skip


def test_the_last_lines_say_what_a_mean_rests_on() -> None:
    """U27."""
    assert closing_lines(summary()).splitlines() == [
        "final accuracy 50.00 % (4 of 5 clients, personal models, global test split)",
        "best accuracy  75.00 % in round 2, chosen by validation accuracy",
        "a round moves  5.12k scalars up, 513k down",
        "rounds took    12.3 s, client failures: 1",
    ]


def test_the_mean_over_models_is_told_of_global_models() -> None:
    lines = closing_lines(summary(model="global")).splitlines()
    assert lines[1] == "mean of models 25.00 % (every architecture counts alike)"
    assert len(lines) == 5
    never = closing_lines(summary(model="global", mean_over_models=None)).splitlines()
    assert len(never) == 4


def test_the_last_lines_without_an_evaluation() -> None:
    text = closing_lines(
        summary(final=None, best=None, best_round=None, best_by="test", clients_evaluated=0)
    ).splitlines()
    assert text[0].startswith("final accuracy not evaluated (0 of 5 clients")
    assert text[1] == "best accuracy  not evaluated"


# -- several tasks -------------------------------------------------------------------------------


def test_a_rounds_scores_of_one_task_have_the_best_so_far() -> None:
    one = TaskScore("classification", "accuracy", 0.5, 3)
    assert round_scores([one], {"classification": 0.75}) == (
        "accuracy 50.00 % (best 75.00 %, 3 evaluated)"
    )
    maps = TaskScore("multilabel", "map", 0.25, 2)
    assert round_scores([maps], {"multilabel": 0.25}) == "map 25.00 % (best 25.00 %, 2 evaluated)"
    assert round_scores([], {}) == "not evaluated"
    assert round_scores([TaskScore("text", "accuracy", None, 0)], {}) == "not evaluated"


def test_a_rounds_scores_of_several_tasks_stand_side_by_side() -> None:
    latest = [
        TaskScore("multilabel", "map", 0.312, 3),
        TaskScore("classification", "accuracy", 0.451, 3),
    ]
    assert round_scores(latest, {}) == (
        "multilabel map 31.20 % (3)  classification accuracy 45.10 % (3)"
    )
    latest[0] = TaskScore("multilabel", "map", None, 0)
    assert round_scores(latest, {}) == (
        "multilabel map not evaluated (0)  classification accuracy 45.10 % (3)"
    )


def mixed_cards() -> dict[int, Any]:
    return {
        0: dataclasses.replace(a_client_info(0), task="multilabel@scenes", metric="map"),
        1: dataclasses.replace(a_client_info(1), task="classification[0+1]"),
    }


def test_tables_of_several_tasks_name_task_and_metric() -> None:
    rows = [row.split() for row in clients_table(mixed_cards()).splitlines()]
    assert rows[0][:3] == ["client", "task", "model"]
    assert [row[1] for row in rows[1:]] == ["multilabel@scenes", "classification[0+1]"]
    rows = [row.split() for row in final_table(mixed_cards(), {0: 0.5}, {0: 3}).splitlines()]
    assert rows == [
        ["client", "task", "model", "rounds", "trained", "test", "examples", "score"],
        ["0", "multilabel@scenes", "cnn5", "3", "2", "map", "50.00", "%"],
        ["1", "classification[0+1]", "cnn5", "0", "2", "accuracy", "not", "evaluated"],
    ]


def mixed_summary(**changes: Any) -> dict[str, Any]:
    def entry(metric: str, final: float | None, clients: int) -> dict[str, Any]:
        return {"metric": metric, "final": final, "best": final, "best_round": 4,
                "best_by": "validation", "clients": clients}  # fmt: skip

    scores = {"multilabel": entry("map", 0.312, 3), "text": entry("accuracy", None, 1)}
    return summary() | {"scores": scores} | changes


def test_the_last_lines_of_several_tasks_have_no_common_mean() -> None:
    text = closing_lines(mixed_summary()).splitlines()
    assert text[:3] == [
        "final scores of 4 of 5 clients (personal models, global test split), each task by itself:",
        "  multilabel map  31.20 % (3 clients; best 31.20 % in round 4, chosen by validation map)",
        "  text accuracy   not evaluated (1 client; best not evaluated)",
    ]
    assert text[3].startswith("a round moves")
    assert "final accuracy" not in "\n".join(text)


def test_the_last_lines_show_delta_or_why_there_is_none() -> None:
    delta = {
        "against": "alone", "percent": 12.345, "by_task": {"multilabel": 20.0, "text": -3.0},
        "clients_compared": 4, "left_out": {"3": "its score in alone is 0"},
    }  # fmt: skip
    text = closing_lines(mixed_summary(delta=delta, delta_reason=None)).splitlines()
    assert text[3:5] == [
        "delta          +12.35 % against alone (4 of 5 clients; multilabel +20.00 %, text -3.00 %)",
        "  client 3 is not in it: its score in alone is 0",
    ]
    one = summary() | {"delta": delta | {"by_task": {"classification": 12.345}, "left_out": {}}}
    assert closing_lines(one).splitlines()[2] == (
        "delta          +12.35 % against alone (4 of 5 clients)"
    )
    none = closing_lines(summary() | {"delta": None, "delta_reason": "it is gone"}).splitlines()
    assert none[2] == "warning: no delta: it is gone"


def idle(**changed: Any) -> str:
    """Return what a run of fedavg says to be without effect; `flwr run` sends every key."""
    given = {key.replace("_", "-"): value for key, value in changed.items()}
    text = settings(parse_run_config({**default_run_config(), "method": "fedavg", **given}))
    return text.partition("warning: without effect in this run: ")[2]


def test_keys_without_effect_are_said() -> None:
    assert idle(momentum=0.9, optimizer="adamw") == "momentum = 0.9 (optimizer = 'adamw')"
    assert idle(partition="iid", alpha=0.5, min_examples=3) == (
        "alpha = 0.5 (partition = 'iid'), min-examples = 3 (partition = 'iid')"
    )
    assert idle(classes_per_client=3) == "classes-per-client = 3 (partition = 'dirichlet')"
    assert idle(lr_step_rounds=2) == "lr-step-rounds = 2 (lr-schedule = 'constant')"
    assert idle(label_column="kind") == "label-column = 'kind' (dataset = 'digits')"
    assert idle(public_size=9) == "public-size = 9 (method = 'fedavg')"
    assert idle(**{"fedprox.mu": 0.5}) == "fedprox.mu = 0.5 (method = 'fedavg')"


@pytest.mark.parametrize(
    "changed",
    [
        {"momentum": 0.9},
        {"momentum": 0.0, "optimizer": "adam"},
        {"alpha": 0.5, "min_examples": 3},
        {"partition": "pathological", "classes_per_client": 3},
        {"partition": "iid", "size_sigma": 0.5, "min_examples": 3},
        {"lr_schedule": "step", "lr_step_rounds": 2},
        {"method": "cofed", "public_size": 9},
        {"method": "fedprox", "fedprox.mu": 0.5},
        {"tasks": "text@tsv", "label_column": "kind", "models": "text-small"},
    ],
)
def test_keys_with_effect_are_not(changed: dict[str, Any]) -> None:
    assert idle(**changed) == ""
