"""What tests of the data share: a cache of their own, and a machine without data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import data
from data import standard_places


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a test an empty cache, in files and in memory."""
    monkeypatch.setenv("WILDFLOWER_CACHE", str(tmp_path / "cache"))
    data.clear_memory()
    yield
    data.clear_memory()


@pytest.fixture
def no_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the standard places; scenes are of digits then, which are quick to make."""
    monkeypatch.setattr(standard_places, "DEBIAN_DATASETS", tmp_path / "none")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
