"""CoFED: votes, agreement by class name, and what a user does with the labels it gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from strategies.base.messages import ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.cofed import (
    Client,
    Uplink,
    agree,
    class_keys,
    confident_labels,
    without_ambiguous,
)
from tests.support import ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info
from tests.unit.test_training import a_context

CAT, DOG, FOX = class_keys(["cat", "dog", "fox"]).tolist()


def votes(keys: list[int], pairs: list[tuple[int, int]]) -> Uplink:
    items, classes = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    return Uplink(np.array(keys), items, classes)


def test_a_vote_needs_the_margin() -> None:
    shares = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    rows, classes = confident_labels(shares, 0.3, several=False)
    assert (rows.tolist(), classes.tolist()) == ([0, 2], [0, 2])
    # For independent classes p - (1 - p) >= 0.3 is p >= 0.65, any number of them.
    rows, classes = confident_labels(torch.tensor([[0.7, 0.66], [0.64, 0.1]]), 0.3, several=True)
    assert (rows.tolist(), classes.tolist()) == ([0, 0], [0, 1])


def test_agreement_counts_users_that_know_the_class() -> None:
    """Item 0: both of two knowing users say cat. Item 1: one of three knowing dog is 1/3 > 0.3.
    Item 2: fox is known by one user, who says so: 1."""
    uplinks = {
        0: votes([CAT, DOG], [(0, 0), (1, 1)]),
        1: votes([DOG, CAT], [(0, 1), (3, 0)]),
        2: votes([DOG, FOX], [(2, 1), (3, 0), (3, 0)]),
    }
    expected = {(0, CAT), (1, DOG), (2, FOX), (3, DOG)}
    assert agree(uplinks, 0.3) == expected
    assert agree(uplinks, 0.5) == {(0, CAT), (2, FOX), (3, DOG)}
    assert agree(uplinks, 0.7) == {(0, CAT), (2, FOX)}  # a vote sent twice counts once


def test_items_with_two_classes_are_dropped() -> None:
    items, classes = np.array([4, 5, 4, 6], np.int32), np.array([0, 1, 2, 1], np.int32)
    kept = without_ambiguous(items, classes)
    assert [column.tolist() for column in kept] == [[5, 6], [1, 1]]


def test_users_receive_their_own_class_numbers() -> None:
    run = parse_run_config({"method": "cofed", "num-rounds": 4})
    server = ServerAtWork(run)
    server.admit([a_client_info(i, public_hash="p") for i in range(3)])
    assert [server.exchanges_in(number) for number in (1, 2, 3, 4)] == [1, 2, 1, 1]
    uplinks = [votes([CAT, DOG], [(7, 0), (9, 1)]), votes([FOX, DOG], [(9, 1), (8, 0)])]
    server.aggregate_in(2, (ClientUpdate(i, 5, u, [], 0, 0, 0, "") for i, u in enumerate(uplinks)))
    server.exchange = 2
    got = [server.downlink_for(i, 2) for i in range(3)]
    assert [(d.items.tolist(), d.classes.tolist()) for d in got] == [
        ([7, 9], [0, 1]), ([8, 9], [0, 1]), ([], []),
    ]  # fmt: skip
    server.exchange = 1
    assert len(server.downlink_for(0, 3).items) == 0  # nor if the second exchange asked nobody
    server.exchange = 2
    server.aggregate_in(2, iter(()))
    server.exchange = 1
    assert len(server.downlink_for(0, 3).items) == 0  # labels come once


def test_pseudo_labelled_items_join_the_training_set() -> None:
    context = a_context(12, method="cofed", public_size=48)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = Client().build(context)
    state.items = torch.tensor([3, 40], dtype=torch.int32)
    state.classes = torch.tensor([2, 0], dtype=torch.int32)
    split = Client()._with_pseudo_labels(context, state)
    images, labels = split.batch(np.arange(14))
    own, own_labels = context.data.train.batch(np.arange(12))
    assert torch.equal(images[:12], own)
    assert labels.tolist() == [*own_labels.tolist(), 2, 0]
    assert (images[13].numpy() == context.public.images[40]).all()
    counts = split.class_counts()
    logits = torch.zeros(3, 3)
    state.model.forward = lambda x: logits  # type: ignore[method-assign,assignment]
    loss = Client()._loss(context, state.model, split)
    # With equal logits every example costs log 3, whatever the weights 1 / count.
    value = loss(images[:3], torch.tensor([0, 1, 2]))["loss_ce"]
    assert value.item() == pytest.approx(np.log(3))
    logits[0, 0] = 5.0
    each = torch.log_softmax(logits, 1).diagonal()
    weights = torch.tensor([1 / counts[c] for c in range(3)])
    value = loss(images[:3], torch.tensor([0, 1, 2]))["loss_ce"]
    assert value.item() == pytest.approx((-(each * weights).sum() / weights.sum()).item())


def test_an_exchange_after_the_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cofed.exchange-round = 11: expected a round of"):
        ServerAtWork(parse_run_config({"method": "cofed", "cofed.exchange-round": 11}))


def test_labels_after_the_last_round_are_of_no_use() -> None:
    server = ServerAtWork(parse_run_config({"method": "cofed", "num-rounds": 1}))
    assert list(server.remarks) == [
        "cofed: labels come after round 1, the last: nobody trains with them",
    ]


def test_users_of_unlike_label_sets_exchange_labels(tmp_path: Path) -> None:
    """Also a multi-label user, whose unnamed classes stay unknown."""
    run = run_federation(
        tmp_path, 4, method="cofed", num_rounds=3, image_size=16, cofed__margin=0.0,
        cofed__agreement=0.1, min_examples=0, partition="iid",
        tasks="classification[0-4], classification[3-9], multilabel@scenes, segmentation@scenes",
        **{"models": "cnn5, cnn5, cnn5, seg-small", "subset": 0.1},
    )  # fmt: skip
    assert run.config["status"] == "completed"
    assert run.rows("failures") == []
    assert run.metrics(metric="labels_agreed", round=2)
    labelled = {r["client"]: float(r["value"]) for r in run.metrics(metric="pseudo_labelled")}
    assert set(labelled) >= {"0", "1"}
    # One local training a round, also in that of the exchange; then the labelled items come along.
    own = {r["client"]: int(r["train_examples"]) for r in run.rows("clients")}
    for row in run.metrics(metric="examples_seen"):
        added = int(labelled.get(row["client"], 0)) if row["round"] == "3" else 0
        if row["client"] in "01":  # an item is one of the examples, whatever it is labelled
            assert int(float(row["value"])) == own[row["client"]] + added
    uplinks = [r for r in run.rows("traffic") if r["direction"] == "uplink" and r["round"] != "2"]
    assert {int(r["scalars"]) for r in uplinks} == {0}
