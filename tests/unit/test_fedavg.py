"""FedAvg: as good as central training where clients are alike (U38); one client is no mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from models import InputShape
from tests.support import run_federation
from tests.unit.layerwise_support import play, server_for
from tests.unit.test_training import a_context


class SmallCnn(nn.Module):
    """Two convolutions for 8x8 images: a step costs little beside Flower's messages."""

    raw_dim = 128

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def small_cnn(shape: InputShape) -> nn.Module:
    return SmallCnn()


def test_alike_clients_reach_what_central_training_reaches(tmp_path: Path) -> None:
    """U38: alpha 1e4. Four clients over 8 rounds, one with all data over 2: as many local steps.

    On the common test set 96.7 % and 93.9 %. With sums divided by twice the examples it is 66 %,
    with the unlike clients that a broken Dirichlet split makes (alpha 0.05) 90.5 %.
    """
    accuracy, steps = {}, {}
    for clients, rounds in ((4, 8), (1, 2)):
        run = run_federation(
            tmp_path / str(clients), clients, method="fedavg", image_size=8, subset=1.0,
            models="tests.unit.test_fedavg:small_cnn", feature_dim=128, alpha=1e4,
            num_rounds=rounds, test_split="global", min_clients=1, batch_size=16, lr=0.2,
            evaluate_every=99,
        )  # fmt: skip
        accuracy[clients] = run.summary["accuracy"]["final"]
        sizes = [int(row["train_examples"]) for row in run.rows("clients")]
        steps[clients] = rounds * -(-max(sizes) // 16)
        assert max(sizes) < 1.1 * min(sizes)
    assert steps[4] == pytest.approx(steps[1], rel=0.05)
    assert accuracy[1] > 0.9
    assert accuracy[4] > accuracy[1] - 0.02


def test_one_client_gets_back_what_it_sent() -> None:
    """Bit for bit, and nothing of it is kept: a state built anew trains on in the same way."""
    contexts = {0: a_context(9)}
    config: dict[str, Any] = {"feature_dim": 8, "batch_size": 4, "lr": 0.05}
    first, second = (server_for(contexts, "fedavg", **config) for _ in range(2))
    states: dict[int, Any] = {}
    for number in (1, 2, 3):
        sent = play(first, contexts, states, number, [0])[0].uplink
        play(second, contexts, {}, number, [0])
        down = first.downlink_for(0, number + 1)
        for name, item in {**sent.weights, **sent.buffers}.items():
            np.testing.assert_array_equal({**down.weights, **down.buffers}[name], item)
            np.testing.assert_array_equal(second.state.weights[name].numpy(), item)
