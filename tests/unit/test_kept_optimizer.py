"""Momentum and moments that go on over rounds: equal to an optimiser that was never put away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from client_app.state_store import StateStore
from strategies.base.kept import Kept
from strategies.common.optimizers import KeptOptimizer
from strategies.fedre import ClientState
from tests.unit.test_training import a_context, seeded

KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
}


def step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], gradient: float) -> None:
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def test_momentum_by_hand() -> None:
    """v1 = 1, w = -0.1; in the next round v2 = 0.9 + 2 = 2.9, w = -0.39; without: -0.3."""
    weight, kept = nn.Parameter(torch.zeros(1)), Kept()
    for gradient in (1.0, 2.0):
        kept.trained.clear()  # a message of its own
        optimizer = KINDS["sgd"]([weight])
        lasting = KeptOptimizer(kept, optimizer, [weight])
        step(optimizer, [weight], gradient)
        assert lasting.keep() == []
    assert weight.item() == pytest.approx(-0.39)


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_through_files_equal_one_optimiser(kind: str, tmp_path: Path) -> None:
    """Also for weights in channels-last layout, which their moments take."""

    def modules() -> list[nn.Parameter]:
        convolution = torch.linspace(-1, 1, 48).view(2, 6, 2, 2)
        last = convolution.to(memory_format=torch.channels_last)
        return [nn.Parameter(last), nn.Parameter(torch.ones(3))]

    whole, parts, gradients = modules(), modules(), (0.5, -2.0, 1.0)
    optimizer = KINDS[kind](whole)
    store = StateStore(tmp_path, {})
    kept = Kept()
    for number, gradient in enumerate(gradients, start=1):
        step(optimizer, whole, gradient)
        fresh = KINDS[kind](parts)
        lasting = KeptOptimizer(kept, fresh, parts)
        step(fresh, parts, gradient)
        lasting.keep()
        moments = [t for t in fresh.state[parts[0]].values() if t.dim()]
        assert all(t.is_contiguous(memory_format=torch.channels_last) for t in moments)
        store.save(number, ClientState(nn.Linear(1, 1), None), number, kept)
        path = store.newest_before(number + 1)
        assert path is not None
        kept = store.load_kept(path, optimizers=True)
        assert store.load_kept(path, optimizers=False).optimizers == {}
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)


def test_two_trainings_of_a_message_have_a_state_each() -> None:
    kept = Kept()
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    for parameter, gradient in ((first, 1.0), (second, 5.0)):
        optimizer = KINDS["sgd"]([parameter])
        lasting = KeptOptimizer(kept, optimizer, [parameter])
        step(optimizer, [parameter], gradient)
        lasting.keep()
    assert sorted(item[0].item() for item in kept.optimizers.values()) == [1.0, 5.0]
    other = nn.Parameter(torch.zeros(3))
    optimizer = KINDS["sgd"]([other])
    KeptOptimizer(kept, optimizer, [other])
    assert not optimizer.state[other]  # what has other shapes is another thing


def test_an_overflow_is_named() -> None:
    weight, kept = nn.Parameter(torch.zeros(1)), Kept()
    optimizer = KINDS["adam"]([weight])
    lasting = KeptOptimizer(kept, optimizer, [weight])
    step(optimizer, [weight], 1e30)  # its square is infinite
    assert lasting.keep() == ["0.exp_avg_sq"]


def test_off_by_default_nothing_is_kept() -> None:
    from strategies.common.training import train_epochs
    from tests.unit.test_training import cross_entropy

    for keep, expected in ((False, 0), (True, 4)):
        context = a_context(8, momentum=0.9, keep_optimizer=keep)
        model = seeded()
        train_epochs(context, [model], cross_entropy(model))
        assert len(context.kept.optimizers) == expected
