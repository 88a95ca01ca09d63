"""Fused steps of Adam: the numbers of plain ones, whatever lies how in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from strategies.common.optimizers import make_adam, optimizer_state, restore_optimizer, take_step

LAST = torch.channels_last
SHAPE = (8, 6, 3, 3)


def drawn(number: int, *, last: bool) -> Tensor:
    """Return a kernel of a convolution."""
    item = torch.randn(SHAPE, generator=torch.Generator().manual_seed(number))
    return item.to(memory_format=LAST) if last else item


def stepped(kind: Any, weights: Tensor, gradients: list[Tensor], *, fused: bool) -> Tensor:
    """Return what steps make of weights."""
    parameter = nn.Parameter(weights.clone())
    assert parameter.stride() == weights.stride()
    settings = {"lr": 0.1, "weight_decay": 0.01}
    optimizer = make_adam(kind, [parameter], **settings) if fused else kind([parameter], **settings)
    assert bool(optimizer.defaults["fused"]) is fused
    for gradient in gradients:
        parameter.grad = gradient.clone()
        take_step(optimizer)
    return parameter.detach()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("weights_last", [False, True])
@pytest.mark.parametrize("gradients_last", [False, True])
def test_a_fused_step_is_a_plain_one(kind: Any, weights_last: bool, gradients_last: bool) -> None:
    """Torch itself is off by 0.6 where weights and gradient lie in unlike order."""
    weights = drawn(0, last=weights_last)
    gradients = [drawn(number, last=gradients_last) for number in (1, 2, 3)]
    plain = stepped(kind, weights, gradients, fused=False)
    torch.testing.assert_close(
        stepped(kind, weights, gradients, fused=True), plain, rtol=1e-5, atol=1e-6
    )


def test_what_is_not_dense_is_not_fused() -> None:
    part = nn.Parameter(torch.randn(4, 6)[:, ::2])
    optimizer = make_adam(torch.optim.Adam, [nn.Parameter(torch.zeros(3)), part], lr=0.1)
    assert not optimizer.defaults["fused"]


def test_moments_go_on_where_they_were() -> None:
    """Three steps at once are two, and one of another optimiser that is given what they left."""
    weights = drawn(0, last=True)
    gradients = [drawn(number, last=True) for number in (1, 2, 3)]
    whole = stepped(torch.optim.Adam, weights, gradients, fused=True)
    parameter = nn.Parameter(weights.clone())
    left: dict[str, Tensor] = {}
    for some in (gradients[:2], gradients[2:]):
        optimizer = make_adam(torch.optim.Adam, [parameter], lr=0.1, weight_decay=0.01)
        restore_optimizer(optimizer, [parameter], left)
        for gradient in some:
            parameter.grad = gradient.clone()
            take_step(optimizer)
        left = optimizer_state(optimizer, [parameter])
    assert torch.equal(parameter.detach(), whole)
    assert left["0.step"].item() == 3
