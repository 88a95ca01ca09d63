"""The alignment losses: brute force in float64, the paper's identities, gradients and cost."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strategies.common.losses import muscle_loss
from strategies.fedmuscle.contrastive import (
    gramian_loss,
    information_bound,
    nt_xent,
    pairwise_loss,
)

BATCH, WIDTH = 4, 6


def units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)


def brute_force(anchor: Tensor, others: Tensor, two: Tensor, one: Tensor) -> Tensor:
    """The definition word by word: alpha_j over ordered pairs, all tuples, one anchor at a time.

    `two` holds tau^(N) of all pairs, the anchor first; `one` tau^(N-1) of the others' pairs.
    """
    users, batch, _ = others.shape
    losses = []
    for i in range(batch):
        terms = {}
        for j in itertools.product(range(batch), repeat=users):
            energy = 0.0
            for m in range(users):
                for n in range(users):
                    if m != n:
                        gamma = 1 / one[m, n] - 1 / two[m + 1, n + 1]
                        energy = energy - 0.5 * gamma * (others[m, j[m]] @ others[n, j[n]])
            alpha = torch.exp(torch.as_tensor(energy, dtype=torch.float64))
            near = sum(anchor[i] @ others[m, j[m]] / two[0, m + 1] for m in range(users))
            terms[j] = alpha * torch.exp(near)
        losses.append(-torch.log(terms[(i,) * users] / sum(terms.values())))
    return torch.stack(losses)


def same_everywhere(users: int, tau: float, tau_others: float) -> tuple[Tensor, Tensor]:
    return (
        torch.full((users + 1, users + 1), tau, dtype=torch.float64),
        torch.full((users, users), tau_others, dtype=torch.float64),
    )


@pytest.mark.parametrize("users", [1, 2, 3])
@pytest.mark.parametrize("largest_block", [2**25, 1], ids=["whole", "blocks"])
def test_equals_brute_force_with_its_gradient(users: int, largest_block: int) -> None:
    others = units(users, BATCH, WIDTH, seed=users)
    anchor = units(BATCH, WIDTH).requires_grad_()
    twin = anchor.detach().clone().requires_grad_()
    ours = muscle_loss(anchor, others, largest_block=largest_block)
    exact = brute_force(twin, others, *same_everywhere(users, 0.2, 0.15))
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-13)
    ours.mean().backward()
    exact.mean().backward()
    assert anchor.grad is not None
    torch.testing.assert_close(anchor.grad, twin.grad, rtol=0, atol=1e-12)


def test_temperatures_of_each_pair_equal_brute_force() -> None:
    anchor, others = units(BATCH, WIDTH), units(3, BATCH, WIDTH, seed=1)
    generator = torch.Generator().manual_seed(2)
    two = 0.3 + 0.2 * torch.rand(4, 4, dtype=torch.float64, generator=generator)
    one = 0.1 + 0.1 * torch.rand(3, 3, dtype=torch.float64, generator=generator)
    two, one = (two + two.T) / 2, (one + one.T) / 2
    torch.testing.assert_close(
        muscle_loss(anchor, others, two, one), brute_force(anchor, others, two, one)
    )


def test_one_other_is_info_nce() -> None:
    """Identity a."""
    anchor, others = units(BATCH, WIDTH), units(1, BATCH, WIDTH, seed=1)
    expected = F.cross_entropy(anchor @ others[0].T / 0.2, torch.arange(BATCH), reduction="none")
    torch.testing.assert_close(muscle_loss(anchor, others), expected)


def test_without_gamma_it_is_the_pairwise_loss() -> None:
    """Identity b: alpha is the only difference."""
    anchor, others = units(BATCH, WIDTH), units(3, BATCH, WIDTH, seed=1)
    pairwise = pairwise_loss(anchor, others, 0.2)
    torch.testing.assert_close(muscle_loss(anchor, others, 0.2, 0.2), pairwise)
    assert not torch.allclose(muscle_loss(anchor, others, 0.2, 0.15), pairwise, atol=1e-3)


@pytest.mark.parametrize("users", [1, 2, 4])
def test_equal_representations_give_m_log_b(users: int) -> None:
    """Identity c."""
    z = units(1, WIDTH).expand(BATCH, WIDTH)
    losses = muscle_loss(z, z.expand(users, BATCH, WIDTH))
    expected = torch.full((BATCH,), users * math.log(BATCH), dtype=torch.float64)
    torch.testing.assert_close(losses, expected)
    assert information_bound(float(losses.mean()), users, BATCH) == pytest.approx(0, abs=1e-12)


def test_never_negative() -> None:
    """Identity d, also where anchor and others agree perfectly."""
    for seed in range(20):
        z = units(8, 3, seed=seed)
        for others in (z.expand(3, 8, 3), units(3, 8, 3, seed=seed + 100)):
            assert (muscle_loss(z, others) >= 0).all()


def test_others_get_no_gradient() -> None:
    anchor, others = units(BATCH, WIDTH).requires_grad_(), units(2, BATCH, WIDTH).requires_grad_()
    for loss in (muscle_loss, pairwise_loss, gramian_loss):
        loss(anchor, others).sum().backward()
        assert others.grad is None


def test_small_temperatures_do_not_overflow() -> None:
    """float32 would: 5 / 0.02 is an exponent of 250."""
    z = units(8, 4).float()
    losses = muscle_loss(z, units(5, 8, 4, seed=3).float(), 0.02, 0.015)
    assert losses.isfinite().all()


def test_a_hotter_pair_of_others_is_refused() -> None:
    with pytest.raises(ValueError, match=r"temperature of the others, 0.3: must not be above"):
        muscle_loss(units(2, 3), units(2, 2, 3), 0.2, 0.3)


@pytest.mark.parametrize("users", [1, 2, 3])
def test_gramian_equals_brute_force(users: int) -> None:
    anchor, others = units(BATCH, WIDTH), units(users, BATCH, WIDTH, seed=1)
    volume = torch.zeros(BATCH, BATCH, dtype=torch.float64)
    for i, j in itertools.product(range(BATCH), repeat=2):
        vectors = torch.stack([anchor[i], *others[:, j]])
        gram = vectors @ vectors.T + 1e-6 * torch.eye(users + 1, dtype=torch.float64)
        volume[i, j] = torch.linalg.det(gram).abs().sqrt()
    rows = [-(-volume[i] / 0.07).log_softmax(0)[i] for i in range(BATCH)]
    columns = [-(-volume[:, i] / 0.07).log_softmax(0)[i] for i in range(BATCH)]
    expected = (torch.stack(rows) + torch.stack(columns)) / 2
    torch.testing.assert_close(gramian_loss(anchor, others), expected)


def test_gramian_has_finite_gradients_where_volumes_vanish() -> None:
    z = units(1, WIDTH).float().expand(BATCH, WIDTH).clone().requires_grad_()
    gramian_loss(z, z.detach().expand(3, BATCH, WIDTH)).sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_nt_xent_equals_brute_force() -> None:
    first, second = units(3, WIDTH).float(), units(3, WIDTH, seed=1).float()
    views = torch.cat([first, second])
    expected = []
    for i in range(6):
        positive = (i + 3) % 6
        scores = {j: torch.exp(views[i] @ views[j] / 0.5) for j in range(6) if j != i}
        expected.append(-torch.log(scores[positive] / sum(scores.values())))
    torch.testing.assert_close(nt_xent(first, second), torch.stack(expected))


def test_five_others_stay_in_memory_and_float32() -> None:
    """B = 16, M = 5: a million tuples; blocks of the same sum give the same numbers."""
    anchor = units(16, 256).float().requires_grad_()
    others = units(5, 16, 256, seed=1).float()
    whole = muscle_loss(anchor, others)
    (gradient,) = torch.autograd.grad(whole.mean(), anchor)
    parts = muscle_loss(anchor, others, largest_block=16**4 * 3)
    (again,) = torch.autograd.grad(parts.mean(), anchor)
    exact = muscle_loss(anchor.double(), others.double())
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(again, gradient, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(whole.double(), exact, rtol=1e-5, atol=1e-5)
