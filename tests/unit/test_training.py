"""Local training: every example once an epoch, small clients, divergence, modes and randomness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.evaluation import evaluate_client
from data import ClientData, Split
from data.dataset import ImageDataset
from models import InputShape, build_model
from strategies.base.client import ClientContext
from strategies.base.method import get_method
from strategies.base.parsing import parse_run_config
from strategies.common import training
from strategies.common.optimizers import make_optimizer
from strategies.common.training import (
    TrainingDivergedError,
    collect_representations,
    train_epochs,
)
from strategies.fedre import Client, ClientState
from tests.support import run_federation

CLASSES = 3


def a_context(
    examples: int, *, server_round: int = 1, test: int = 4, **config: Any
) -> ClientContext:
    generator = np.random.default_rng(5)
    total = examples + test
    dataset = ImageDataset(
        name="noise",
        images=generator.integers(0, 256, (total, 1, 16, 16), dtype=np.uint8),
        labels=generator.integers(0, CLASSES, total),
        train_size=examples,
        class_names=("a", "b", "c"),
        fingerprint="0",
    )
    splits = (
        Split(dataset, np.arange(*span)) for span in ((0, examples), (0, 0), (examples, total))
    )
    keys = {key.replace("_", "-"): value for key, value in config.items()}
    return ClientContext(
        client_id=4,
        server_round=server_round,
        run=parse_run_config({"feature-dim": 8, "optimizer": "sgd", "lr": 0.05, **keys}),
        data=ClientData(dataset, *splits),
        model_name="resnet10-w4",
        device=torch.device("cpu"),
    )


class Net(nn.Module):
    """Small enough to compute by hand; BatchNorm and dropout on request."""

    def __init__(self, *, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(256, 4)]
        if norm:
            layers.append(nn.BatchNorm1d(4))
        layers += [nn.Dropout(dropout), nn.Linear(4, CLASSES)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def seeded(**kinds: Any) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net(**kinds)


def cross_entropy(model: nn.Module) -> training.LossFunction:
    return lambda images, labels: {"loss_ce": F.cross_entropy(model(images), labels)}


def seen_batches(context: ClientContext, model: nn.Module, **kwargs: Any) -> tuple[list[int], dict]:
    sizes: list[int] = []

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        sizes.append(len(labels))
        return {"loss_ce": F.cross_entropy(model(images), labels)}

    return sizes, train_epochs(context, [model], loss, **kwargs)


# Which examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("examples", "batch", "norm", "sizes"),
    [
        (7, 10, False, [7]),  # U14
        (7, 10, True, [7]),
        (7, 3, False, [3, 3, 1]),
        (7, 3, True, [3, 3]),  # a left-over example cannot pass BatchNorm
        (6, 3, True, [3, 3]),
        (1, 10, False, [1]),
        (1, 10, True, [1]),
        (1, 1, True, [1]),
        (3, 1, True, [1, 1, 1]),
        (2, 1, False, [1, 1]),
    ],
)
def test_batches_and_examples_seen(examples: int, batch: int, norm: bool, sizes: list[int]) -> None:
    model = seeded(norm=norm)
    got, metrics = seen_batches(a_context(examples, batch_size=batch), model)
    assert got == sizes
    assert metrics["examples_seen"] == sum(sizes)
    assert all(np.isfinite(v) for v in metrics.values())


@pytest.mark.parametrize(("examples", "batch"), [(1, 10), (3, 1)])
def test_single_examples_leave_batchnorm_statistics_alone(examples: int, batch: int) -> None:
    model = seeded(norm=True)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    train_epochs(a_context(examples, batch_size=batch), [model], cross_entropy(model))
    after = model.state_dict()
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(after[f"layers.2.{key}"], before[f"layers.2.{key}"])
    assert not torch.equal(after["layers.1.weight"], before["layers.1.weight"])


def test_a_real_model_with_batchnorm_trains_on_one_example() -> None:
    model = build_model("resnet10-w4", InputShape(1, 16, CLASSES), 8, seed=0)
    metrics = train_epochs(a_context(1, local_epochs=2), [model], cross_entropy(model))
    assert metrics["examples_seen"] == 2
    assert np.isfinite(metrics["loss"])


def test_epochs_visit_all_in_an_order_of_their_own() -> None:
    """U14: differs by epoch and by round, equal in two identical runs."""

    def order(server_round: int) -> list[list[float]]:
        model, seen = seeded(), []

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            seen.append(images.flatten(1).sum(dim=1).tolist())
            return {"loss_ce": F.cross_entropy(model(images), labels)}

        context = a_context(20, server_round=server_round, local_epochs=2, batch_size=20)
        assert train_epochs(context, [model], loss)["examples_seen"] == 40
        return seen

    first, second = order(1)
    assert sorted(first) == pytest.approx(sorted(second))
    assert first != second
    assert order(1) == [first, second]
    assert order(2)[0] != first


def test_epochs_can_be_given() -> None:
    sizes, metrics = seen_batches(a_context(5, local_epochs=2, batch_size=5), seeded(), epochs=3)
    assert sizes == [5, 5, 5]
    assert metrics["examples_seen"] == 15


# The step -----------------------------------------------------------------------------------------


def test_one_epoch_is_plain_sgd_and_metrics_are_means_per_example() -> None:
    context = a_context(5, batch_size=3, lr=0.1)
    model, copy = seeded(), seeded()
    seen: list[tuple[Tensor, Tensor]] = []

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        seen.append((images.clone(), labels.clone()))
        ce = F.cross_entropy(model(images), labels)
        return {"loss_ce": ce, "loss_half": 0.5 * ce}

    metrics = train_epochs(context, [model], loss)
    total = 0.0
    for images, labels in seen:
        ce = F.cross_entropy(copy(images), labels)
        gradients = torch.autograd.grad(1.5 * ce, list(copy.parameters()))
        total += float(ce.detach()) * len(labels)
        with torch.no_grad():
            for parameter, gradient in zip(copy.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
    for got, wanted in zip(model.parameters(), copy.parameters(), strict=True):
        assert torch.allclose(got, wanted, atol=1e-6)
    assert metrics["loss_ce"] == pytest.approx(total / 5, rel=1e-5)
    assert metrics["loss_half"] == pytest.approx(total / 10, rel=1e-5)
    assert metrics["loss"] == pytest.approx(1.5 * total / 5, rel=1e-5)
    assert set(metrics) >= {"loss", "loss_ce", "loss_half", "examples_seen"}


def test_each_module_is_clipped_by_itself() -> None:
    """Gradients (30, 40) and (0.3, 0.4): the first is scaled to norm 1, the second stays."""
    steep, flat = nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)
    before = steep.weight.detach().clone(), flat.weight.detach().clone()
    slope = torch.tensor([[30.0], [40.0]])

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"a": (steep.weight * slope).sum(), "b": (flat.weight * slope / 100).sum()}

    train_epochs(a_context(2, lr=1.0), [steep, flat], loss, clip_norm=1.0)
    assert torch.allclose(before[0] - steep.weight, torch.tensor([[0.6], [0.8]]), atol=1e-4)
    assert torch.allclose(before[1] - flat.weight, torch.tensor([[0.3], [0.4]]), atol=1e-6)


def test_modules_are_left_in_evaluation_mode() -> None:
    model = seeded(norm=True)
    modes: list[bool] = []

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        modes.append(model.training)
        return {"loss_ce": F.cross_entropy(model(images), labels)}

    train_epochs(a_context(4), [model], loss)
    assert modes == [True]
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        ({"lr": "auto", "optimizer": "auto"}, torch.optim.SGD,
         {"lr": 0.06, "momentum": 0.0, "weight_decay": 0.0}),  # FedRE's
        ({"method": "local", "lr": "auto", "optimizer": "auto"}, torch.optim.SGD, {"lr": 0.01}),
        ({"lr": 0.5, "momentum": 0.9, "weight_decay": 1e-3}, torch.optim.SGD,
         {"lr": 0.5, "momentum": 0.9, "weight_decay": 1e-3}),
        ({"optimizer": "adam", "lr": 1e-3}, torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.0}),
        ({"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0}, torch.optim.AdamW,
         {"lr": 1e-3, "weight_decay": 0.0}),
    ],
)  # fmt: skip
def test_optimisers_are_the_methods_unless_set(
    config: dict[str, Any], kind: type, expected: dict[str, float]
) -> None:
    optimizer = make_optimizer(a_context(2, **config), list(nn.Linear(1, 1).parameters()))
    assert type(optimizer) is kind
    assert {key: optimizer.param_groups[0][key] for key in expected} == expected


def test_momentum_does_not_survive_the_round() -> None:
    model = nn.Linear(1, 1, bias=False)
    context = a_context(1, lr=1.0, momentum=0.9)
    start = model.weight.item()
    for _ in range(3):
        train_epochs(context, [model], lambda x, y: {"a": model.weight.sum()})
    assert model.weight.item() == pytest.approx(start - 3)


# Divergence ---------------------------------------------------------------------------------------


def test_divergence_names_client_round_term_and_last_value() -> None:
    """U32."""
    model = seeded()
    context = a_context(40, server_round=3, lr=1e6, batch_size=4, local_epochs=50, momentum=0.99)
    with pytest.raises(TrainingDivergedError) as caught:
        train_epochs(
            context, [model],
            lambda x, y: {"loss_ce": F.cross_entropy(model(x), y), "loss_sq": model(x).norm()},
        )  # fmt: skip
    text = str(caught.value)
    assert text.startswith("client 4, round 3, epoch 1: loss_")
    assert "became" in text
    assert "in the step before; lower lr" in text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [1.5, float("nan")],
            r"epoch 1: a became nan in step 2 of 2; last finite value: 1\.5 in the",
        ),
        ([float("inf"), 1.0], "step 1 of 2; last finite value: none in this round"),
        ([1.0, 2.25, float("inf"), 1.0], r"epoch 2: a became inf in step 1 .*: 2\.25 in the epoch"),
    ],
)
def test_the_last_finite_value_is_found(values: list[float], message: str) -> None:
    model = nn.Linear(1, 1)
    left = iter(values)

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"b": model.weight.sum() * 0, "a": model.weight.sum() * 0 + next(left)}

    with pytest.raises(TrainingDivergedError, match=message):
        train_epochs(a_context(4, batch_size=2, local_epochs=len(values) // 2), [model], loss)


def test_a_diverging_client_is_excluded_or_stops_the_run(tmp_path: Path) -> None:
    """U32: all clients diverge here, so no valid reply is left."""
    from server_app.rounds.exchange import RunError

    with pytest.raises(
        RunError, match=r"TrainingDivergedError: client \d, round \d, epoch 1: loss_ce"
    ):
        run_federation(
            tmp_path, 2, lr=1e30, models="five-cnns", subset=0.2, num_rounds=2, evaluate_every=2
        )


# Passes without training --------------------------------------------------------------------------


def test_representations_of_all_in_order_and_evaluation_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "EVALUATION_BATCH", 4)
    context = a_context(9)
    model = build_model("cnn5", InputShape(1, 16, CLASSES), 8, seed=0).train()
    model.mapping = nn.Sequential(model.mapping, nn.BatchNorm1d(8), nn.Dropout(0.5)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    representations, labels = collect_representations(context, model)
    assert representations.shape == (9, 8)
    assert not representations.requires_grad
    assert labels.tolist() == context.data.train.labels.tolist()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    pixels = torch.from_numpy(context.data.dataset.images[:9]).float() / 127.5 - 1
    model.eval()
    with torch.no_grad():
        assert torch.allclose(representations, model.features(pixels), atol=1e-4)


def test_evaluation_leaves_batchnorm_alone_and_counts_hits() -> None:
    """A fresh or just loaded model is in training mode; evaluation must not depend on that."""
    context = a_context(4, test=6)
    model = build_model("cnn5", InputShape(1, 16, CLASSES), 8, seed=0).train()
    model.mapping = nn.Sequential(model.mapping, nn.BatchNorm1d(8), nn.Dropout(0.9)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rows = evaluate_client(context, Client(), ClientState(model), None, "pre")
    again = evaluate_client(context, Client(), ClientState(model), None, "pre")
    assert rows == again
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    pixels = torch.from_numpy(context.data.dataset.images[4:]).float() / 127.5 - 1
    with torch.no_grad():
        hits = model.eval()(pixels).argmax(dim=1).numpy() == context.data.test.labels
    (row,) = rows  # the validation split is empty: no row
    assert (row.phase, row.metric, row.examples) == ("pre", "accuracy", 6)
    assert row.value == hits.mean()


class Dropping(nn.Module):
    """A backbone whose every pass draws random numbers while it trains."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.raw_dim = 16
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, 16),
            nn.BatchNorm1d(16), nn.Dropout(0.5),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def dropping(shape: InputShape) -> nn.Module:
    return Dropping(shape.channels)


def run_dropping(directory: Path, **config: Any) -> str:
    run = run_federation(
        directory, 3, method="local", models="tests.unit.test_training:dropping", subset=0.1,
        num_rounds=2, **config,
    )  # fmt: skip
    return run.text("metrics.csv")


def test_dropout_draws_from_a_stream_of_its_own(tmp_path: Path) -> None:
    torch.manual_seed(123)
    first = run_dropping(tmp_path / "a")
    assert (
        torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(123)).item()
    )
    assert run_dropping(tmp_path / "b") == first
    assert run_dropping(tmp_path / "c", seed=1) != first


def test_evaluating_more_often_changes_no_training(tmp_path: Path) -> None:
    """Pre-evaluation in between must leave modes, statistics and streams as they were."""

    def losses(text: str) -> list[str]:
        return [line for line in text.splitlines() if ",train,loss," in line]

    often = losses(run_dropping(tmp_path / "a", evaluate_every=1, evaluate_when="pre"))
    seldom = losses(run_dropping(tmp_path / "b", evaluate_every=2, evaluate_when="post"))
    assert often == seldom
    assert len(often) == 6


def test_bfloat16_keeps_weights_in_float32() -> None:
    context = a_context(4, amp="bf16")
    model = seeded()
    types: list[torch.dtype] = []

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = model(images)
        types.append(scores.dtype)
        return {"loss_ce": F.cross_entropy(scores, labels)}

    train_epochs(context, [model], loss)
    assert types == [torch.bfloat16]
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_defaults_of_training_are_those_of_the_methods() -> None:
    assert get_method("fedre").training.lr == 0.06
