"""With `keep-optimizer`, momentum and moments are private state: exact resume for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.contract.resume import optimizer_is_kept
from deploy.contract.runs import Candidate
from strategies.base.method import method_names

OWN: dict[str, dict[str, Any]] = {
    # What these do in a round depends on how many rounds there are, which differs in the halves.
    "cofed": {"cofed__exchange_round": 2},
    "fedkd": {"fedkd__energy_end": 0.95},
    "scalefl": {"scalefl__distil_from": 2},
}


@pytest.mark.parametrize("method", method_names())
def test_two_rounds_and_one_equal_three(method: str, tmp_path: Path) -> None:
    optimizer_is_kept(Candidate(method, OWN.get(method, {})), tmp_path, extended=True)
