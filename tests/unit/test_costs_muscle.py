"""FedMuscle's cost table, the paper's side and this one's, on real payloads."""

from __future__ import annotations

import pytest

from deploy.costs.muscle import PUBLISHED_GIB, measure, render


def test_a_step_of_thirty_two_and_three() -> None:
    cost = measure(32, 3)
    assert cost.uplink == 8_192
    assert cost.downlink == 24_576
    assert cost.paper_downlink == 8_421_376
    assert round(cost.paper_downlink / cost.downlink) == 343
    assert 4 * cost.downlink < cost.downlink_bytes < 4 * cost.downlink * 1.05


@pytest.mark.parametrize("users", [1, 3, 5])
def test_published_figures_fit_the_formula_and_stand_beside_it(users: int) -> None:
    """The paper rounds or cuts: within 0.001 GiB, or a thousandth."""
    exact = 128_000 * (20**users + 20) / 2**30
    assert exact == pytest.approx(PUBLISHED_GIB[users], rel=1e-3, abs=1e-3)
    row = next(line for line in render().splitlines() if line.startswith(f"20  {users}"))
    assert f"{PUBLISHED_GIB[users]:.3f}" in row
    assert f"{exact:,.3f}" in row
    assert f"{128_000 * (20 * users + 20) / 2**30:.4f}" in row
