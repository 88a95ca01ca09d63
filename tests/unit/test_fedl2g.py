"""FedL2G: the meta gradient against central differences, the server's step by hand, short runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from strategies.base.messages import ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError
from strategies.fedl2g import Uplink, guided_loss, meta_gradient, quiz_size, stepped_vectors
from tests.support import Outcome, ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info


class Linear(nn.Module):
    """A linear body (3 -> 2), BatchNorm, and a linear head (2 -> 3) in float64."""

    def __init__(self, guide: str, norm: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2).double()
        self.norm = nn.BatchNorm1d(2).double() if norm else nn.Identity()
        self.head = nn.Linear(2, 3).double()
        self.guide = guide

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(self.body(x))
        logits = self.head(z)
        return logits, z if self.guide == "features" else logits


def a_batch(labels: list[int], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(labels), 3, generator=generator).double(), torch.tensor(labels)


def quiz_loss(
    model: Linear, vectors: Tensor, study: list[Any], quiz: list[Any], lr: float
) -> float:
    """Return the quiz loss after one plain step on the study batches, the model restored."""
    before = {name: item.clone() for name, item in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = [sum(guided_loss(model(x), y, vectors).values()) for x, y in study]
    (sum(losses) / len(losses)).backward()  # type: ignore[union-attr]
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        values = [nn.functional.cross_entropy(model(x)[0], y).item() for x, y in quiz]
    model.load_state_dict(before)
    return sum(values) / len(values)


@pytest.mark.parametrize("guide", ["logits", "features"])
def test_the_uplink_equals_central_differences(guide: str) -> None:
    """Classes 0 and 1 are studied, 2 is in the quiz alone: its row is zero."""
    torch.manual_seed(0)
    model, vectors = Linear(guide), torch.randn(3, 3 if guide == "logits" else 2).double()
    study, quiz = [a_batch([0, 1, 1, 0], 1), a_batch([1, 1], 2)], [a_batch([0, 2, 1], 3)]
    found, loss = meta_gradient(model, vectors, study, quiz, lr=0.5)
    assert loss == pytest.approx(quiz_loss(model, vectors, study, quiz, 0.5), rel=1e-12)
    expected = torch.zeros_like(vectors)
    for row, column in np.ndindex(*vectors.shape):
        ends = []
        for sign in (1, -1):
            moved = vectors.clone()
            moved[row, column] += sign * 1e-5
            ends.append(quiz_loss(model, moved, study, quiz, 0.5))
        expected[row, column] = (ends[0] - ends[1]) / 2e-5
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-9)
    assert found[:2].abs().min() > 0
    assert not found[2].any()


def test_the_copy_leaves_nothing_behind() -> None:
    """Neither weights nor BatchNorm's statistics nor gradients are the meta step's."""
    torch.manual_seed(0)
    model = Linear("logits", norm=True).train()
    before = {name: item.clone() for name, item in model.state_dict().items()}
    meta_gradient(
        model, torch.zeros(3, 3).double(), [a_batch([0, 1, 2], 1)], [a_batch([0, 1], 2)], 1
    )
    assert all(torch.equal(item, before[name]) for name, item in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_loss_by_hand() -> None:
    """Equal logits: CE is ln 2. The guided output misses v_1 = (2, 0) by (1, 1): MSE 1."""
    outputs = torch.zeros(1, 2), torch.tensor([[1.0, 1.0]])
    terms = guided_loss(outputs, torch.tensor([1]), torch.tensor([[9.0, 9.0], [2.0, 0.0]]))
    assert terms["loss_ce"].item() == pytest.approx(0.693147, rel=1e-5)
    assert terms["loss_guide"].item() == 1.0


def test_the_servers_step_by_hand() -> None:
    """(3, 4) is 5 long: cut to 2.5 it is halved."""
    vectors, gradient = torch.tensor([[1.0, 1.0]]), torch.tensor([[3.0, 4.0]])
    assert stepped_vectors(vectors, gradient, 0.5, 100.0).tolist() == [[-0.5, -1.0]]
    assert stepped_vectors(vectors, gradient, 0.5, 2.5).tolist() == [[0.25, 0.0]]
    assert stepped_vectors(vectors, gradient * 1e4, 1.0, 0.0).tolist() == [[-29999.0, -39999.0]]


def a_server(**options: Any) -> ServerAtWork:
    """A server of three classes and representations of two numbers."""
    keys = {f"fedl2g.{key}": value for key, value in options.items()}
    run = parse_run_config({"method": "fedl2g", "feature-dim": 2, **keys})
    return ServerAtWork(run, [a_client_info(i, num_classes=3, feature_dim=2) for i in range(2)])


def update(client: int, rows: dict[int, list[float]]) -> ClientUpdate:
    width = 3 if not rows else len(next(iter(rows.values())))
    gradients = np.array(list(rows.values()), np.float32).reshape(-1, width)
    return ClientUpdate(client, 4, Uplink(np.array([*rows], np.int64), gradients), [], 0, 0, 0, "")


def test_gradients_are_averaged_over_the_clients_that_sent_the_class() -> None:
    """Class 0 came twice, class 2 once, class 1 never: it stays where it was."""
    server = a_server()
    first = server.downlink_for(None, 1).vectors.copy()
    sent = [update(0, {0: [1, 0, 2]}), update(1, {0: [3, 0, 0], 2: [0, 5, 0]})]
    metrics = server.aggregate_in(1, sent)
    moved = first - server.downlink_for(None, 2).vectors
    np.testing.assert_allclose(moved, [[0.2, 0, 0.1], [0, 0, 0], [0, 0.5, 0]], atol=1e-6)
    assert metrics == {"classes_received": 2.0, "gradient_norm": pytest.approx(30**0.5)}
    server.aggregate_in(2, [update(0, {})])  # a client of one example has no quiz
    np.testing.assert_array_equal(first - server.downlink_for(None, 3).vectors, moved)


def test_features_move_by_the_rate_of_their_own() -> None:
    server = a_server(guide="features")
    first = server.downlink_for(None, 1).vectors.copy()
    assert first.shape == (3, 2)
    server.aggregate_in(1, [update(0, {1: [0.01, 0.02]})])
    moved = first - server.downlink_for(None, 2).vectors
    np.testing.assert_allclose(moved, [[0, 0], [1, 2], [0, 0]], atol=1e-6)


def test_wrong_use_is_named() -> None:
    server = a_server(guide="features")
    with pytest.raises(PayloadError, match="gradients: 3 wide, expected 2"):
        server.check_uplink(update(0, {0: [1, 2, 3]}))
    wide = a_client_info(5, num_classes=3, feature_dim=7)
    assert "representation width 7" in str(server.check(wide))
    assert a_server().check(wide) is None
    run = parse_run_config({"method": "fedl2g", "fedl2g.warmup-rounds": 10, "num-rounds": 10})
    with pytest.raises(ConfigError, match=r"warmup-rounds = 10: no client trains"):
        server.half.check_run(run)


@pytest.mark.parametrize(("examples", "held"), [(1, 0), (2, 1), (9, 4), (64, 32), (500, 32)])
def test_at_most_half_of_the_examples_are_kept_for_the_quiz(examples: int, held: int) -> None:
    assert quiz_size(examples, 32) == held


def values(run: Outcome, metric: str, **wanted: object) -> list[float]:
    return [float(row["value"]) for row in run.metrics(metric=metric, **wanted)]


def test_a_run_guided_by_features_after_one_round_of_warm_up(tmp_path: Path) -> None:
    """In round 1 no model moves, but its clients send gradients; rows are d wide."""
    run = run_federation(
        tmp_path, 2, method="fedl2g", models="*=resnet10-w4", feature_dim=8, num_rounds=2,
        fedl2g__guide="features", fedl2g__warmup_rounds=1,
    )  # fmt: skip
    assert values(run, "loss_guide", round=1) == []
    assert len(values(run, "loss_guide", round=2)) == 2
    assert len(values(run, "loss_quiz")) == 4
    before, after = (values(run, "accuracy", round=number)[:2] for number in (1, 2))
    assert before == after
    sent = [r for r in run.rows("traffic") if r["purpose"] == "train"]
    assert all(int(r["scalars"]) % 8 == 0 and int(r["scalars"]) for r in sent)
