"""For all tests: one thread, a cache of datasets shared within a session, and their order.

Tests of real Flower processes start a dozen of them each. Two at a time starve each other: Ray, for
one, gives up a start that takes more than 30 s. So one worker of pytest-xdist has them all, one
after the other and first of all, while the others have the rest. It mostly waits for them, so that
there is one worker more than there are cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
torch.set_num_threads(1)

REAL_PROCESSES = "tests/e2e/"


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many workers `-n auto` is."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Take the tests of real processes for one scope, where tests are dealt out by scope."""
    from xdist.scheduler import LoadScopeScheduling

    class OneAtATime(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(REAL_PROCESSES):
                return REAL_PROCESSES
            return super()._split_scope(nodeid)

    return OneAtATime(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests of real processes first in a worker's list: they take longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(REAL_PROCESSES))


@pytest.fixture(scope="session", autouse=True)
def dataset_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep the datasets that tests build out of the user's own cache."""
    path = tmp_path_factory.mktemp("cache")
    os.environ["WILDFLOWER_CACHE"] = str(path)
    return path


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Let files be written without `fsync`: no test is about a power cut.

    It is up to a sixth of a small run's time, on a disk that others use as well. Processes that
    tests start do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
