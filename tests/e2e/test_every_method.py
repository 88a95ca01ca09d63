"""Every registered method through `flwr run`: Ray workers, unlike clients, one client a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from strategies.base.method import method_names
from tests.e2e.conftest import Simulate
from tests.support import run_federation

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("method", [name for name in method_names() if name != "fedre"])
def test_flwr_run_equals_the_same_process(method: str, simulate: Simulate, tmp_path: Path) -> None:
    """FedRE has this test, with one and two workers, in test_simulation."""
    config = {"method": method, "sample_fraction": 0.34, "subset": 0.15}
    done, through_ray = simulate(tmp_path / "ray", **config)
    assert done.completed, done.log
    assert "1 of 3 clients" in done.log
    here = run_federation(tmp_path / "here", 3, **config)
    for name in ("metrics.csv", "traffic.csv", "clients.csv"):
        assert through_ray.text(name) == here.text(name)
