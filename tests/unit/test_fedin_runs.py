"""FedIN in whole runs: traffic, metrics, whose pairs arrive, exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from server_app.rounds.in_process import InProcessGrid
from strategies.base.payload import ARRAYS
from tests.support import Outcome, run_federation

SETTINGS: dict[str, Any] = {
    "method": "fedin", "subset": 0.06, "batch_size": 16, "models": "resnet10-w4, resnet14-w4",
}  # fmt: skip


def train_scalars(run: Outcome, server_round: int) -> dict[tuple[str, str], int]:
    return {
        (row["client"], row["direction"]): int(row["scalars"])
        for row in run.rows("traffic")
        if row["purpose"] == "train" and row["round"] == str(server_round)
    }


def test_traffic_and_metrics_of_a_run(tmp_path: Path) -> None:
    """32x32 images: 16 pairs of 16x8x8 maps and 512 features, from round 2 on also down."""
    run = run_federation(tmp_path, 2, **SETTINGS)
    features = 16 * (16 * 8 * 8 + 512)
    for row in run.rows("clients"):
        client, parameters = row["client"], int(row["parameters"])
        first, second = train_scalars(run, 1), train_scalars(run, 2)
        assert first[client, "uplink"] == second[client, "uplink"] == parameters + features
        assert first[client, "downlink"] == parameters
        assert second[client, "downlink"] == parameters + features
    assert not run.metrics(metric="loss_in", round=1)
    assert len(run.metrics(metric="loss_in", round=2)) == 2
    assert len(run.metrics(metric="loss_prox")) == 4
    shares = [float(row["value"]) for row in run.metrics(metric="constraint_active", round=2)]
    assert len(shares) == 2
    assert all(0 < share < 1 for share in shares)


def test_two_clients_get_each_others_pairs_over_the_wire(tmp_path: Path) -> None:
    """The flat float arrays end with the pairs, in the order of the payload's fields."""
    seen: dict[tuple[str, int], set[bytes]] = {}

    class Tapped(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            if message.metadata.message_type == "train":
                client = int(reply.content["info"]["client-id"])
                number = message.metadata.group_id
                for way, content in (("down", message.content), ("up", reply.content)):
                    flat = max(
                        (item.numpy() for item in content[ARRAYS].values()), key=lambda x: x.size
                    )
                    rows = flat[-16 * 512 :].reshape(16, 512)
                    seen[f"{way}{number}", client] = {row.tobytes() for row in rows}
            return reply

    run_federation(tmp_path, 2, grid_class=Tapped, **SETTINGS)
    assert len(seen["up1", 0]) == 16
    assert seen["down2", 0] == seen["up1", 1]
    assert seen["down2", 1] == seen["up1", 0]


@pytest.mark.parametrize(
    "options",
    [
        {"pool": "latest", "anchor": "own", "alleviation": "exact", "scope": "body"},
        {"models": "cnn5, resnet10-w4, cnn2", "projection": "trainable", "noise": 0.2,
         "draw": "shared", "feature_batches": 2, "buffers": "local"},
    ],
)  # fmt: skip
def test_resumed_runs_are_exact_with_what_the_options_keep(
    options: dict[str, Any], tmp_path: Path
) -> None:
    own = {k if k == "models" else f"fedin__{k}": value for k, value in options.items()}
    settings = {**SETTINGS, "sample_fraction": 0.67, **own}
    whole = run_federation(tmp_path / "a", 3, **settings, num_rounds=3)
    run_federation(tmp_path / "b", 3, **settings, num_rounds=2)
    resumed = run_federation(tmp_path / "b", 3, **settings, num_rounds=3, resume="run")

    def rows(run: Outcome) -> list[dict[str, str]]:
        return [row for row in run.rows("metrics") if row["phase"] != "final"]

    assert rows(resumed) == rows(whole)
    assert {row["metric"] for row in rows(whole)} >= {"loss_in", "loss_prox", "constraint_active"}
