"""What unit tests share: data in a cache of their own, and a user's folder with code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import data
from data import standard_places
from models import registry


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a test an empty cache, in files and in memory."""
    monkeypatch.setenv("WILDFLOWER_CACHE", str(tmp_path / "cache"))
    data.clear_memory()
    yield
    data.clear_memory()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder; what its modules leave in this process is taken away again."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    path, modules = list(sys.path), set(sys.modules)
    place = tmp_path / "häuser und gärten"
    place.mkdir()
    yield place
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "") or place).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def no_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the standard places; scenes are of digits then, which are quick to make."""
    monkeypatch.setattr(standard_places, "DEBIAN_DATASETS", tmp_path / "none")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
