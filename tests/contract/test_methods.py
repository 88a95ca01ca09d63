"""Generated from the registry: every method keeps the contract, a new one with no new test code."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

from client_app.app import make_client_app
from server_app.rounds.in_process import InProcessGrid
from strategies.base.method import get_method, method_names
from strategies.base.payload import ARRAYS, MANIFEST, rules_of
from strategies.base.state import load_state, save_state
from tests.support import Outcome, run_federation

SETTINGS: dict[str, Any] = {
    "sample_fraction": 0.7,
    "image_size": 16,  # convolutions are most of the time otherwise
}


@dataclasses.dataclass(frozen=True)
class Plain:
    """A finished run of a method, and all contents with a payload that clients got and sent."""

    method: str
    run: Outcome
    payloads: list[RecordDict]


@pytest.fixture(scope="module", params=method_names())
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Two rounds of two of three clients, in which all three train: one run for several tests."""
    payloads: list[RecordDict] = []

    class Tapped(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            payloads.extend(m.content for m in (message, reply) if MANIFEST in m.content)
            return reply

    directory = tmp_path_factory.mktemp(request.param)
    run = run_federation(directory, 3, method=request.param, grid_class=Tapped, **SETTINGS)
    assert {row["client"] for row in run.metrics(phase="train")} == {"0", "1", "2"}
    return Plain(request.param, run, payloads)


@pytest.mark.parametrize("name", method_names())
def test_unlike_clients_finish_with_finite_numbers(name: str, tmp_path: Path) -> None:
    """Three architectures, a client with one example on a model with BatchNorm, a one-class one."""
    run = run_federation(
        tmp_path,
        6,
        method=name,
        alpha=0.05,
        min_examples=1,
        partition_seed=4,
        models="resnet10-w4, cnn5, cnn2",
        image_size=16,
    )
    sizes = [(int(r["train_examples"]), len(r["classes"].split())) for r in run.rows("clients")]
    assert sizes[0] == (1, 1)
    assert run.rows("clients")[0]["model"] == "resnet10-w4"
    assert run.config["status"] == "completed"
    values = [float(row["value"]) for row in run.rows("metrics")]
    assert values
    assert all(map(math.isfinite, values))
    losses = {row["client"] for row in run.metrics(phase="train", metric="loss")}
    trainable = {r["client"] for r in run.rows("clients") if r["train_examples"] != "0"}
    assert losses == trainable
    tested = {r["client"] for r in run.rows("clients") if r["test_examples"] != "0"}
    last = run.metrics(metric="accuracy", round=2)
    assert {row["client"] for row in last} == tested
    assert run.rows("failures") == []


@pytest.mark.parametrize("name", method_names())
def test_one_client_a_round(name: str, tmp_path: Path) -> None:
    """U25, U28: from one participant a round on, never-seen clients are evaluated as they are."""
    run = run_federation(
        tmp_path, 4, method=name, sample_fraction=0.25, num_rounds=3, image_size=16
    )
    for number in (1, 2, 3):
        trained = run.metrics(phase="train", metric="loss", round=number)
        assert len(trained) == 1
        down = [
            r
            for r in run.rows("traffic")
            if r["round"] == str(number)
            and r["direction"] == "downlink"
            and r["purpose"] == "train"
        ]
        assert [r["client"] for r in down] == [trained[0]["client"]]
        evaluated = {r["client"] for r in run.metrics(metric="accuracy", round=number)}
        assert evaluated == {"0", "1", "2", "3"}


def test_same_seed_same_metrics(
    plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where, as on real devices, all messages of a round are made before any is answered."""
    settings = {"method": plain.method, **SETTINGS}
    other = run_federation(tmp_path / "other", 3, seed=1, num_rounds=1, **settings)
    monkeypatch.setattr("server_app.rounds.exchange.window_of", lambda grid: None)
    again = run_federation(tmp_path / "again", 3, **settings)
    assert again.text("metrics.csv") == plain.run.text("metrics.csv")
    assert again.text("traffic.csv") == plain.run.text("traffic.csv")
    losses = [
        {row["value"] for row in run.metrics(phase="train", metric="loss", round=1)}
        for run in (plain.run, other)
    ]
    assert all(losses)
    assert losses[0].isdisjoint(losses[1])


@pytest.mark.parametrize("name", method_names())
def test_halves_are_declared_whole(name: str) -> None:
    """Payloads declare every field's shape; client states start with the client's own model."""
    method = get_method(name)
    for payload in (method.uplink, method.downlink):
        assert set(rules_of(payload)) == {f.name for f in dataclasses.fields(payload)}
    assert method.summary
    assert make_client_app(method) is not None
    assert dataclasses.is_dataclass(method.config)


def test_server_state_survives_a_checkpoint(plain: Plain, tmp_path: Path) -> None:
    """Saving and loading the state after two rounds restores every field bit for bit."""
    from server_app.records.checkpoints import Checkpoints
    from server_app.rounds.method_server import MethodServer
    from strategies.base.messages import ClientInfo
    from strategies.base.parsing import parse_run_config

    run = plain.run
    config = {k: v for k, v in run.config["config"].items() if k != "resume"}
    server = MethodServer(parse_run_config(config))
    infos = []
    for row in run.rows("clients"):
        values: dict[str, object] = {}
        for field in dataclasses.fields(ClientInfo):
            text = row["client" if field.name == "client_id" else field.name]
            if field.type == "list[int]":
                values[field.name] = [int(v) for v in text.split()]
            else:
                values[field.name] = int(text) if field.type == "int" else text
        infos.append(ClientInfo.from_record(values))
    server.admit(infos)
    loaded, fresh = (server.half.initial_state(server.context) for _ in range(2))
    assert Checkpoints(run.path / "checkpoints", 2).load_newest(loaded) == 2
    copy = tmp_path / "copy.safetensors"
    save_state(copy, loaded, {})
    again = load_state(copy, fresh)
    for field in dataclasses.fields(loaded):
        before, after = getattr(loaded, field.name), getattr(again, field.name)
        if isinstance(before, torch.Tensor):
            assert torch.equal(before, after)


def test_wire_is_within_two_percent_of_what_is_declared(plain: Plain) -> None:
    """The bytes of a payload's records against those of its elements, from 12 KB on.

    What is added, about 230 bytes for two dtypes, is 2.3 % of 10 KB.
    """
    assert plain.payloads
    for content in plain.payloads:
        entries = json.loads(str(content.config_records[MANIFEST]["entries"]))
        declared = sum(np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in entries)
        sent = content[ARRAYS].count_bytes() + content[MANIFEST].count_bytes()
        assert declared <= sent
        if declared > 12_000:
            assert sent <= 1.02 * declared


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
