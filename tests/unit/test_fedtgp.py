"""FedTGP: margin and loss by hand and by brute force, generator training, a short run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from strategies.base.messages import ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.fedtgp import (
    PrototypeGenerator,
    Uplink,
    adaptive_margin,
    margin_loss,
    train_generator,
)
from tests.support import Outcome, ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info


def small_server(**options: object) -> ServerAtWork:
    keys = {f"fedtgp.{k.replace('_', '-')}": v for k, v in options.items()}
    return server_with(keys)


def server_with(keys: dict[str, object]) -> ServerAtWork:
    """A server of four-dimensional prototypes of five classes."""
    run = parse_run_config({"method": "fedtgp", "feature-dim": 4, **keys})
    return ServerAtWork(run, [a_client_info(0, num_classes=5, feature_dim=4)])


def update(client_id: int, classes: list[int]) -> ClientUpdate:
    rows = np.random.default_rng(client_id).normal(size=(len(classes), 4)).astype(np.float32)
    sent = Uplink(np.array(classes, np.int64), rows)
    return ClientUpdate(client_id, len(classes), sent, [], 0.0, 0, 0, "")


def values(run: Outcome, metric: str, **wanted: object) -> list[float]:
    return [float(row["value"]) for row in run.metrics(metric=metric, **wanted)]


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        # Nearest other classes of 0, 3 and 10 on a line are 3, 3 and 7 away.
        ([[0.0, 0.0], [3.0, 0.0], [10.0, 0.0]], 7.0),
        ([[0.0, 0.0], [3.0, 4.0]], 5.0),
        ([[0.0, 0.0], [0.0, 150.0]], 100.0),
        ([[1.0, 1.0], [1.0, 1.0]], 0.0),
        ([[8.0, 8.0]], 100.0),
    ],
)
def test_margin(means: list[list[float]], expected: float) -> None:
    """Golden: delta = min(max gap, 100); one class alone gets the limit."""
    assert adaptive_margin(torch.tensor(means), 100.0) == expected


def test_margin_equals_brute_force() -> None:
    means = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    rows = means.tolist()
    gaps = [min(math.dist(a, b) for b in rows if b != a) for a in rows]
    assert adaptive_margin(means, 100.0) == pytest.approx(max(gaps), rel=1e-6)


def test_loss_by_hand() -> None:
    """p = 0 of class 0; P_0 is 1 away, P_1 is 3: softmax of (-1 - 2, -3) is one half each."""
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    loss = margin_loss(torch.zeros(1, 2), torch.tensor([0]), prototypes, 2.0)
    assert loss.item() == pytest.approx(math.log(2))


def test_loss_equals_brute_force() -> None:
    generator = torch.Generator().manual_seed(2)
    received, prototypes = (torch.randn(n, 3, generator=generator) for n in (6, 4))
    labels = torch.randint(4, (6,), generator=generator)
    total = 0.0
    for p, c in zip(received, labels.tolist(), strict=True):
        apart = [math.dist(p.tolist(), q.tolist()) for q in prototypes]
        apart[c] += 1.5
        total += apart[c] + math.log(sum(math.exp(-a) for a in apart))
    assert margin_loss(received, labels, prototypes, 1.5).item() == pytest.approx(total / 6)


def test_gradient_is_finite_where_distance_is_zero() -> None:
    prototypes = torch.zeros(2, 3, requires_grad=True)
    margin_loss(torch.zeros(1, 3), torch.tensor([1]), prototypes, 1.0).backward()
    assert prototypes.grad is not None
    assert prototypes.grad.isfinite().all()


def test_generator_learns_to_place_classes() -> None:
    """After training every received prototype is nearest to its own class's generated one."""
    torch.manual_seed(0)
    generator = PrototypeGenerator(3, 8)
    assert sum(p.numel() for p in generator.parameters()) == 3 * 8 + 2 * (8 * 8 + 8)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    received = torch.eye(8)[labels] * 3 + 0.1 * torch.randn(6, 8)
    settings = {"lr": 0.05, "batch_size": 4}
    losses = [
        train_generator(
            generator, received, labels, 3.0, epochs=epochs,
            draws=torch.Generator().manual_seed(epochs), **settings,
        )
        for epochs in (1, 200)
    ]  # fmt: skip
    assert losses[1] < losses[0]
    with torch.no_grad():
        assert torch.equal(torch.cdist(received, generator()).argmin(dim=1), labels)


def test_only_received_classes_are_sent() -> None:
    """Classes ever received stay; the others are generated but never leave the server."""
    server = small_server(server_epochs=2)
    assert server.downlink_for(None, 1).prototypes.shape == (0, 4)
    metrics = server.aggregate_in(1, [update(0, [3]), update(1, [1, 3])])
    assert metrics["server_loss"] > 0
    assert metrics["server_loss_after"] < metrics["server_loss_before"]
    assert 0 < metrics["server_margin"] < 100
    assert server.aggregate_in(2, [update(2, [1])])["server_margin"] == 100.0
    sent = server.downlink_for(None, 3)
    assert sent.class_ids.tolist() == [1, 3]
    assert sent.prototypes.shape == (2, 4)


def test_training_depends_on_seed_and_round_only() -> None:
    """The same uplinks give the same generator, whatever the global random state is."""
    results = []
    for _ in range(2):
        torch.rand(3)
        server = small_server(server_epochs=3, server_lr=0.1, server_batch_size=1)
        server.aggregate_in(4, [update(0, [0, 1, 2]), update(1, [2, 4])])
        results.append(server.downlink_for(None, 5).prototypes)
    np.testing.assert_array_equal(*results)


def test_auto_settings_are_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, int]] = []

    def note(*_: object, lr: float, batch_size: int, **__: object) -> float:
        seen.append((lr, batch_size))
        return 0.0

    monkeypatch.setattr("strategies.fedtgp.train_generator", note)
    auto = {"fedtgp.server-lr": "auto", "lr": 0.5}
    for keys in ({"lr": 0.5, "batch-size": 7}, auto, {"fedtgp.server-lr": 0.2, "lr": 0.5}):
        server_with(keys).aggregate_in(1, [update(0, [0])])
    assert seen == [(0.01, 7), (0.5, 32), (0.2, 32)]  # HtFLlib's rate by default


def test_loss_terms_accuracies_and_traffic(tmp_path: Path) -> None:
    """U11, U13: the prototype term is 0 in round 1 only; the server's loss is recorded."""
    run = run_federation(tmp_path, 2, method="fedtgp", models="five-cnns", fedtgp__server_epochs=5)
    assert values(run, "loss_prototype", round=1) == [0.0, 0.0]
    assert min(values(run, "loss_prototype", round=2)) > 0
    assert values(run, "accuracy", round=1) == values(run, "accuracy_head", round=1)
    assert len(values(run, "accuracy_head")) == len(values(run, "accuracy"))
    assert len(values(run, "server_loss")) == 2
    classes = {row["client"]: row["classes"].split() for row in run.rows("clients")}
    union = set().union(*classes.values())
    for row in (r for r in run.rows("traffic") if r["purpose"] == "train"):
        up = row["direction"] == "uplink"
        sent = len(classes[row["client"]]) if up else len(union) * (row["round"] != "1")
        assert int(row["scalars"]) == sent * 512
