"""Fixtures for all tests: one thread, and a cache of datasets shared within a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def dataset_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep the datasets that tests build out of the user's own cache."""
    path = tmp_path_factory.mktemp("cache")
    os.environ["WILDFLOWER_CACHE"] = str(path)
    return path
