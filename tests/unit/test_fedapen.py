"""FedAPEN: three-part losses and the step on w by hand, who is held out, what is evaluated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strategies.base.client import ClientContext
from strategies.base.messages import ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.base.payload import count_scalars
from strategies.common.training import device_batches
from strategies.common.weights import state_arrays
from strategies.fedapen import (
    METHOD,
    Client,
    ClientState,
    Config,
    ensemble,
    ensemble_terms,
    hold_out,
    holdout_size,
    learn_weight,
)
from strategies.fml import Downlink, Uplink
from tests.support import ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info
from tests.unit.test_training import a_context

PRIVATE = [[0.0, 0.0, math.log(2)], [math.log(3), 0.0, 0.0]]
SHARED = [[0.0, math.log(4), 0.0], [0.0, 0.0, 0.0]]
LABELS = torch.tensor([2, 1])


def logits(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, requires_grad=True)


def context_of(examples: int, **options: Any) -> ClientContext:
    keys = {"method": "fedapen", "fedapen.small-model": "cnn5", **options}
    return a_context(examples, **keys)


def started(context: ClientContext) -> tuple[ClientState, Downlink]:
    """Return a fresh state, in evaluation mode as the handlers leave it, and a downlink for it."""
    state = Client().build(context)
    state.model.eval()
    state.shared.eval()
    return state, Downlink(state_arrays(state.shared.state_dict()))


def test_ensemble_by_hand() -> None:
    mixed = ensemble(torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 8.0]]), 0.25)
    assert mixed.tolist() == [[1.0, 6.0]]


def test_terms_by_hand() -> None:
    """w = 1/2: o_e is (0, log 2, log sqrt 2) and (log sqrt 3, 0, 0)."""
    terms = ensemble_terms(logits(PRIVATE), logits(SHARED), LABELS, 0.5)
    root2, root3 = math.sqrt(2), math.sqrt(3)
    mixed = (-math.log(root2 / (1 + 2 + root2)) - math.log(1 / (root3 + 2))) / 2
    p = [[1 / 4, 1 / 4, 1 / 2], [3 / 5, 1 / 5, 1 / 5]]
    s = [[1 / 6, 4 / 6, 1 / 6], [1 / 3, 1 / 3, 1 / 3]]

    def kl(a: list[list[float]], b: list[list[float]]) -> float:
        return sum(x * math.log(x / y) for u, v in zip(a, b, strict=True)
                   for x, y in zip(u, v, strict=True)) / 2  # fmt: skip

    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {
            "loss_private_ce": (math.log(2) + math.log(5)) / 2,
            "loss_private_kl": kl(s, p),
            "loss_private_ensemble": mixed,
            "loss_shared_ce": (math.log(6) + math.log(3)) / 2,
            "loss_shared_kl": kl(p, s),
            "loss_shared_ensemble": mixed,
        }
    )


def test_each_loss_moves_its_own_model() -> None:
    """Gradients by hand: (p - y) + (p - p_s) + w (p_e - y), over B; and the same for the other."""
    private, shared, weight = logits(PRIVATE), logits(SHARED), 0.7
    torch.stack(list(ensemble_terms(private, shared, LABELS, weight).values())).sum().backward()
    hot = torch.eye(3)[LABELS]
    p, s = F.softmax(torch.tensor(PRIVATE), 1), F.softmax(torch.tensor(SHARED), 1)
    e = F.softmax(0.7 * torch.tensor(PRIVATE) + 0.3 * torch.tensor(SHARED), 1)
    torch.testing.assert_close(private.grad, ((p - hot) + (p - s) + 0.7 * (e - hot)) / 2)
    torch.testing.assert_close(shared.grad, ((s - hot) + (s - p) + 0.3 * (e - hot)) / 2)


def learned(weight: float, lr: float, epochs: int = 1, batch_size: int = 2) -> float:
    return learn_weight(
        weight, torch.tensor(PRIVATE), torch.tensor(SHARED), LABELS, lr=lr, epochs=epochs,
        batch_size=batch_size, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def test_a_step_on_w_is_that_of_autograd() -> None:
    w = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    mixed = w * torch.tensor(PRIVATE).double() + (1 - w) * torch.tensor(SHARED).double()
    F.cross_entropy(mixed, LABELS).backward()
    assert w.grad is not None
    assert learned(0.5, 0.1) == pytest.approx(0.5 - 0.1 * w.grad.item(), abs=1e-12)


def test_a_step_on_w_by_hand() -> None:
    """One example, o_p = (1, 0), o_s = (0, 1), y = 0: at w = 1/2 the slope is -1."""
    arguments = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0])
    generator = torch.Generator().manual_seed(0)
    w = learn_weight(0.5, *arguments, lr=1e-3, epochs=1, batch_size=64, generator=generator)
    assert w == pytest.approx(0.501, abs=1e-12)


@pytest.mark.parametrize(("label", "bound"), [(0, 1.0), (1, 0.0)])
def test_w_is_clipped(label: int, bound: float) -> None:
    arguments = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]]), torch.tensor([label])
    generator = torch.Generator().manual_seed(0)
    for epochs in (1, 5):
        w = learn_weight(0.5, *arguments, lr=9.0, epochs=epochs, batch_size=1, generator=generator)
        assert w == bound


def test_w_finds_the_least_cross_entropy() -> None:
    grid = torch.linspace(0, 1, 2001)
    losses = [
        F.cross_entropy(ensemble(torch.tensor(PRIVATE), torch.tensor(SHARED), w.item()), LABELS)
        for w in grid
    ]
    best = grid[int(torch.stack(losses).argmin())].item()
    assert learned(0.5, 0.05, epochs=500) == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize(
    ("examples", "held"), [(0, 0), (1, 0), (2, 1), (3, 1), (20, 1), (29, 1), (40, 2), (1000, 50)]
)
def test_how_many_are_held_out(examples: int, held: int) -> None:
    assert holdout_size(examples, 0.05) == held


def test_held_out_examples_are_apart_and_the_same_in_every_round() -> None:
    held = set()
    for number in (1, 2, 9):
        context = context_of(40, server_round=number)
        kept, taken = Client()._splits(context)
        assert len(taken) == 2
        assert sorted([*kept.indices, *taken.indices]) == list(range(40))
        held.add(tuple(taken.indices))
    assert len(held) == 1
    train = context.data.train
    others = {tuple(hold_out(train, 0.05, np.random.default_rng(s))[1].indices) for s in range(9)}
    assert len(others) > 1


def test_models_train_on_the_rest_and_fixed_holds_nothing_out() -> None:
    for weight, seen in (("learned", 19.0), ("fixed", 20.0)):
        context = context_of(20, **{"fedapen.weight": weight})
        state, down = started(context)
        Client().receive(context, state, down)
        _, metrics = Client().train(context, state, down)
        assert metrics["examples_seen"] == seen
        assert metrics["ensemble_weight"] == state.weight
        assert (state.weight == 0.5) == (weight == "fixed")


def test_a_client_with_one_example_trains_on_it_and_keeps_its_weight() -> None:
    context = context_of(1, **{"fedapen.weight-lr": 1.0})
    state, down = started(context)
    Client().receive(context, state, down)
    _, metrics = Client().train(context, state, down)
    assert state.weight == 0.5
    assert metrics["examples_seen"] == 1.0


def test_receiving_learns_w_and_leaves_both_models_as_they_are() -> None:
    context = context_of(40, **{"fedapen.weight-lr": 0.1})
    state, _ = started(context)
    theta = {k: v * 0.5 for k, v in state_arrays(state.shared.state_dict()).items()}
    private = state_arrays(state.model.state_dict())
    Client().receive(context, state, Downlink(theta))
    for name, item in state.model.state_dict().items():
        np.testing.assert_array_equal(item.numpy(), private[name])
    for name, item in state.shared.state_dict().items():
        np.testing.assert_array_equal(item.numpy(), theta[name])
    _, held = Client()._splits(context)
    images, labels = next(device_batches(context, held, 9))
    with torch.no_grad():
        pair = state.model(images), state.shared(images)
    expected = learn_weight(
        0.5, *pair, labels, lr=0.1, epochs=10, batch_size=32, generator=context.generator("weight")
    )
    assert state.weight == pytest.approx(expected, abs=1e-6)
    assert state.weight != 0.5


def test_the_learning_rate_decays_from_round_two_on() -> None:
    """lr 0.05 x decay^(t - 1): with a decay of 1e-9 the second round moves nothing."""
    for number, moves in ((1, True), (2, False)):
        context = context_of(12, server_round=number, **{"fedapen.lr-decay": 1e-9})
        state, down = started(context)
        before = state_arrays(state.model.state_dict())
        Client().train(context, state, down)
        change = np.abs(before["head.weight"] - state.model.head.weight.detach().numpy()).max()
        assert (change > 1e-6) == moves


def test_prediction_is_the_weighted_ensemble() -> None:
    context = context_of(6)
    state, down = started(context)
    state.weight = 0.8
    images, _ = next(device_batches(context, context.data.test, 4))
    scores = Client().predict(state, down, images)
    assert list(scores) == ["accuracy", "accuracy_private", "accuracy_shared"]
    expected = 0.8 * state.model(images) + 0.2 * state.shared(images)
    torch.testing.assert_close(scores["accuracy"], expected)
    torch.testing.assert_close(scores["accuracy_private"], state.model(images))
    torch.testing.assert_close(scores["accuracy_shared"], state.shared(images))


def test_the_authors_values() -> None:
    config = Config()
    assert (config.holdout, config.weight_lr, config.weight_epochs) == (0.05, 1e-3, 10)
    assert (config.lr_decay, METHOD.training.lr) == (0.99, 0.01)


def test_server_takes_the_uniform_mean() -> None:
    server = ServerAtWork(parse_run_config({"method": "fedapen", "fedapen.small-model": "cnn5"}))
    server.clients = {0: a_client_info(0)}
    server.state = server.initial_state()
    first = state_arrays(server.state.theta)
    second = {name: item + 2 for name, item in first.items()}
    pairs = [(0, 1, first), (1, 9, second)]
    server.aggregate_in(1, [ClientUpdate(i, n, Uplink(t), [], 0.0, 0, 0, "") for i, n, t in pairs])
    for name, item in server.state.theta.items():
        np.testing.assert_allclose(item.numpy(), first[name] + 1, rtol=1e-5, atol=1e-6)


def test_published_traffic() -> None:
    server = ServerAtWork(parse_run_config({"method": "fedapen"}))
    server.clients = {0: a_client_info(0, num_classes=100, channels=3)}
    server.state = server.initial_state()
    assert count_scalars(server.downlink_for(None, 1)) == (924_708, 924_708)


def test_weights_are_kept_from_round_to_round(tmp_path: Path) -> None:
    """With a large step w leaves 0.5, stays in [0, 1], and differs between clients."""
    run = run_federation(
        tmp_path, 3, method="fedapen", fedapen__small_model="cnn5", fedapen__weight_lr=0.1,
        sample_fraction=0.67, num_rounds=3,
    )  # fmt: skip
    rows = run.metrics(metric="ensemble_weight", phase="train")
    values = [float(row["value"]) for row in rows]
    assert all(0 <= value <= 1 for value in values)
    assert len(set(values)) > 2
    for metric in ("accuracy", "accuracy_private", "accuracy_shared"):
        assert len(run.metrics(metric=metric, phase="pre", round=3)) == 3
