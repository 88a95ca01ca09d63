"""With `keep-optimizer`, momentum and moments are private state: exact resume for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strategies.base.method import get_method, method_names
from strategies.base.round_files import round_file, rounds_in
from strategies.base.state import read_beside
from tests.support import run_federation

SETTINGS: dict[str, Any] = {
    "sample_fraction": 0.7,  # two of three: a client that skips a round keeps its state
    "subset": 0.08,
    "image_size": 16,
    "feature_dim": 32,
    "models": "cnn5, cnn4, resnet10-w4",
    "public_size": 32,
    "keep_optimizer": True,
}


OWN: dict[str, dict[str, Any]] = {
    # What these do in a round depends on how many rounds there are, which differs in the halves.
    "cofed": {"cofed__exchange_round": 2},
    "fedkd": {"fedkd__energy_end": 0.95},
}


def settings_of(method: str) -> dict[str, Any]:
    """Return settings under which there is something to keep."""
    if method == "fednova":  # its normalisation knows of one round's momentum only
        return {**SETTINGS, "method": method, "optimizer": "adam", "lr": 1e-3}
    usual = get_method(method).training.optimizer
    moving = {"momentum": 0.9} if usual == "sgd" else {}
    return {**SETTINGS, "method": method, **moving, **OWN.get(method, {})}


@pytest.mark.parametrize("method", method_names())
def test_two_rounds_and_one_equal_three(method: str, tmp_path: Path) -> None:
    settings = settings_of(method)
    whole = run_federation(tmp_path / "whole", 3, num_rounds=3, **settings)
    run_federation(tmp_path / "parts", 3, num_rounds=2, **settings)
    parts = run_federation(tmp_path / "parts", 3, num_rounds=3, resume="run", **settings)
    trained = [run.metrics(phase="train") for run in (whole, parts)]
    assert trained[0] == trained[1]
    for client in (whole.path / "clients").iterdir():
        newest = round_file(client, rounds_in(client)[-1])
        assert read_beside(newest), client
