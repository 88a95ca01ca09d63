"""The learning rate of every round against values worked out by hand, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server_app.console import settings
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from tests.support import run_federation

SETTINGS: dict[str, Any] = {"subset": 0.08, "image_size": 16, "feature_dim": 16, "models": "cnn5"}


def shares(rounds: int, **config: Any) -> list[float]:
    keys = {key.replace("_", "-"): value for key, value in config.items()}
    schedule = parse_run_config({"num-rounds": rounds, **keys}).lr_by_round
    return [schedule.share(number) for number in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"warmup_rounds": 3}, [0.25, 0.5, 0.75, 1]),
        # (1 + cos 0) / 2, (1 + cos 45) / 2, (1 + cos 90) / 2, (1 + cos 135) / 2
        ({"lr_schedule": "cosine"}, [1, 0.8535533905932737, 0.5, 0.14644660940672624]),
        ({"lr_schedule": "cosine", "warmup_rounds": 2}, [1 / 3, 2 / 3, 1, 0.5]),
        ({"lr_schedule": "step", "lr_step_rounds": 2}, [1, 1, 0.1, 0.1]),
        ({"lr_schedule": "step", "lr_step_rounds": 1, "lr_decay": 0.5}, [1, 0.5, 0.25, 0.125]),
        ({"lr_schedule": "step", "lr_step_rounds": 2, "warmup_rounds": 1}, [0.5, 1, 1, 0.1]),
        ({"lr_schedule": "exponential"}, [1, 0.99, 0.9801, 0.970299]),
        ({"lr_schedule": "exponential", "lr_decay": 0.5, "warmup_rounds": 1}, [0.5, 1, 0.5, 0.25]),
    ],
)
def test_share_of_every_round(config: dict[str, Any], expected: list[float]) -> None:
    assert shares(4, **config) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"warmup-rounds": 10}, "warmup-rounds = 10: expected less than num-rounds = 10"),
        ({"lr-decay": 0.5}, "lr-decay = 0.5: expected \"auto\" with lr-schedule = 'constant'"),
        ({"lr-decay": 0.5, "lr-schedule": "cosine"}, "set lr-schedule to step or exponential"),
        (
            {"method": "fedapen", "lr-schedule": "cosine"},
            "by fedapen.lr-decay = 0.99 in every round; expected constant, or",
        ),
        (
            {"method": "fednova", "keep-optimizer": True, "momentum": 0.9},
            "keep-optimizer = True: expected false with fednova and momentum = 0.9",
        ),
        ({"lr-schedule": "linear"}, "one of constant, cosine, step, exponential"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_run_config(config)
    assert message in str(error.value)


def test_what_can_be_meant_is_not_refused() -> None:
    for config in (
        {"method": "fedapen", "lr-schedule": "cosine", "fedapen.lr-decay": 1},
        {"method": "fedapen", "warmup-rounds": 2},
        {"method": "fednova", "keep-optimizer": True, "momentum": 0.9, "optimizer": "adam"},
        {"method": "fednova", "keep-optimizer": True},
    ):
        assert parse_run_config(config).method == config["method"]


def test_a_run_says_its_rates_and_what_has_no_effect() -> None:
    def said(**config: Any) -> str:
        keys = {key.replace("_", "-"): value for key, value in config.items()}
        return settings(parse_run_config({"method": "local", **keys}))

    assert "learning rate" not in said()
    assert "learning rate by round: 0.01 in 1, 0.005 in 2" in said(
        lr_schedule="exponential", lr_decay=0.5
    )
    assert "0.0025 in 3, 1.95e-05 in 10" in said(lr_schedule="exponential", lr_decay=0.5)
    assert "keep-optimizer = true keeps nothing here" in said(keep_optimizer=True)
    assert "keeps nothing" not in said(keep_optimizer=True, momentum=0.9)
    assert "keeps nothing" not in said(keep_optimizer=True, optimizer="adam")


def test_the_rate_is_recorded_where_it_varies(tmp_path: Path) -> None:
    config = {**SETTINGS, "method": "local", "num_rounds": 3, "lr": 0.2}
    plain = run_federation(tmp_path / "plain", 2, **config)
    assert plain.metrics(metric="lr") == []
    run = run_federation(tmp_path / "cosine", 2, lr_schedule="cosine", **config)
    # 0.2 (1 + cos(0, 60, 120)) / 2
    rates = [float(row["value"]) for row in run.metrics(metric="lr", client=1)]
    assert rates == pytest.approx([0.2, 0.15, 0.05])
    losses = [
        [row["value"] for row in r.metrics(metric="loss", phase="train")] for r in (plain, run)
    ]
    assert losses[0][:2] == losses[1][:2]  # round 1 is the same
    assert set(losses[0][2:]).isdisjoint(losses[1][2:])


def test_a_cosine_keeps_its_number_of_rounds(tmp_path: Path) -> None:
    """Its rates depend on how many there are: more of them would be another schedule."""
    config = {**SETTINGS, "method": "local", "num_rounds": 2}
    run = run_federation(tmp_path, 2, lr_schedule="cosine", **config)
    before = (run.path / "config.json").read_bytes()
    longer = {**config, "num_rounds": 4, "resume": "run"}
    with pytest.raises(ConfigError) as error:
        run_federation(tmp_path, 2, lr_schedule="cosine", **longer)
    assert "num-rounds: was 2, now 4 (lr-schedule = 'cosine' gives every round" in str(error.value)
    assert (run.path / "config.json").read_bytes() == before
