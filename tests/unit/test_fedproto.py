"""FedProto: means by hand, loss terms, both accuracies, missing classes, traffic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from strategies.base.messages import ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError
from strategies.common.prototypes import ClassAverage
from strategies.fedproto import Uplink, mean_prototypes
from tests.support import Outcome, ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info


def uplink(prototypes: dict[int, list[float]], counts: list[int]) -> Uplink:
    return Uplink(
        np.array(list(prototypes), np.int64),
        np.array(list(prototypes.values()), np.float32),
        np.array(counts, np.int64),
    )


def update(client_id: int, sent: Uplink) -> ClientUpdate:
    return ClientUpdate(client_id, int(sent.counts.sum()), sent, [], 0.0, 0, 0, "")


def values(run: Outcome, metric: str, **wanted: object) -> list[float]:
    return [float(row["value"]) for row in run.metrics(metric=metric, **wanted)]


@pytest.mark.parametrize(
    ("kind", "counts", "problem"),
    [
        ("uniform", [], None),
        ("uniform", [5], "counts: 1 values, expected 0"),
        ("weighted", [5], None),
        ("weighted", [], "counts: 0 values, expected 1"),
        ("weighted", [6], "counts: they sum to more than num-examples"),
    ],
)
def test_counts_are_sent_for_a_weighted_mean_alone(
    kind: str, counts: list[int], problem: str | None
) -> None:
    run = parse_run_config({"method": "fedproto", "fedproto.prototype-mean": kind})
    server = ServerAtWork(run, [a_client_info(0)])
    sent = ClientUpdate(0, 5, uplink({0: [0.0]}, counts), [], 0.0, 0, 0, "")
    if problem is None:
        server.check_uplink(sent)
    else:
        with pytest.raises(PayloadError, match=problem):
            server.check_uplink(sent)


@pytest.mark.parametrize(("kind", "expected"), [("uniform", 0.5), ("weighted", 0.1)])
def test_prototype_mean(kind: str, expected: float) -> None:
    """U12: A has 90 examples and prototype 0, B has 10 and prototype 1; C adds a class alone."""
    sent = [uplink({0: [0.0]}, [90]), uplink({0: [1.0]}, [10]), uplink({2: [7.0]}, [1])]
    class_ids, means = mean_prototypes(iter(sent), ClassAverage(3, 1), kind)
    assert class_ids.tolist() == [0, 2]
    assert means.tolist() == [[np.float32(expected)], [7.0]]


def test_missing_class_keeps_its_last_prototype() -> None:
    run = parse_run_config({"method": "fedproto", "feature-dim": 2})
    server = ServerAtWork(run, [a_client_info(0, num_classes=3, feature_dim=2)])
    assert server.downlink_for(None, 1).prototypes.shape == (0, 2)
    server.aggregate_in(1, [update(0, uplink({0: [1.0, 2.0], 2: [3.0, 4.0]}, [5, 5]))])
    before = server.state.prototypes
    metrics = server.aggregate_in(2, [update(1, uplink({2: [5.0, 6.0]}, [1]))])
    sent = server.downlink_for(None, 3)
    assert sent.class_ids.tolist() == [0, 2]
    assert sent.prototypes.tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert metrics == {"classes_received": 1.0, "classes_known": 2.0}
    # What was once handed out is not changed afterwards.
    assert torch.equal(before[2], torch.tensor([3.0, 4.0]))


def test_loss_terms_accuracies_and_traffic(tmp_path: Path) -> None:
    """U11, U13, U45: the prototype term is 0 in round 1 only, both predictions have a row."""
    run = run_federation(tmp_path, 2, method="fedproto", num_rounds=3, alpha=1.0)
    assert values(run, "loss_prototype", round=1) == [0.0, 0.0]
    for number in (2, 3):
        terms = values(run, "loss_prototype", round=number)
        assert len(terms) == 2
        assert min(terms) > 0
    assert min(values(run, "loss_ce")) > 0
    # The nearest prototype replaces the head from round 2 on.
    main, head = values(run, "accuracy", round=1), values(run, "accuracy_head", round=1)
    assert main == head
    assert values(run, "accuracy") != values(run, "accuracy_head")
    classes = {row["client"]: row["classes"].split() for row in run.rows("clients")}
    union = set().union(*classes.values())
    for row in (r for r in run.rows("traffic") if r["purpose"] == "train"):
        up = row["direction"] == "uplink"
        sent = len(classes[row["client"]]) if up else len(union) * (row["round"] != "1")
        assert int(row["scalars"]) == sent * 512
        assert 0 <= int(row["bytes"]) - 4 * int(row["scalars"]) < 1500


def test_weighted_mean_by_the_head(tmp_path: Path) -> None:
    """With `evaluate-by = "head"` the head is "accuracy" and the prototypes are beside it."""
    run = run_federation(
        tmp_path, 2, method="fedproto", fedproto__evaluate_by="head",
        fedproto__prototype_mean="weighted", models="five-cnns",
    )  # fmt: skip
    assert not values(run, "accuracy_head")
    assert not values(run, "accuracy_prototype", round=1)
    assert len(values(run, "accuracy_prototype", round=2)) == len(values(run, "accuracy", round=2))


def test_weight_is_checked_and_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fedproto\.prototype-weight = -1"):
        parse_run_config({"method": "fedproto", "fedproto.prototype-weight": -1})
    run = run_federation(
        tmp_path, 2, method="fedproto", fedproto__prototype_weight=0, models="five-cnns"
    )
    assert set(values(run, "loss_prototype")) == {0.0}
