"""FedAllRep: the union of all representations, one step by hand, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.common.head import HeadState
from strategies.fedallrep import Uplink, join_uplinks
from tests.support import ServerAtWork, run_federation


def uplink(representations: list[list[float]], labels: list[int]) -> Uplink:
    return Uplink(np.array(representations, dtype=np.float32), np.array(labels, dtype=np.int64))


def make_server(classes: int, **options: Any) -> ServerAtWork:
    keys = {f"fedallrep.{key.replace('_', '-')}": value for key, value in options.items()}
    server = ServerAtWork(parse_run_config({"method": "fedallrep", "feature-dim": 2, **keys}))
    server.admit(
        [ClientInfo(0, "cnn1", 1, 2, 2, classes, 1, 8, "h", [0], [1], 1, 0, 0, "cpu", "h")]
    )
    server.state = HeadState(torch.zeros(classes, 2), torch.zeros(classes))
    return server


def update(client_id: int, sent: Uplink) -> ClientUpdate:
    return ClientUpdate(client_id, len(sent.labels), sent, [], 0.0, 0, 0, "")


def test_union_keeps_every_pair_in_client_order() -> None:
    representations, labels = join_uplinks(
        [uplink([[1, 2]], [2]), uplink([[3, 4], [5, 6]], [0, 2])]
    )
    assert representations.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert labels.tolist() == [2, 0, 2]


@pytest.mark.parametrize(("reduction", "scale"), [("sum", 1.0), ("mean", 0.5)])
def test_one_step_by_hand(reduction: str, scale: float) -> None:
    """From a zero head each of C = 2 classes has probability 1/2, so the step is +-lr r / 2."""
    server = make_server(2, server_lr=0.1, reduction=reduction)
    sent = [uplink([[1, 2]], [0]), uplink([[4, 0]], [1])]
    metrics = server.aggregate_in(1, [update(k, one) for k, one in enumerate(sent)])
    expected = scale * 0.1 * 0.5 * torch.tensor([[1.0 - 4.0, 2.0], [4.0 - 1.0, -2.0]])
    torch.testing.assert_close(server.state.head_weight, expected)
    torch.testing.assert_close(server.state.head_bias, torch.zeros(2))
    assert metrics["server_loss"] == metrics["server_loss_before"] == pytest.approx(np.log(2))
    assert metrics["server_loss_after"] < metrics["server_loss_before"]


@pytest.mark.parametrize("mask", [False, True])
def test_absent_class_is_pushed_down_unless_masked(mask: bool) -> None:
    server = make_server(3, mask_absent=mask)
    server.aggregate_in(1, [update(0, uplink([[1, 0], [0, 1]], [0, 2]))])
    assert bool((server.state.head_weight[1] == 0).all()) is mask
    assert (server.state.head_weight[0] != 0).any()


def test_batches_differ_by_round_only() -> None:
    """The shuffle is a function of the seed and the round."""
    sent = uplink(np.random.default_rng(0).normal(size=(64, 2)).tolist(), [0, 1] * 32)
    heads = []
    for number in (1, 1, 2):
        server = make_server(2, server_batch_size=4)
        server.aggregate_in(number, [update(0, sent)])
        heads.append(server.state.head_weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_a_label_that_is_no_class_is_refused_by_name() -> None:
    with pytest.raises(PayloadError, match="labels: value 3 is not below 3"):
        unpack(Uplink, pack(uplink([[1, 2]], [3])), {"C": 3, "d": 2})


def test_as_many_labels_as_representations() -> None:
    with pytest.raises(PayloadError, match="labels"):
        unpack(Uplink, pack(uplink([[1, 2]], [0, 1])), {"C": 3, "d": 2})


def test_scalars_are_those_of_the_paper(tmp_path: Path) -> None:
    """n_k (d + 1) up for every client's whole training set; the head down."""
    assert count_scalars(uplink([[1, 2], [3, 4]], [0, 1])) == (6, 6)
    run = run_federation(tmp_path, 3, method="fedallrep")
    examples = {row["client"]: int(row["train_examples"]) for row in run.rows("clients")}
    for row in run.rows("traffic"):
        if row["purpose"] == "train":
            up = row["direction"] == "uplink"
            assert int(row["scalars"]) == (examples[row["client"]] * 513 if up else 5130)
    assert len(run.metrics(client="server", metric="server_loss")) == 2


def test_trainable_mapping(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 2, method="fedallrep", fedallrep__mapping="FC", fedallrep__reduction="mean"
    )
    assert run.config["status"] == "completed"
