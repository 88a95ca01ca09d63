"""Uplinks on the server's disk: only where asked for, as they came, and made anew by a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.records.payload_files import PayloadFiles
from strategies.base.options import ConfigError
from tests.support import Outcome, run_federation

FAST: dict[str, Any] = {"models": "cnn5", "subset": 0.08, "image_size": 16, "feature_dim": 32}


def kept(run: Outcome) -> PayloadFiles:
    return PayloadFiles(run.path / "payloads")


def test_nothing_is_kept_by_default(tmp_path: Path) -> None:
    assert not (run_federation(tmp_path, 2, num_rounds=1, **FAST).path / "payloads").exists()


def test_every_nth_round_is_kept_and_a_resume_makes_later_ones_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**FAST, "keep_payloads": 2}
    run = run_federation(tmp_path, 2, num_rounds=5, **config)
    assert "warning: keep-payloads = 2: what clients send is kept" in capsys.readouterr().out
    files = kept(run)
    assert (files.rounds(), files.clients(4)) == ([2, 4], [0, 1])
    uplink = files.read(4, 1)
    assert {key: item.shape for key, item in uplink.items()} == {
        "entangled_rep": (32,), "entangled_label": (10,),
    }  # fmt: skip
    before = {key: item.copy() for key, item in uplink.items()}
    stray = files.directory / "round-00006"
    stray.mkdir()
    run_federation(tmp_path, 2, num_rounds=5, resume="run", resume_round=4, **config)
    assert files.rounds() == [2, 4]
    for key, item in files.read(4, 1).items():
        np.testing.assert_array_equal(item, before[key])


def test_both_exchanges_of_a_round_are_kept(tmp_path: Path) -> None:
    config = {**FAST, "method": "cofed", "cofed__exchange_round": 1, "public_size": 16}
    run = run_federation(tmp_path, 2, num_rounds=1, keep_payloads=1, **config)
    files = kept(run)
    assert files.clients(1, 1) == [0, 1]
    assert files.clients(1, 2) == [0, 1]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = run_federation(tmp_path, 2, num_rounds=1, keep_payloads=1, **FAST)
    files = kept(run)
    (damaged,) = files.directory.glob("*/*client-00001*")
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(ConfigError, match=r"client-00001\.safetensors: cannot be read"):
        files.read(1, 1)
