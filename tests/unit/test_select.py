"""Choosing participants: by client id, from a stream of the run's own, with exact counts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch

from strategies.base.parsing import parse_run_config
from strategies.base.schedule import History, Schedule
from strategies.base.server import ServerContext
from tests.unit.test_roster import a_client_info


def known(clients: list[int], *, empty: tuple[int, ...] = (), **config: Any) -> ServerContext:
    keys = {key.replace("_", "-"): value for key, value in config.items()}
    run = parse_run_config({"method": "local", **keys})
    nothing: dict[str, Any] = {"classes": [], "class_counts": [], "train_examples": 0}
    return ServerContext(
        run, {i: a_client_info(i, **nothing if i in empty else {}) for i in clients}
    )


def chosen(context: ServerContext, server_round: int, available: list[int]) -> list[int]:
    at = dataclasses.replace(context, server_round=server_round)
    return Schedule().select(at, available, History())


@pytest.mark.parametrize(
    ("fraction", "clients", "count"),
    [
        (0.1, 10, 1),  # U28
        (1.0, 10, 10),
        (0.05, 10, 1),
        (0.01, 10, 1),  # at least one
        (0.15, 10, 2),
        (0.25, 10, 3),
        (0.3, 10, 3),
        (1 / 6, 6, 1),  # U25
        (1 / 3, 3, 1),
        (0.4, 5, 2),
        (0.7, 10, 7),
        (0.29, 100, 29),
        (1.0, 1, 1),
    ],
)
def test_counts_are_exact(fraction: float, clients: int, count: int) -> None:
    everyone = list(range(clients))
    context = known(everyone, sample_fraction=fraction)
    for number in range(1, 30):
        picked = chosen(context, number, everyone)
        assert len(picked) == count
        assert picked == sorted(set(picked))
        assert set(picked) <= set(everyone)


def test_a_choice_is_a_function_of_seed_and_round() -> None:
    everyone = list(range(20))
    first = known(everyone, sample_fraction=0.25)
    torch.manual_seed(9)
    rounds = [chosen(first, number, everyone) for number in range(1, 8)]
    assert all(type(i) is int for picked in rounds for i in picked)
    torch.manual_seed(1)
    again = known(everyone[::-1], sample_fraction=0.25)
    # Asked in another order, as by a resumed run, and told of clients in another order.
    assert [chosen(again, n, everyone[::-1]) for n in (5, 2, 7)] == [
        rounds[4],
        rounds[1],
        rounds[6],
    ]
    assert len({tuple(picked) for picked in rounds}) > 1
    other = known(everyone, sample_fraction=0.25, seed=1)
    assert [chosen(other, number, everyone) for number in range(1, 8)] != rounds


def test_ids_need_not_be_a_range() -> None:
    ids = [3, 17, 1000, 4_000_000]
    picked = chosen(known(ids, sample_fraction=0.5), 1, ids)
    assert len(picked) == 2
    assert set(picked) <= set(ids)


def test_who_is_away_is_passed_over_and_the_others_stay() -> None:
    everyone = list(range(10))
    context = known(everyone, sample_fraction=0.4)
    for number in range(1, 20):
        whole = chosen(context, number, everyone)
        for away in everyone:
            rest = [i for i in everyone if i != away]
            picked = chosen(context, number, rest)
            assert len(picked) == 4
            assert away not in picked
            assert set(whole) - {away} <= set(picked)
            if away not in whole:
                assert picked == whole


def test_too_few_present_are_all_chosen() -> None:
    context = known(list(range(10)), sample_fraction=0.5)
    assert chosen(context, 1, [2, 7]) == [2, 7]
    assert chosen(context, 1, []) == []


def test_clients_without_training_examples_are_never_chosen() -> None:
    everyone = list(range(6))
    context = known(everyone, empty=(1, 4), sample_fraction=0.5)
    for number in range(1, 30):
        picked = chosen(context, number, everyone)
        assert len(picked) == 2  # of the four that can train
        assert not {1, 4} & set(picked)
    assert chosen(known(everyone, empty=tuple(everyone)), 1, everyone) == []


def test_everyone_has_the_same_chance() -> None:
    everyone = list(range(10))
    context = known(everyone, sample_fraction=0.3)
    counts = Counter(i for n in range(1, 501) for i in chosen(context, n, everyone))
    assert set(counts) == set(everyone)
    assert all(110 < count < 190 for count in counts.values())  # 150 expected, deviation 10
