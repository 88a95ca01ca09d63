"""A private Flower for the tests that start real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.flower.simulation import FlowerRun, FlowerSimulation
from tests.support import OWN_MODEL, SMALL, Outcome, make_hostile

ROOT = Path(__file__).parents[2]
LIMIT = 600.0
"""Seconds that one run may take, many times what it needs."""

Simulate = Callable[..., tuple[FlowerRun, Outcome]]


@pytest.fixture(scope="module")
def flower(
    dataset_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlowerSimulation]:
    """One SuperLink for a module's runs; clients can import `own_models`.

    First on its path lies what a user may have: files and folders with the names of our packages.
    """
    modules = tmp_path_factory.mktemp("modules")
    (modules / "own_models.py").write_text(OWN_MODEL)
    make_hostile(modules)
    environment = {"WILDFLOWER_CACHE": str(dataset_cache), "PYTHONPATH": str(modules)}
    with FlowerSimulation(environment=environment) as simulation:
        yield simulation


@pytest.fixture
def simulate(flower: FlowerSimulation) -> Simulate:
    """Run the app through `flwr run`; keywords as for `run_federation`."""

    def run(
        directory: Path, clients: int = 3, workers: int = 2, **config: Any
    ) -> tuple[FlowerRun, Outcome]:
        keys = {k.replace("__", ".").replace("_", "-"): v for k, v in config.items()}
        name = str(keys.get("resume") or keys.setdefault("run-name", "run"))
        values = {**SMALL, "output-dir": str(directory), **keys}
        done = flower.run(ROOT, values, clients=clients, workers=workers, timeout=LIMIT)
        return done, Outcome(directory / name)

    return run
