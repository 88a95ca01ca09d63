"""FML: losses on small logits by hand, one-sided gradients, the mean of memes, what stays home."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from strategies.base.messages import ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.common.training import device_batches
from strategies.common.weights import state_arrays, state_template
from strategies.fml import Client, Downlink, Uplink, imitation, mutual_terms
from tests.support import ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info
from tests.unit.test_training import a_context

PRIVATE = [[0.0, 0.0, math.log(2)], [math.log(3), 0.0, 0.0]]
MEME = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
SMALL = {"fml.small-model": "cnn5"}
P_PRIVATE = [[1 / 4, 1 / 4, 1 / 2], [3 / 5, 1 / 5, 1 / 5]]


def logits(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, requires_grad=True)


def small_server(**options: Any) -> ServerAtWork:
    keys = {"feature-dim": 8, **SMALL, **options}
    server = ServerAtWork(parse_run_config({"method": "fml", **keys}))
    server.clients = {0: a_client_info(0, num_classes=3, channels=1, image_size=16)}
    server.state = server.initial_state()
    return server


def update(client_id: int, examples: int, theta: dict[str, Any]) -> ClientUpdate:
    return ClientUpdate(client_id, examples, Uplink(theta), [], 0.0, 0, 0, "")


def test_imitation_by_hand() -> None:
    """KL(a || b) = sum_c a_c log(a_c / b_c), averaged over the two rows, not the six elements."""
    rows = [sum(p * math.log(p * 3) for p in row) for row in P_PRIVATE]
    found = imitation(logits(PRIVATE), logits(MEME))
    assert found.item() == pytest.approx(sum(rows) / 2, rel=1e-6)
    backwards = [sum(math.log(1 / (3 * p)) / 3 for p in row) for row in P_PRIVATE]
    assert imitation(logits(MEME), logits(PRIVATE)).item() == pytest.approx(sum(backwards) / 2)
    assert imitation(logits(PRIVATE), logits(PRIVATE)).item() == pytest.approx(0, abs=1e-7)


def test_imitation_moves_the_imitator_only() -> None:
    """d KL / d logits = (softmax(logits) - target) / B."""
    target, own = logits(PRIVATE), logits(MEME)
    imitation(target, own).backward()
    assert target.grad is None
    assert own.grad is not None
    expected = (1 / 3 - torch.tensor(P_PRIVATE)) / 2
    torch.testing.assert_close(own.grad, expected)


def test_imitation_is_in_float32_whatever_the_logits() -> None:
    assert imitation(logits(PRIVATE).bfloat16(), logits(MEME).bfloat16()).dtype == torch.float32


def test_terms_by_hand() -> None:
    terms = mutual_terms(logits(PRIVATE), logits(MEME), torch.tensor([2, 1]), 0.75, 0.25)
    kl = imitation(logits(MEME), logits(PRIVATE)).item()
    back = imitation(logits(PRIVATE), logits(MEME)).item()
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {
            "loss_private_ce": 0.75 * (math.log(2) + math.log(5)) / 2,
            "loss_private_kl": 0.25 * kl,
            "loss_meme_ce": 0.25 * math.log(3),
            "loss_meme_kl": 0.75 * back,
        }
    )


def test_each_loss_moves_its_own_model() -> None:
    """The gradient of the sum is that of L_private for one model, of L_meme for the other."""
    labels = torch.tensor([2, 1])
    private, meme = logits(PRIVATE), logits(MEME)
    sum(mutual_terms(private, meme, labels, 0.3, 0.6).values()).backward()  # type: ignore[union-attr]
    hot = torch.eye(3)[labels]
    p, m = torch.tensor(P_PRIVATE), torch.full((2, 3), 1 / 3)
    torch.testing.assert_close(private.grad, (0.3 * (p - hot) + 0.7 * (p - m)) / 2)
    torch.testing.assert_close(meme.grad, (0.6 * (m - hot) + 0.4 * (m - p)) / 2)


def test_published_traffic() -> None:
    """FedAvgCNN, C = 100, d = 512 on 3x32x32 images: 924,708 scalars, 9,247,080 for ten clients."""
    server = ServerAtWork(parse_run_config({"method": "fml"}))
    server.clients = {0: a_client_info(0, num_classes=100, channels=3, image_size=32)}
    server.state = server.initial_state()
    down = server.downlink_for(None, 1)
    assert count_scalars(down) == (924_708, 924_708)
    assert 10 * count_scalars(Uplink(down.theta))[0] == 9_247_080


@pytest.mark.parametrize(("mean", "share"), [("weighted", 0.25), ("uniform", 0.5)])
def test_mean_of_two_memes(mean: str, share: float) -> None:
    server = small_server(**{"fml.mean": mean})
    first = state_arrays(server.state.theta)
    second = {name: item + 1 for name, item in first.items()}
    server.aggregate_in(1, [update(0, 1, first), update(1, 3, second)])
    for name, item in server.state.theta.items():
        np.testing.assert_allclose(item.numpy(), first[name] + 1 - share, rtol=1e-5, atol=1e-6)
        assert not np.array_equal(item.numpy(), first[name])
        assert not np.array_equal(item.numpy(), second[name])


def test_nothing_is_aliased() -> None:
    """Neither the mean nor a loaded meme changes when what was received does."""
    server, context, half = small_server(), a_context(6, method="fml", **SMALL), Client()
    theta = {k: v * 1.5 for k, v in state_arrays(server.state.theta).items()}
    server.aggregate_in(1, [update(0, 1, theta)])
    state = half.build(context)
    down = server.downlink_for(None, 2)
    half.receive(context, state, down)
    sent, _ = half.train(context, state, down)
    kept = {k: v.copy() for k, v in sent.theta.items()}
    half.train(context, state, down)
    for name, received in theta.items():
        np.testing.assert_array_equal(server.state.theta[name].numpy(), received)
        np.testing.assert_array_equal(down.theta[name], received)
        np.testing.assert_array_equal(sent.theta[name], kept[name])
        assert not np.array_equal(state.meme.state_dict()[name].numpy(), kept[name])
        assert not np.array_equal(kept[name], received)


def test_clipping_bounds_each_model_on_its_own() -> None:
    """One step of lr 1 moves each of the two by its clip norm, not both together."""
    context = a_context(8, method="fml", batch_size=8, lr=1.0, **SMALL, **{"fml.clip-norm": 1e-3})
    half = Client()
    state = half.build(context)
    before = [[p.detach().clone() for p in m.parameters()] for m in (state.model, state.meme)]
    half.train(context, state, Downlink({}))
    for old, module in zip(before, (state.model, state.meme), strict=True):
        pairs = zip(module.parameters(), old, strict=True)
        moved = torch.stack([(new - was).norm() for new, was in pairs]).norm()
        assert moved.item() == pytest.approx(1e-3, rel=1e-2)


def test_prediction_is_the_private_models_and_the_memes() -> None:
    context = a_context(6, method="fml", **SMALL)
    state = Client().build(context)
    images, _ = next(device_batches(context, context.data.test, 4))
    state.model.eval()
    scores = Client().predict(state, Downlink({}), images)
    assert list(scores) == ["accuracy", "accuracy_meme"]
    torch.testing.assert_close(scores["accuracy"], state.model(images))
    torch.testing.assert_close(scores["accuracy_meme"], state.meme(images))


def test_a_meme_of_another_shape_is_refused_by_name() -> None:
    server = small_server()
    theta = state_arrays(server.state.theta)
    theta["head.bias"] = np.zeros(4, np.float32)
    templates = {"theta": state_template(server.state.theta)}
    with pytest.raises(PayloadError, match=r"theta/head.bias: shape \(4,\), expected \(3,\)"):
        unpack(Uplink, pack(Uplink(theta)), {}, templates)
    half, context = Client(), a_context(6, method="fml", **SMALL)
    assert half.templates(context) == server.templates(server.clients[0]) == templates


def test_private_models_stay_home_and_unsampled_clients_are_untouched(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 4, method="fml", sample_fraction=0.5, num_rounds=3, keep_checkpoints=5,
        fml__small_model="cnn5",
    )  # fmt: skip
    server = ServerAtWork(parse_run_config({"method": "fml", **SMALL}))
    rows = run.rows("clients")
    server.clients = {
        0: a_client_info(0, num_classes=10, channels=1, image_size=int(rows[0]["image_size"]))
    }
    scalars = sum(item.numel() for item in server.initial_state().theta.values())
    trained = [r for r in run.rows("traffic") if r["purpose"] == "train"]
    assert {row["scalars"] for row in trained} == {str(scalars)}
    sampled = {(row["client"], row["round"]) for row in trained}
    for client in range(4):
        directory = run.path / "clients" / f"client-{client:05d}"
        files = {file.stem for file in directory.glob("*.safetensors")}
        assert files == {f"round-{int(r):05d}" for c, r in sampled if c == str(client)}
    # The private model does not change between a client's evaluations while it is not sampled.
    for client in map(str, range(4)):
        for number in (1, 2):
            if (client, str(number)) not in sampled:
                pair = [
                    run.metrics(client=client, round=n, metric="accuracy", phase="pre")
                    for n in (number, number + 1)
                ]
                assert pair[0][0]["value"] == pair[1][0]["value"]


def test_same_private_weights_whatever_the_seed_of_the_process() -> None:
    """The server's first meme is a function of the run's seed alone."""
    digests = set()
    for noise in (1, 2):
        torch.manual_seed(noise)
        theta = small_server().state.theta
        digests.add(hashlib.sha256(b"".join(v.numpy().tobytes() for v in theta.values())).digest())
    assert len(digests) == 1
    assert not torch.equal(
        small_server(seed=1).state.theta["head.bias"], small_server().state.theta["head.bias"]
    )
