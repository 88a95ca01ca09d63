"""FedGH: the head's steps against arithmetic done by hand, and what travels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.fedgh import Config, Uplink, fit_head
from tests.support import run_federation


def uplink(class_ids: list[int], prototypes: list[list[float]]) -> Uplink:
    return Uplink(np.array(class_ids, dtype=np.int64), np.array(prototypes, dtype=np.float32))


def fit(
    classes: int, uplinks: list[Uplink], seed: int = 0, **options: object
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Fit a head that starts at zero."""
    config = Config(**{"server_batch_size": 32, **options})  # type: ignore[arg-type]
    width = uplinks[0].prototypes.shape[1]
    generator = torch.Generator().manual_seed(seed)
    return fit_head(
        torch.zeros(classes, width), torch.zeros(classes), uplinks, config, generator=generator
    )


def sgd(
    classes: int, batches: list[list[tuple[list[float], int]]], lr: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Plain SGD on mean cross entropy, one list of pairs per step, each with its own gradient."""
    weight, bias = np.zeros((classes, len(batches[0][0][0]))), np.zeros(classes)
    for batch in batches:
        weight_step, bias_step = np.zeros_like(weight), np.zeros_like(bias)
        for prototype, label in batch:
            logits = weight @ prototype + bias
            error = np.exp(logits) / np.exp(logits).sum() - np.eye(classes)[label]
            weight_step += np.outer(error, prototype) / len(batch)
            bias_step += error / len(batch)
        weight, bias = weight - lr * weight_step, bias - lr * bias_step
    return weight, bias


def test_one_prototype_by_hand() -> None:
    """Both classes have probability 1/2, so rows move by +-lr p / 2."""
    weight, bias, losses = fit(2, [uplink([0], [[1, 2]])], server_lr=0.1)
    torch.testing.assert_close(weight, torch.tensor([[0.05, 0.1], [-0.05, -0.1]]))
    torch.testing.assert_close(bias, torch.tensor([0.05, -0.05]))
    assert losses["server_loss"] == losses["server_loss_before"] == pytest.approx(np.log(2))
    assert losses["server_loss_after"] < losses["server_loss_before"]


def test_shuffled_batch_is_a_mean_over_all_clients() -> None:
    sent = [uplink([0, 2], [[1, 2], [3, -1]]), uplink([2], [[0, 1]])]
    weight, bias, _ = fit(3, sent, server_lr=0.1)
    expected = sgd(3, [[([1, 2], 0), ([3, -1], 2), ([0, 1], 2)]], 0.1)
    np.testing.assert_allclose(weight, expected[0], atol=1e-6)
    np.testing.assert_allclose(bias, expected[1], atol=1e-6)


@pytest.mark.parametrize("epochs", [1, 3])
def test_walk_by_clients_steps_once_per_prototype_and_clears_gradients(epochs: int) -> None:
    """The authors' script never clears the header's gradients; here each step has its own."""
    pairs = [([1.0, 2.0], 0), ([3.0, -1.0], 2), ([0.0, 1.0], 1)]
    sent = [uplink([0, 2], [pairs[0][0], pairs[1][0]]), uplink([1], [pairs[2][0]])]
    weight, bias, _ = fit(3, sent, walk="clients", server_lr=0.1, server_epochs=epochs)
    expected = sgd(3, [[pair] for pair in pairs] * epochs, 0.1)
    np.testing.assert_allclose(weight, expected[0], atol=1e-6)
    np.testing.assert_allclose(bias, expected[1], atol=1e-6)


def test_only_the_shuffled_walk_draws() -> None:
    sent = [uplink([0, 1, 2], [[1, 2], [3, -1], [0, 1]])]
    by_clients = [fit(3, sent, seed, walk="clients")[0] for seed in (0, 1)]
    assert torch.equal(*by_clients)
    shuffled = [fit(3, sent, seed, server_batch_size=1)[0] for seed in range(6)]
    assert any(not torch.equal(shuffled[0], other) for other in shuffled[1:])


def test_the_head_passed_in_is_not_changed() -> None:
    weight, bias = torch.zeros(2, 2), torch.zeros(2)
    for walk in ("shuffled", "clients"):
        config = Config(walk=walk, server_batch_size=32)
        sent = [uplink([0], [[1, 2]])]
        new_weight, _, _ = fit_head(weight, bias, sent, config, generator=torch.Generator())
        assert new_weight.abs().max() > 0
        assert weight.abs().max() == bias.abs().max() == 0


def test_many_epochs_fit_separable_prototypes() -> None:
    sent = [uplink([0, 1], [[5, 0], [0, 5]]), uplink([2, 1], [[-5, 0], [0, 4]])]
    weight, bias, losses = fit(3, sent, server_lr=0.5, server_epochs=50)
    scores = torch.tensor([[5.0, 0], [0, 5], [-5, 0]]) @ weight.T + bias
    assert scores.argmax(dim=1).tolist() == [0, 1, 2]
    assert losses["server_loss"] < 0.05


def test_published_traffic() -> None:
    """FedRE's table: 502 pairs of client and class are 257,024 scalars; ids do not count."""
    sent = Uplink(np.arange(502), np.zeros((502, 512), np.float32))
    assert count_scalars(sent) == (257_024, 257_024 + 502)


def test_a_class_sent_twice_is_refused_by_name() -> None:
    with pytest.raises(PayloadError, match="class_ids: values repeat"):
        unpack(Uplink, pack(uplink([1, 1], [[1, 2], [3, 4]])), {"C": 3, "d": 2})


def test_clients_send_the_prototypes_of_their_classes(tmp_path: Path) -> None:
    """Few classes per client: absent ones are not sent; evaluation follows training."""
    run = run_federation(tmp_path, 3, method="fedgh", alpha=0.05, min_examples=1)
    classes = {row["client"]: len(row["classes"].split()) for row in run.rows("clients")}
    assert min(classes.values()) < 10
    sent = [row for row in run.rows("traffic") if row["purpose"] == "train"]
    assert sent
    for row in (row for row in sent if row["direction"] == "uplink"):
        assert int(row["scalars"]) == 512 * classes[row["client"]]
    assert run.metrics(phase="post", metric="accuracy")
    assert len(run.metrics(client="server", metric="server_loss")) == 2


def test_walk_and_clipping_reach_the_run(tmp_path: Path) -> None:
    plain = run_federation(tmp_path / "a", 2, method="fedgh")
    other = run_federation(
        tmp_path / "b", 2, method="fedgh", fedgh__walk="clients", fedgh__clip_norm=0.01
    )
    for metric in ("server_loss", "loss_ce"):
        values = [
            {row["value"] for row in run.metrics(metric=metric, round=2)} for run in (plain, other)
        ]
        assert values[0]
        assert values[0].isdisjoint(values[1])
