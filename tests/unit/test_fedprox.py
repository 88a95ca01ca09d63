"""FedProx: the proximal gradient against autograd and by hand; mu = 0 is FedAvg bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.common.layerwise import split_state
from strategies.common.training import train_epochs
from strategies.common.weights import state_arrays
from strategies.fedprox import Client, Downlink, proximal_hook
from tests.support import run_federation
from tests.unit.test_training import a_context


def test_gradient_and_loss_by_hand() -> None:
    """w_ref = (1, 2), w = (4, 6): the norm is 5, the term mu / 2 * 25, its gradient mu (3, 4)."""
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.0, 2.0]])
    hook = proximal_hook(layer, 0.1)
    layer.weight.data = torch.tensor([[4.0, 6.0]])
    layer.weight.grad = torch.tensor([[10.0, -10.0]])
    assert hook()["loss_prox"].item() == pytest.approx(0.05 * 25)
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[10.3, -9.6]]))


def test_a_parameter_without_gradient_is_left_alone() -> None:
    layer = nn.Linear(2, 1)
    hook = proximal_hook(layer, 0.5)
    layer.weight.data += 2
    layer.bias.data += 7
    layer.weight.grad = torch.zeros(1, 2)
    assert hook()["loss_prox"].item() == pytest.approx(0.25 * 8)
    assert layer.bias.grad is None


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_equals_autograd_of_the_whole_objective(optimizer: str) -> None:
    """Three steps with a large mu against a loss that has the term in its graph."""
    context = a_context(
        12, method="fedprox", batch_size=4, lr=0.02, optimizer=optimizer, **{"fedprox.mu": 3.0}
    )
    torch.manual_seed(0)
    models = [context.build_model().to(memory_format=torch.channels_last) for _ in range(2)]
    weights, buffers = map(state_arrays, split_state(models[0]))
    half = Client()
    state = half.build(context)
    half.receive(context, state, Downlink(weights, buffers))
    sent, metrics = half.train(context, state, Downlink(weights, buffers))

    brute = models[1]
    brute.load_state_dict({k: torch.tensor(v) for k, v in {**weights, **buffers}.items()})
    start = [p.detach().clone() for p in brute.parameters()]

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        squares = [(p - s).square().sum() for p, s in zip(brute.parameters(), start, strict=True)]
        ce = F.cross_entropy(brute(images), labels)
        return {"loss_ce": ce, "loss_prox": 1.5 * torch.stack(squares).sum()}

    expected = train_epochs(context, [brute], loss)
    assert metrics["loss_prox"] > 0
    assert metrics["loss_prox"] == pytest.approx(expected["loss_prox"], rel=1e-4)
    assert metrics["loss"] == metrics["loss_ce"] == pytest.approx(expected["loss_ce"], rel=1e-5)
    for name, item in split_state(brute)[0].items():
        torch.testing.assert_close(
            torch.tensor(sent.weights[name]), item.detach(), rtol=1e-4, atol=2e-5, msg=name
        )


def test_no_mu_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    """The metrics of a whole run are FedAvg's, with `loss_prox` = 0 beside them."""
    fedavg = run_federation(tmp_path / "a", 3, method="fedavg")
    run = run_federation(tmp_path / "b", 3, method="fedprox", fedprox__mu=0.0)
    extra = run.metrics(metric="loss_prox")
    assert len(extra) == 6
    assert {float(row["value"]) for row in extra} == {0.0}
    assert [r for r in run.rows("metrics") if r["metric"] != "loss_prox"] == fedavg.rows("metrics")


def test_mu_holds_clients_back(tmp_path: Path) -> None:
    """The same run with a large mu stays nearer to the received weights."""
    moved = []
    for mu in (0.001, 10.0):
        run = run_federation(
            tmp_path / str(mu), 2, method="fedprox", fedprox__mu=mu, num_rounds=1,
            models="five-cnns", lr=0.05,
        )  # fmt: skip
        rows = run.metrics(metric="loss_prox")
        moved.append(sum(float(row["value"]) for row in rows) / (mu / 2))
    assert 0 < moved[1] < 0.5 * moved[0]


def test_a_negative_mu_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"fedprox.mu = -1: expected a number of at least 0"):
        parse_run_config({"method": "fedprox", "fedprox.mu": -1})
