"""Generated from the registry: every method keeps the contract, a new one with no new test code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deploy.contract.rounds import (
    Plain,
    halves_are_declared,
    one_client_a_round,
    payloads_stay_as_sent,
    plain_run,
    same_seed_same_numbers,
    unlike_clients_finish,
    wire_is_what_is_declared,
)
from deploy.contract.runs import Candidate
from deploy.contract.server_state import server_half_holds_nothing, state_survives_a_checkpoint
from strategies.base.method import method_names
from tests.support import run_federation


@pytest.fixture(scope="module", params=method_names())
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """One run for several tests."""
    return plain_run(Candidate(request.param), tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("name", method_names())
def test_unlike_clients_finish_with_finite_numbers(name: str, tmp_path: Path) -> None:
    """Three architectures, a client with one example on a model with BatchNorm, a one-class one."""
    unlike_clients_finish(Candidate(name), tmp_path)


@pytest.mark.parametrize("name", method_names())
def test_one_client_a_round(name: str, tmp_path: Path) -> None:
    """U25, U28: from one participant a round on, never-seen clients are evaluated as they are."""
    one_client_a_round(Candidate(name), tmp_path)


def test_same_seed_same_metrics(plain: Plain, tmp_path: Path) -> None:
    """Also where, as on real devices, all messages of a round are made before any is answered."""
    same_seed_same_numbers(plain, tmp_path)


@pytest.mark.parametrize("name", method_names())
def test_halves_are_declared_whole(name: str, tmp_path: Path) -> None:
    halves_are_declared(Candidate(name), tmp_path)


def test_server_state_survives_a_checkpoint(plain: Plain, tmp_path: Path) -> None:
    state_survives_a_checkpoint(plain, tmp_path)


def test_the_server_half_holds_nothing(plain: Plain, tmp_path: Path) -> None:
    server_half_holds_nothing(plain, tmp_path)


def test_wire_is_within_two_percent_of_what_is_declared(plain: Plain, tmp_path: Path) -> None:
    wire_is_what_is_declared(plain, tmp_path)
    payloads_stay_as_sent(plain, tmp_path)


@pytest.mark.parametrize("name", ["fedre", "fedproto", "fd", "fml"])
def test_cnn_resnet_mobilenet_and_transformer_together(name: str, tmp_path: Path) -> None:
    """U01: one method of every family on the ten-model list's unlike members (86 M parameters)."""
    run = run_federation(
        tmp_path,
        4,
        method=name,
        models="cnn5, resnet18, mobilenetv2, vit-b32",
        partition="iid",
        subset=0.05,
        num_rounds=1,
    )
    assert {r["raw_dim"] for r in run.rows("clients")} == {"500", "512", "1280", "768"}
    assert {r["feature_dim"] for r in run.rows("clients")} == {"512"}
    assert len(run.metrics(phase="final", metric="accuracy")) == 4
    shutil.rmtree(run.path / "clients")  # 340 MB of a transformer
