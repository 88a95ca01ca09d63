"""MOON: the contrastive term by hand, training against a naive copy, whose last model is kept."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strategies.base.client import ClientContext
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.state import load_state
from strategies.common.layerwise import split_state
from strategies.common.training import device_batches, train_epochs
from strategies.common.weights import state_arrays
from strategies.moon import Client, ClientState, Downlink, Uplink, contrastive
from tests.support import Outcome, run_federation
from tests.unit.test_training import a_context


def test_contrastive_term_by_hand() -> None:
    """cos = 0.6 and 0 in the first row, 0 and 1 in the second; tau = 0.5."""
    z = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    z_glob = torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    z_prev = torch.tensor([[-4.0, 3.0], [0.0, 9.0]])
    rows = [
        -math.log(math.exp(1.2) / (math.exp(1.2) + 1)),
        -math.log(1 / (1 + math.exp(2))),
    ]
    found = contrastive(z, z_glob, z_prev, 0.5)
    assert found.item() == pytest.approx(sum(rows) / 2, rel=1e-6)
    assert contrastive(z, z_prev, z_glob, 0.5).item() == pytest.approx(
        (rows[0] + 1.2 + rows[1] - 2) / 2, rel=1e-6
    )


def test_it_is_in_float32_and_finite_at_small_temperatures() -> None:
    z, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]])
    assert contrastive(z.bfloat16(), z.bfloat16(), far.bfloat16(), 0.5).dtype == torch.float32
    assert contrastive(z, z, far, 1e-3).item() == pytest.approx(0, abs=1e-6)
    assert contrastive(z, far, z, 1e-3).item() == pytest.approx(2000)


def test_equal_models_give_log_two_and_no_gradient() -> None:
    z = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    other = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    term = contrastive(z, other, other, 0.5)
    assert term.item() == torch.tensor(2.0).log().item()
    term.backward()
    assert z.grad is not None
    torch.testing.assert_close(z.grad, torch.zeros_like(z), rtol=0, atol=1e-8)


# Training -----------------------------------------------------------------------------------------


def a_moon(examples: int = 12, batch_size: int = 4, **config: Any) -> ClientContext:
    return a_context(examples, method="moon", batch_size=batch_size, lr=0.02, **config)


def received_by(context: ClientContext, half: Client, state: ClientState, seed: int) -> Downlink:
    """Put a model drawn from a seed into the state."""
    torch.manual_seed(seed)
    weights, buffers = map(state_arrays, split_state(context.build_model()))
    down = Downlink(weights, {} if context.config.buffers == "local" else buffers)
    half.receive(context, state, down)
    return down


def entries(module: nn.Module) -> dict[str, Tensor]:
    return {name: item.clone() for name, item in module.state_dict().items()}


def test_first_participation_is_log_two_times_mu_and_trains_as_fedavg() -> None:
    moved = []
    for mu in (3.0, 0.0):
        context, half = a_moon(**{"moon.mu": mu}), Client()
        state = half.build(context)
        assert state.previous == {}
        down = received_by(context, half, state, 0)
        _, metrics = half.train(context, state, down)
        assert metrics["loss_contrastive"] == pytest.approx(mu * math.log(2), rel=1e-7)
        assert metrics["loss"] == pytest.approx(metrics["loss_ce"] + metrics["loss_contrastive"])
        moved.append(entries(state.model))
    for name, item in moved[0].items():
        torch.testing.assert_close(item, moved[1][name], rtol=1e-4, atol=1e-5)


def test_second_participation_equals_a_naive_copy() -> None:
    """The loss written out as in the paper, on models kept aside, in evaluation mode.

    In one step on all examples: over several, rounding that differs between processors grows.
    """
    context, half = a_moon(**{"moon.mu": 2.0, "moon.tau": 0.3, "batch_size": 12}), Client()
    state = half.build(context)
    half.train(context, state, received_by(context, half, state, 0))
    last = copy.deepcopy(state.model).eval()
    assert state.previous.keys() == last.state_dict().keys()
    down = received_by(context, half, state, 1)
    received, brute = copy.deepcopy(state.model).eval(), copy.deepcopy(state.model)
    before = entries(received)

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        z = brute.features(images)
        with torch.no_grad():
            pair = [received.features(images), last.features(images)]
        scores = [(F.cosine_similarity(z, other) / 0.3).exp() for other in pair]
        term = -(scores[0] / (scores[0] + scores[1])).log().mean()
        return {"loss_ce": F.cross_entropy(brute.head(z), labels), "loss_contrastive": 2 * term}

    expected = train_epochs(context, [brute], loss)
    sent, metrics = half.train(context, state, down)
    assert metrics["loss_contrastive"] == pytest.approx(expected["loss_contrastive"], rel=1e-4)
    assert abs(metrics["loss_contrastive"] - 2 * math.log(2)) > 1e-3
    for name, item in {**sent.weights, **sent.buffers}.items():
        torch.testing.assert_close(
            torch.tensor(item), brute.state_dict()[name], rtol=1e-4, atol=2e-5, msg=name
        )
    for name, item in entries(received).items():  # BatchNorm's statistics included
        assert torch.equal(item, before[name])


def test_the_last_model_is_a_copy_of_what_was_trained() -> None:
    context, half = a_moon(), Client()
    state = half.build(context)
    sent, _ = half.train(context, state, received_by(context, half, state, 0))
    kept = {name: item.clone() for name, item in state.previous.items()}
    for name, item in {**sent.weights, **sent.buffers}.items():
        assert torch.equal(kept[name], torch.tensor(item)), name
    received_by(context, half, state, 1)  # evaluation alone does not replace it
    for name, item in state.previous.items():
        assert torch.equal(item, kept[name])
    half.train(context, state, received_by(context, half, state, 1))
    assert not torch.equal(state.previous["head.weight"], kept["head.weight"])


def test_features_are_drawn_to_the_received_model() -> None:
    """A large mu leaves z nearer to z_glob than mu = 0 does."""
    near = []
    for mu in (0.0, 20.0):
        context, half = a_moon(local_epochs=4, **{"moon.mu": mu}), Client()
        state = half.build(context)
        half.train(context, state, received_by(context, half, state, 0))
        down = received_by(context, half, state, 1)
        received = copy.deepcopy(state.model).eval()
        last = {name: item.clone() for name, item in state.previous.items()}
        half.train(context, state, down)
        trained = copy.deepcopy(state.model).eval()
        previous = copy.deepcopy(state.model).eval()
        previous.load_state_dict(last)
        images, _ = next(device_batches(context, context.data.train, 12))
        with torch.no_grad():
            z, glob, prev = (m.features(images) for m in (trained, received, previous))
        near.append((F.cosine_similarity(z, glob) - F.cosine_similarity(z, prev)).mean().item())
    assert near[1] > near[0] + 0.01


def test_local_buffers_stay_and_belong_to_both_models() -> None:
    context, half = a_moon(**{"moon.buffers": "local"}), Client()
    state = half.build(context)
    sent, _ = half.train(context, state, received_by(context, half, state, 0))
    assert sent.buffers == {}
    assert state.buffers
    name = "backbone.bn1.running_mean"
    assert torch.equal(state.buffers[name], state.previous[name])
    own = state.buffers[name].clone()
    down = received_by(context, half, state, 1)
    assert torch.equal(state.model.state_dict()[name], own)
    sent, metrics = half.train(context, state, down)
    assert isinstance(sent, Uplink)
    assert math.isfinite(metrics["loss_contrastive"])
    assert not torch.equal(state.buffers[name], own)


# Whole runs ---------------------------------------------------------------------------------------


def test_no_mu_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    """The metrics of a whole run are FedAvg's; the extra passes cost operations, and say so."""
    settings = {"num_rounds": 3, "sample_fraction": 0.7, "subset": 0.15}
    fedavg = run_federation(tmp_path / "a", 3, method="fedavg", **settings)
    run = run_federation(tmp_path / "b", 3, method="moon", moon__mu=0.0, **settings)
    extra = run.metrics(metric="loss_contrastive")
    assert len(extra) == len(fedavg.metrics(metric="loss_ce"))
    assert {float(row["value"]) for row in extra} == {0.0}

    def comparable(outcome: Outcome) -> list[dict[str, str]]:
        others = ("loss_contrastive", "flops")
        return [row for row in outcome.rows("metrics") if row["metric"] not in others]

    assert comparable(run) == comparable(fedavg)
    sent = [[row["scalars"] for row in outcome.rows("traffic")] for outcome in (run, fedavg)]
    assert sent[0] == sent[1]


def test_unsampled_clients_keep_their_last_model_byte_for_byte(tmp_path: Path) -> None:
    """A client's files are those of its own rounds, and no later round changes them."""
    settings: dict[str, Any] = {
        "method": "moon", "sample_fraction": 0.34, "models": "five-cnns", "subset": 0.1,
        "keep_checkpoints": 9,
    }  # fmt: skip
    run = run_federation(tmp_path, 3, num_rounds=2, **settings)
    files = {p: p.read_bytes() for p in (run.path / "clients").rglob("*.safetensors")}
    assert len(files) == 2
    run = run_federation(tmp_path, 3, resume="run", **{**settings, "num_rounds": 5})
    for path, content in files.items():
        assert path.read_bytes() == content
    sampled = {
        (row["client"], int(row["round"]))
        for row in run.rows("traffic")
        if row["purpose"] == "train" and row["direction"] == "downlink"
    }
    found = {
        (str(int(p.parent.name.removeprefix("client-"))), int(p.stem.removeprefix("round-")))
        for p in (run.path / "clients").rglob("*.safetensors")
    }
    assert found == sampled
    assert len(found) == 5


def test_the_store_holds_the_last_model_and_not_the_received_one(tmp_path: Path) -> None:
    run = run_federation(tmp_path, 2, method="moon", models="five-cnns", subset=0.1, num_rounds=1)
    path = next((run.path / "clients").rglob("*.safetensors"))
    context, half = a_moon(), Client()
    with torch.device("meta"):
        skeleton = half.build(context)
    state = load_state(path, skeleton)
    assert state.buffers == {}
    assert set(state.previous) >= {"head.weight", "head.bias", "backbone.conv.0.weight"}
    parameters = int(run.rows("clients")[0]["parameters"])
    assert sum(item.numel() for item in state.previous.values()) == parameters
    assert path.stat().st_size == pytest.approx(4 * parameters, rel=0.01)


@pytest.mark.parametrize(("key", "value"), [("tau", 0), ("mu", -1.0)])
def test_settings_out_of_range_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"moon.{key} = {value}: expected a number"):
        parse_run_config({"method": "moon", f"moon.{key}": value})
