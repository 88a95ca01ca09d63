"""The shared head: its SGD against numbers worked out by hand and against a naive loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strategies.common.head import (
    head_arrays,
    head_loss,
    initial_linear,
    load_head,
    stable_rate,
    train_head,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("reduction", "share"), [("sum", 1.0), ("mean", 0.5)])
def test_one_step_by_hand(reduction: str, share: float) -> None:
    """W = 0, so softmax is 1/2: the gradient is (1/2 - y) x, summed or averaged over 2 rows."""
    inputs = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    targets = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    weight, bias, loss = train_head(
        torch.zeros(2, 2), torch.zeros(2), inputs, targets,
        lr=0.1, epochs=1, batch_size=8, generator=generator(), reduction=reduction,
    )  # fmt: skip
    # row 1: (1/2 - 1, 1/2) x (1, 0); row 2: (1/4, -1/4) x (0, 2)
    expected = -0.1 * share * torch.tensor([[-0.5, 0.5], [0.5, -0.5]])
    assert torch.allclose(weight, expected)
    assert torch.allclose(bias, -0.1 * share * torch.tensor([-0.25, 0.25]))
    assert loss == pytest.approx(math.log(2))


def test_the_stable_rate_by_hand() -> None:
    """X = (3, 4, 1), so lambda_max(X X^T) = 26 and L = 13."""
    assert stable_rate(torch.tensor([[3.0, 4.0]]), 1.0) == pytest.approx(1 / 13)
    assert stable_rate(torch.tensor([[3.0, 4.0]]), 0.01) == 0.01
    # Two equal rows count twice.
    assert stable_rate(torch.tensor([[3.0, 4.0]] * 2), 1.0) == pytest.approx(1 / 26)


def test_a_stable_step_lowers_the_loss_where_a_summed_one_raises_it() -> None:
    """Large representations of much the same direction, as a client's are after some rounds."""
    draw = generator(5)
    weight, bias = initial_linear(4, 8, draw)
    x = 20 * (1 + 0.3 * torch.randn(10, 8, generator=draw))
    y = torch.softmax(3 * torch.randn(10, 4, generator=draw), dim=1)
    before, after = head_loss(weight, bias, x, y), {}
    for reduction in ("sum", "stable"):
        got = train_head(
            weight, bias, x, y,
            lr=0.01, epochs=1, batch_size=32, generator=generator(), reduction=reduction,
        )  # fmt: skip
        after[reduction] = head_loss(*got[:2], x, y)
    assert after["stable"] < before < after["sum"]


def test_arguments_are_not_changed_and_results_are_not_aliased() -> None:
    weight, bias = torch.zeros(2, 2), torch.zeros(2)
    new, new_bias, _ = train_head(
        weight, bias, torch.ones(1, 2), torch.tensor([[1.0, 0.0]]),
        lr=1.0, epochs=1, batch_size=1, generator=generator(),
    )  # fmt: skip
    assert weight.abs().sum() == 0
    assert bias.abs().sum() == 0
    assert not new.requires_grad
    assert new.data_ptr() != weight.data_ptr()
    assert new_bias.data_ptr() != bias.data_ptr()


def test_soft_cross_entropy_is_the_weighted_sum_of_hard_ones() -> None:
    """Soft labels weigh the classes as FedRE's server has it, on loss and gradient."""
    draw = generator(3)
    weight, bias = torch.randn(5, 4, generator=draw), torch.randn(5, generator=draw)
    x = torch.randn(6, 4, generator=draw)
    y = torch.rand(6, 5, generator=draw)
    y /= y.sum(dim=1, keepdim=True)
    by_class = torch.stack(
        [
            F.cross_entropy(x @ weight.T + bias, torch.full((6,), c), reduction="none")
            for c in range(5)
        ],
        dim=1,
    )
    expected = float((y * by_class).sum() / 6)
    _, _, loss = train_head(
        weight, bias, x, y, lr=0.1, epochs=0, batch_size=32, generator=generator()
    )
    assert loss == pytest.approx(expected, rel=1e-5)


def naive(
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    lr: float,
    epochs: int,
    size: int,
    mean: bool,
) -> tuple[Tensor, Tensor, float]:
    weight, bias, loss = weight.double().clone(), bias.double().clone(), 0.0
    draw = generator(7)
    for _ in range(epochs):
        loss = 0.0
        order = torch.randperm(len(x), generator=draw).tolist()
        for start in range(0, len(x), size):
            rows = order[start : start + size]
            grad_w, grad_b = torch.zeros_like(weight), torch.zeros_like(bias)
            for i in rows:
                z = weight @ x[i].double() + bias
                p = torch.exp(z - z.logsumexp(0))
                loss -= float((y[i].double() * torch.log(p)).sum())
                grad_w += torch.outer(p - y[i].double(), x[i].double())
                grad_b += p - y[i].double()
            scale = lr / len(rows) if mean else lr
            weight -= scale * grad_w
            bias -= scale * grad_b
    return weight, bias, loss / len(x)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(("epochs", "size"), [(1, 3), (3, 2), (2, 100), (4, 1)])
def test_epochs_and_batches_as_in_a_naive_loop(reduction: str, epochs: int, size: int) -> None:
    draw = generator(1)
    weight, bias = initial_linear(3, 4, draw)
    x = torch.randn(7, 4, generator=draw)
    y = torch.softmax(torch.randn(7, 3, generator=draw), dim=1)
    got = train_head(
        weight, bias, x, y,
        lr=0.2, epochs=epochs, batch_size=size, generator=generator(7), reduction=reduction,
    )  # fmt: skip
    wanted = naive(weight, bias, x, y, lr=0.2, epochs=epochs, size=size, mean=reduction == "mean")
    assert torch.allclose(got[0].double(), wanted[0], atol=1e-5)
    assert torch.allclose(got[1].double(), wanted[1], atol=1e-5)
    assert got[2] == pytest.approx(wanted[2], rel=1e-4)


def test_a_mask_leaves_other_rows_as_they_are() -> None:
    draw = generator(2)
    weight, bias = torch.randn(4, 3, generator=draw), torch.randn(4, generator=draw)
    x = torch.randn(5, 3, generator=draw)
    y = torch.zeros(5, 4)
    y[:, [0, 2]] = torch.tensor([0.3, 0.7])
    new, new_bias, loss = train_head(
        weight, bias, x, y,
        lr=0.1, epochs=2, batch_size=2, generator=generator(), classes=torch.tensor([0, 2]),
    )  # fmt: skip
    assert torch.equal(new[[1, 3]], weight[[1, 3]])
    assert torch.equal(new_bias[[1, 3]], bias[[1, 3]])
    assert not torch.equal(new[[0, 2]], weight[[0, 2]])
    # The rows present train as a head of two classes would.
    small, small_bias, small_loss = train_head(
        weight[[0, 2]], bias[[0, 2]], x, y[:, [0, 2]],
        lr=0.1, epochs=2, batch_size=2, generator=generator(),
    )  # fmt: skip
    assert torch.allclose(new[[0, 2]], small)
    assert torch.allclose(new_bias[[0, 2]], small_bias)
    assert loss == pytest.approx(small_loss)


def test_without_a_mask_an_absent_class_is_pushed_down() -> None:
    _, bias, _ = train_head(
        torch.zeros(3, 2), torch.zeros(3), torch.zeros(1, 2), torch.tensor([[0.5, 0.5, 0.0]]),
        lr=1.0, epochs=1, batch_size=1, generator=generator(),
    )  # fmt: skip
    assert bias.tolist() == pytest.approx([1 / 6, 1 / 6, -1 / 3])


def test_first_weights_are_those_of_a_linear_layer() -> None:
    weight, bias = initial_linear(50, 16, generator())
    again, _ = initial_linear(50, 16, generator())
    assert torch.equal(weight, again)
    assert weight.shape == (50, 16)
    assert bias.shape == (50,)
    assert 0.24 < float(weight.abs().max()) <= 0.25
    assert float(bias.abs().max()) <= 0.25
    assert abs(float(weight.mean())) < 0.02


def test_loading_and_reading_copy() -> None:
    head = nn.Linear(2, 3)
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    bias = np.ones(3, dtype=np.float32)
    weight.flags.writeable = False
    parameter = head.weight
    load_head(head, weight, bias)
    assert head.weight is parameter
    with torch.no_grad():
        head.weight.add_(1)
    assert weight[0, 0] == 0
    sent, sent_bias = head_arrays(head)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    assert sent.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert sent_bias.tolist() == [1, 1, 1]
