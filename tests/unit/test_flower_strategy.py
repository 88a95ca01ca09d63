"""A method as Flower's own Strategy: in Flower's loop, with the numbers of ours."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy
from safetensors.torch import load_file

from client_app.app import app as client_app
from server_app.flower_strategy import FlowerStrategy
from server_app.records.recorder import weighted_mean
from server_app.rounds.exchange import RunError
from server_app.rounds.in_process import InProcessGrid
from strategies.base.parsing import parse_run_config
from strategies.base.state import save_state
from tests.support import SMALL, Outcome, run_federation

CLIENTS = 3
SETTINGS: dict[str, Any] = {
    "subset": 0.08,
    "image_size": 16,
    "feature_dim": 32,
    "models": "cnn5, cnn4, resnet10-w4",
}


def a_strategy(directory: Path, **settings: Any) -> tuple[FlowerStrategy, InProcessGrid]:
    """Return a strategy with these settings, and the clients it is for."""
    keys = {key.replace("_", "-"): value for key, value in {**SETTINGS, **settings}.items()}
    config = {**SMALL, "output-dir": str(directory), "run-name": "run", **keys}
    return FlowerStrategy(parse_run_config(config)), InProcessGrid(client_app, CLIENTS, config)


def means_of(run: Outcome, server_round: int) -> dict[str, float | None]:
    """Return the means over clients of a round's evaluations, from metrics.csv."""
    rows = run.metrics(round=server_round, phase="pre")
    names = {row["metric"] for row in rows}
    return {
        name: weighted_mean(
            (float(r["value"]), int(r["examples"])) for r in rows if r["metric"] == name
        )
        for name in names
    }


@pytest.mark.parametrize("method", ["fedre", "fedavg"])
def test_flowers_loop_gives_our_numbers(method: str, tmp_path: Path) -> None:
    ours = run_federation(tmp_path / "ours", CLIENTS, method=method, **SETTINGS)
    strategy, grid = a_strategy(tmp_path / "flowers", method=method)
    result = Strategy.start(strategy, grid, ArrayRecord(), num_rounds=2)
    for row in ours.rows("rounds")[:2]:
        number = int(row["round"])
        means = dict(result.evaluate_metrics_clientapp[number])
        assert means == means_of(ours, number)
        assert means["accuracy"] == float(row["accuracy"])
        aggregated = dict(result.train_metrics_clientapp[number])
        rows = ours.metrics(round=number, phase="aggregate")
        assert aggregated == {r["metric"]: float(r["value"]) for r in rows}
    save_state(tmp_path / "state", strategy.server.state, {})
    checkpoint = ours.path / "checkpoints" / "round-00002.safetensors"
    state, saved = load_file(tmp_path / "state"), load_file(checkpoint)
    assert state.keys() == saved.keys()
    assert all(torch.equal(item, saved[key]) for key, item in state.items())
    assert not (tmp_path / "flowers" / "run" / "metrics.csv").exists()


def test_flowers_loop_leaves_out_who_has_not_trained(tmp_path: Path) -> None:
    settings = {**SETTINGS, "sample_fraction": 0.4, "evaluate_untrained": False}
    ours = run_federation(tmp_path / "ours", CLIENTS, **settings)
    strategy, grid = a_strategy(tmp_path / "flowers", **settings)
    result = Strategy.start(strategy, grid, ArrayRecord(), num_rounds=2)
    assert [row["evaluated"] for row in ours.rows("rounds")[:2]] == ["0", "1"]
    assert 1 not in result.evaluate_metrics_clientapp
    assert dict(result.evaluate_metrics_clientapp[2]) == means_of(ours, 2)


def test_replies_in_any_order_aggregate_to_the_same_state(tmp_path: Path) -> None:
    class Shuffled(InProcessGrid):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            random.Random(len(replies)).shuffle(replies)
            return replies[::-1]

    found = []
    for name in ("as-they-come", "shuffled"):
        strategy, grid = a_strategy(tmp_path / name, method="fedre")
        if name == "shuffled":
            grid = Shuffled(client_app, CLIENTS, grid.contexts[1000].run_config)
        result = Strategy.start(strategy, grid, ArrayRecord(), num_rounds=2)
        weight = strategy.server.state.head_weight.tolist()
        found.append((weight, {n: dict(m) for n, m in result.evaluate_metrics_clientapp.items()}))
    assert found[0] == found[1]


def test_a_reply_that_is_refused_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Damaging(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            if message.metadata.message_type == "train" and message.metadata.dst_node_id == 1000:
                reply.content["info"]["num-examples"] = -1
            return reply

    strategy, grid = a_strategy(tmp_path, method="local", num_rounds=1)
    damaging = Damaging(client_app, CLIENTS, grid.contexts[1000].run_config)
    Strategy.start(strategy, damaging, ArrayRecord(), num_rounds=1)
    printed = capsys.readouterr().out
    assert "round 1: client 0: left out: num-examples: -1, expected" in printed


def test_a_round_without_a_valid_reply_is_an_error(tmp_path: Path) -> None:
    strategy, grid = a_strategy(tmp_path, method="local")
    list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    with pytest.raises(RunError, match="round 1: no participant answered validly"):
        strategy.aggregate_train(1, [])


def test_a_round_of_several_exchanges_is_refused_by_name(tmp_path: Path) -> None:
    strategy, grid = a_strategy(tmp_path, method="fedmuscle", public_size=64, num_rounds=1)
    reason = r"fedmuscle: round 1 takes 2 exchanges, and Flower's hooks make one; call start\(\)"
    with pytest.raises(NotImplementedError, match=reason):
        Strategy.start(strategy, grid, ArrayRecord(), num_rounds=1)


def test_start_runs_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With registration, records, checkpoints and report, as `flwr run` does."""
    ours = run_federation(tmp_path / "ours", CLIENTS, method="fedre", num_rounds=1, **SETTINGS)
    strategy, grid = a_strategy(tmp_path / "start", method="fedre", num_rounds=1, report=True)
    result = strategy.start(grid)
    run = Outcome(tmp_path / "start" / "run")
    assert run.text("metrics.csv") == ours.text("metrics.csv")
    assert run.config["status"] == "completed"
    assert (run.path / "report.html").is_file()
    assert set(result.train_metrics_clientapp) == {1}
    capsys.readouterr()
    strategy.summary()
    assert capsys.readouterr().out.startswith("fedre: one randomly entangled representation")


def test_a_loop_of_ones_own_counts_what_clients_tell(tmp_path: Path) -> None:
    """As a run does: the same rows, and the same epsilon."""
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    noise = {"privacy.clip-norm": 1.0, "privacy.noise-multiplier": 2.0}
    ours = run_federation(tmp_path / "ours", CLIENTS, method="fedproto", **SETTINGS, **noise)
    strategy, grid = a_strategy(tmp_path / "flowers", method="fedproto", **noise)
    assert strategy.privacy is not None
    assert strategy.privacy["epsilon"] == 0
    Strategy.start(strategy, grid, ArrayRecord(), num_rounds=strategy.run.num_rounds)
    assert strategy.privacy == ours.summary["privacy"]
    kept = tmp_path / "flowers" / "run" / "privacy.csv"
    assert kept.read_text() == (ours.path / "privacy.csv").read_text()
