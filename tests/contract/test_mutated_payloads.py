"""Clients that answer with damaged uplinks: each is refused by name, and nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.contract.refusals import damaged_uplinks_are_refused
from deploy.contract.runs import Candidate

METHODS = ("fedre", "fedproto", "fedavg", "fedin")
"""50 damaged answers for each method; all four make 200."""


@pytest.mark.parametrize("method", METHODS)
def test_damaged_uplinks_are_refused_by_name(method: str, tmp_path: Path) -> None:
    damaged_uplinks_are_refused(Candidate(method), tmp_path, seed=METHODS.index(method))
