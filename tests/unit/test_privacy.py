"""Clipping and noise on what clients send, what cannot be covered, and what it is worth."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app import noise
from server_app.records import privacy_ledger
from server_app.records.privacy_ledger import (
    SYSTEM,
    PrivacyLedger,
    epsilon,
    missing_accountant,
    privacy_summary,
)
from strategies.base.client import ClientContext
from strategies.base.method import get_method, method_names
from strategies.base.options import ConfigError, option_keys
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError, array, arrays
from strategies.base.protection import Privacy, protected, refusal, treatments
from strategies.base.rng import torch_generator
from strategies.base.treatments import CLASSES, REFUSED, SHARES, UNIT_ROWS, UPDATE
from tests.support import Outcome, run_federation

NOISE = {"privacy.clip-norm": 1.0, "privacy.noise-multiplier": 1.0}
CLIP = Privacy(clip_norm=2.0)
HOPELESS = {"cofed", "fedallrep", "fedgen", "fedkd", "fednova", "local"}
"""Methods that noise cannot cover, whatever their options."""
PROTECTED = {"fd", "fedavg", "fedmrl", "fedproto", "fedre", "lg-fedavg", "scaffold"}
"""Some of those that it can."""


@dataclasses.dataclass
class Down:
    """What was received."""

    weights: dict[str, NDArray[Any]] = arrays()


@dataclasses.dataclass
class Up:
    """One field of every treatment."""

    rep: NDArray[np.float32] = array("d")
    label: NDArray[np.float32] = array("C", minimum=0, protect=SHARES)
    ids: NDArray[np.int64] = array("m", dtype="int64", protect=CLASSES)
    rows: NDArray[np.float32] = array("m", "d")
    units: NDArray[np.float32] = array("e", "d", protect=UNIT_ROWS)
    weights: dict[str, NDArray[Any]] = arrays(protect=UPDATE)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def up(**fields: Any) -> Up:
    """Return an uplink that holds nothing but these fields."""
    empty = np.zeros((0, 2), np.float32)
    usual: dict[str, Any] = {
        "rep": floats(0, 0), "label": floats(0, 0, 0), "ids": np.zeros(0, np.int64),
        "rows": empty, "units": empty, "weights": {},
    }  # fmt: skip
    return Up(**{**usual, **fields})


def sent(payload: Up, privacy: Privacy, down: Down | None = None, seed: int = 0) -> Up:
    generator = torch.Generator().manual_seed(seed)
    return protected(payload, down or Down({}), privacy, 3, generator)


def refused(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_run_config({key.replace("__", ".").replace("_", "-"): v for key, v in values.items()})
    return str(caught.value)


# What is sent -------------------------------------------------------------------------------------


def test_off_nothing_is_touched() -> None:
    payload = up(rep=floats(3, 4))
    assert sent(payload, Privacy()) is payload


def test_all_arrays_together_are_shortened_to_the_norm() -> None:
    """|(4, 4, 2, 8, 0)| = 10, so that a norm of 2 leaves a fifth of each."""
    payload = up(rep=floats(4, 4), weights={"a": floats(3, 9), "n": np.array(7)})
    down = Down({"a": floats(1, 1), "n": np.array(5)})
    result = sent(payload, CLIP, down)
    assert np.allclose(result.rep, [0.8, 0.8])
    assert np.allclose(result.weights["a"], [1 + 0.4, 1 + 1.6])  # received + (sent - received) / 5
    assert result.weights["n"] == 7
    assert payload.rep.tolist() == [4, 4]
    assert payload.weights["a"].tolist() == [3, 9]


def test_what_is_short_enough_stays_bit_for_bit() -> None:
    payload = up(rep=floats(0.1, 0.2), weights={"a": floats(1e8 + 8)})
    result = sent(payload, CLIP, Down({"a": floats(1e8 + 8)}))
    assert result.rep is payload.rep
    assert result.weights["a"] is payload.weights["a"]


def test_weights_that_were_not_received_in_this_shape_count_themselves() -> None:
    result = sent(up(weights={"a": floats(3, 4)}), CLIP, Down({"a": floats(1, 1, 1)}))
    assert np.allclose(result.weights["a"], [1.2, 1.6])


def test_shares_stay_shares_and_unit_rows_stay_units() -> None:
    payload = up(rep=floats(30, 40), label=floats(0, 0.25, 0.75), units=floats(0.6, 0.8)[None])
    clipped = sent(payload, CLIP)
    assert np.allclose(clipped.label, [0, 0.25, 0.75])
    assert np.allclose(clipped.units, [[0.6, 0.8]])
    noisy = sent(payload, Privacy(2.0, 1.0))
    assert noisy.label.min() >= 0
    assert noisy.label.sum() == pytest.approx(1)
    assert np.linalg.norm(noisy.units[0]) == pytest.approx(1)


def test_noise_has_its_deviation_and_hits_every_number() -> None:
    """500 draws of 80 numbers: one deviation is known to 3 %, that of all to 0.4 %."""
    privacy = Privacy(clip_norm=2.0, noise_multiplier=1.5)
    kept = np.full(40, 5, np.float32)
    payload = up(rep=np.full(40, 3, np.float32), weights={"a": kept, "n": np.array(7)})
    down = Down({"a": kept, "n": np.array(4)})
    results = [sent(payload, privacy, down, seed) for seed in range(500)]
    values = np.array([[*r.rep, *r.weights["a"]] for r in results])
    shortened = [2 / math.sqrt(40)] * 40 + [5] * 40
    assert (values - shortened).std() == pytest.approx(3.0, rel=0.015)
    assert np.allclose(values.std(axis=0), 3.0, rtol=0.15)
    assert np.allclose(values.mean(axis=0), shortened, atol=0.6)
    assert np.abs(np.corrcoef(values.T) - np.eye(80)).max() < 0.25
    assert {int(r.weights["n"]) for r in results} == {4}  # a counter goes back as it was received


def test_noise_hides_which_classes_a_client_has() -> None:
    payload = up(ids=np.array([2]), rows=floats(3, 4)[None])
    result = sent(payload, Privacy(100.0, 1e-6))
    assert result.ids.tolist() == [0, 1, 2]
    assert np.allclose(result.rows, [[0, 0], [0, 0], [3, 4]], atol=1e-2)
    assert (result.rows[:2] != 0).all()
    assert sent(payload, CLIP).ids.tolist() == [2]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_sent(value: float) -> None:
    with pytest.raises(PayloadError, match="weights/a: holds NaN or infinite"):
        sent(up(weights={"a": floats(value)}), CLIP)


def test_a_counter_without_a_received_one_is_refused_by_name() -> None:
    with pytest.raises(PayloadError, match="weights/n: dtype int64 cannot be protected"):
        sent(up(weights={"n": np.array(7)}), Privacy(1.0, 1.0))


def test_a_misspelt_treatment_does_not_pass() -> None:
    with pytest.raises(ValueError, match="protect='vlaue'"):
        array("d", protect="vlaue")


# Where noise comes from ---------------------------------------------------------------------------


def drawn(**changed: Any) -> list[float]:
    about = {"run": SimpleNamespace(seed=3), "client_id": 1, "server_round": 2, "exchange": 1}
    about |= changed
    context = SimpleNamespace(**about)
    context.generator = lambda purpose: ClientContext.generator(context, purpose)  # type: ignore[arg-type]
    generator = noise.noise_generator(context)  # type: ignore[arg-type]
    return torch.randn(4, generator=generator).tolist()


def test_in_a_simulation_noise_follows_from_seed_client_round_and_exchange() -> None:
    others = [{"client_id": 2}, {"server_round": 3}, {"exchange": 2}]
    others.append({"run": SimpleNamespace(seed=4)})
    assert drawn() == drawn()
    assert len({tuple(drawn(**other)) for other in [{}, *others]}) == 5


def test_on_a_device_noise_does_not_follow_from_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "simulated", lambda: False)
    known = torch.randn(4, generator=torch_generator(3, 1, 2, "privacy-noise-1")).tolist()
    assert drawn() != drawn()
    assert drawn() != known


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", method_names())
def test_every_method_is_protected_or_refuses_by_name(name: str) -> None:
    method = get_method(name)
    noisy = Privacy(1.0, 1.0)
    hopeless = refusal(method, method.config(), noisy, curable=True)
    assert name not in (HOPELESS if hopeless is None else PROTECTED)
    options = {
        rule.absent_with[0]: rule.absent_with[1]
        for rule in (f.metadata["array"] for f in dataclasses.fields(method.uplink))
        if rule.absent_with
    }
    own = option_keys(method.config, f"{name}.")
    given = {f"{name}.{key.replace('_', '-')}": value for key, value in options.items()}
    keys = {key: value for key, value in given.items() if key in own}
    values = {"method": name, **NOISE, **keys}
    if hopeless is None:
        assert parse_run_config(values).privacy.noisy
    else:
        with pytest.raises(ConfigError) as caught:
            parse_run_config(values)
        text = str(caught.value)
        assert text.startswith(f"privacy.noise-multiplier = 1.0: method {name} sends ")
        assert "methods that noise can protect: " in text
        assert name not in text.partition("can protect: ")[2].split(", ")


def test_a_refusal_names_field_and_remedy() -> None:
    text = refused(method="fedavg", privacy__clip_norm=1.0, privacy__noise_multiplier=2)
    assert "fedavg sends 'buffers'" in text
    assert "set fedavg.buffers='local'" in text
    fedproto = {"method": "fedproto", "fedproto__prototype_mean": "weighted"}
    text = refused(**fedproto, privacy__clip_norm=1.0, privacy__noise_multiplier=2)
    assert "sends 'counts', of dtype int64" in text
    assert "set fedproto.prototype-mean='uniform'" in text
    assert "'label_counts'" in refused(
        method="fedgen", privacy__clip_norm=1.0, privacy__noise_multiplier=1
    )
    assert parse_run_config({"method": "fedgen", "privacy.clip-norm": 1.0}).privacy == Privacy(1.0)


def test_noise_without_a_norm_is_refused() -> None:
    assert "set privacy.clip-norm" in refused(privacy__noise_multiplier=1.0)


def test_what_is_declared_by_nobody_is_refused() -> None:
    @dataclasses.dataclass
    class Undeclared:
        free: NDArray[np.float32] = array("n", "d")
        count: NDArray[np.float32] = array("C", degree=0)
        state: dict[str, NDArray[Any]] = arrays()

    assert set(treatments(Undeclared).values()) == {REFUSED}


def test_a_missing_accountant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_ledger, "find_spec", lambda name: None)
    assert missing_accountant(Privacy(1.0)) is None
    assert "pip install 'wildflower[privacy]'" in str(missing_accountant(Privacy(1.0, 1.0)))


# What it is worth ---------------------------------------------------------------------------------


def normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize(("multiplier", "messages"), [(2.0, 1), (1.0, 10), (20.0, 100), (0.5, 3)])
def test_epsilon_is_that_of_the_gaussian_mechanism(multiplier: float, messages: int) -> None:
    """Balle and Wang 2018, theorem 8, for two contributions that are 2 C apart."""
    mu = 2 * math.sqrt(messages) / multiplier
    found = epsilon(multiplier, messages, 1e-5)
    delta = normal(mu / 2 - found / mu) - math.exp(found) * normal(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_published_values_of_epsilon() -> None:
    """mu = 1 at delta 1e-5; and below the classical bound, Dwork and Roth 2014, theorem A.1."""
    assert epsilon(2.0, 1, 1e-5) == pytest.approx(4.377178, abs=1e-6)
    assert epsilon(2.0, 0, 1e-5) == 0
    for classical in (0.2, 0.5, 0.9):
        sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / classical
        assert epsilon(2 * sigma, 1, 1e-5) < classical


def test_messages_that_are_made_again_count_only_where_noise_is_new(tmp_path: Path) -> None:
    privacy = Privacy(1.0, 2.0)
    for place, devices, most in (("simulation", False, 2), ("devices", True, 3)):
        directory = tmp_path / place
        directory.mkdir()
        for exchange_of in ((1, [0, 1]), (2, [1]), (2, [1])):  # round 2 is made again
            ledger = PrivacyLedger(directory, privacy, devices=devices)
            ledger.note(exchange_of[0], 1, exchange_of[1])
        found = privacy_summary(directory, privacy)
        assert found is not None
        assert found["messages_of_a_client"] == most
        assert found["epsilon"] == epsilon(2.0, most, 1e-5)
        assert (found["noise_from"] == [SYSTEM]) == devices
    assert privacy_summary(tmp_path, Privacy()) is None
    assert privacy_summary(tmp_path, Privacy(1.0)) == {"clip_norm": 1.0, "noise_multiplier": 0.0}


# Whole runs ---------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {
    "subset": 0.06, "image_size": 16, "feature_dim": 16, "models": "cnn1", "num_rounds": 1,
}  # fmt: skip
NOISY: dict[str, Any] = {
    "privacy__clip_norm": 1.0, "privacy__noise_multiplier": 2.0, "fedavg__buffers": "local",
}  # fmt: skip


def run(directory: Path, method: str, **config: Any) -> Outcome:
    return run_federation(directory, 2, method=method, **{**QUICK, **config})


def test_a_norm_that_nothing_reaches_changes_no_number(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", "fedavg")
    clipped = run(tmp_path / "clipped", "fedavg", privacy__clip_norm=1e6)
    assert plain.text("metrics.csv") == clipped.text("metrics.csv")
    assert "privacy" not in plain.summary
    assert not (plain.path / "privacy.csv").exists()


def test_a_protected_run_resumes_exactly(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "fedavg", **NOISY, num_rounds=2)
    first = run(tmp_path / "parts", "fedavg", **NOISY)
    parts = run(tmp_path / "parts", "fedavg", **NOISY, num_rounds=2, resume=first.path.name)
    assert parts.text("metrics.csv") == whole.text("metrics.csv")
    assert parts.summary["privacy"] == whole.summary["privacy"]
    found = whole.summary["privacy"]
    assert found["messages_of_a_client"] == 2
    assert found["epsilon"] > found["epsilon_round"] == epsilon(2.0, 1, 1e-5)
    with (whole.path / "privacy.csv").open(newline="") as file:
        assert [row["client"] for row in csv.DictReader(file)] == ["0", "1"] * 2


@pytest.mark.parametrize("method", ["fedre", "fedproto"])
def test_a_protected_run_says_epsilon_and_what_it_does_not_cover(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run(tmp_path, method, **NOISY, report=True)
    text = capsys.readouterr().out
    assert "epsilon does not cover what is measured" in text
    assert "epsilon 4.377 for the run, 4.377 for a round, at delta 1e-05" in text
    assert "protects nobody" in text
    assert outcome.summary["clients_failed"] == 0
    assert "privacy, epsilon" in outcome.text("report.html")
