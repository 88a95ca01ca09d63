"""Exact resume for every method: a run killed with -9 and resumed equals one left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.contract.resume import killed_and_resumed_equals_whole
from deploy.contract.runs import Candidate
from strategies.base.method import method_names


@pytest.mark.parametrize("method", method_names())
def test_killed_and_resumed_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    """U21: per-client metrics, traffic and sampled clients are equal bit for bit."""
    killed_and_resumed_equals_whole(Candidate(method), tmp_path)
