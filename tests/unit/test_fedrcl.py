"""FedRCL: both terms by hand and by loops, what is one class, which levels, FedAvg without."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models import InputShape, build_model, build_task_model
from strategies.fedrcl import relaxed_contrast, same_class, watched
from tests.support import run_federation


def at(*degrees: float) -> Tensor:
    """Vectors of these directions and of different lengths, (B, 2)."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    lengths = torch.arange(1, len(degrees) + 1)[:, None]
    return (torch.stack([angles.cos(), angles.sin()], dim=1) * lengths).float()


def test_both_terms_by_hand() -> None:
    """Two of class 0, 60 degrees apart, and one of class 1 between them, 30 from each; tau = 0.5.

    s+ = 1/2 and s- = sqrt(3)/2 for both anchors; the third has nobody of its class. 1/2 is above
    a threshold of 0.4, and below one of 0.7, where it counts as -1.
    """
    same = same_class("classification", torch.tensor([0, 0, 1]), 2)
    scl, penalty = relaxed_contrast(at(0, 60, 30), same, 0.5, 2, 0.4)
    near = math.exp(math.sqrt(3))
    assert scl.item() == pytest.approx(-math.log(math.e / (math.e + near)), rel=1e-5)
    own = math.exp(2)
    assert penalty.item() == pytest.approx(-math.log(own / (own + math.e)), rel=1e-5)
    _, below = relaxed_contrast(at(0, 60, 30), same, 0.5, 2, 0.7)
    assert below.item() == pytest.approx(-math.log(own / (own + math.exp(-2))), rel=1e-4)


def test_it_equals_loops_over_examples() -> None:
    draw = torch.Generator().manual_seed(2)
    z, labels = torch.randn(12, 5, generator=draw), torch.randint(0, 4, (12,), generator=draw)
    labels[0] = 9  # alone in its class
    scl, penalty = relaxed_contrast(z, labels[:, None] == labels, 0.3, 2, 0.1)
    terms: list[tuple[float, float]] = []
    for i in range(12):
        cosines = [torch.cosine_similarity(z[i], z[j], dim=0).item() for j in range(12)]
        alike = [cosines[j] for j in range(12) if j != i and labels[j] == labels[i]]
        if not alike:
            continue
        far, others = min(alike), [cosines[j] for j in range(12) if labels[j] != labels[i]]
        near = sum(math.exp(s / 0.3) for s in sorted(others)[-2:])
        pushed = far if far > 0.1 else -1
        terms.append((
            -math.log(math.exp(far / 0.3) / (math.exp(far / 0.3) + near)),
            -math.log(math.exp(1 / 0.3) / (math.exp(1 / 0.3) + math.exp(pushed / 0.3))),
        ))  # fmt: skip
    assert len(terms) < 12
    assert scl.item() == pytest.approx(sum(a for a, _ in terms) / len(terms), rel=1e-5)
    assert penalty.item() == pytest.approx(sum(b for _, b in terms) / len(terms), rel=1e-5)


def test_the_gradient_draws_far_ones_together_and_pushes_near_ones_apart() -> None:
    for degrees, towards in ((90.0, True), (10.0, False)):
        z = at(0, degrees).requires_grad_()
        sum(relaxed_contrast(z, torch.ones(2, 2, dtype=torch.bool), 0.5, 2, 0.7)).backward()
        # Of the first vector, (1, 0): down its gradient means turning towards the second.
        assert z.grad is not None
        turn = -float(z.grad[0, 1])
        # Without other classes SCL is 0: a pair that is far apart is left as it is.
        assert turn == 0 if towards else turn < -1e-3
    z = at(0, 90, 45).requires_grad_()
    same = same_class("text", torch.tensor([3, 3, 1]), 4)
    relaxed_contrast(z, same, 0.5, 2, 0.7)[0].backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("labels", [[0, 1, 2], [0], [1, 1, 1]])
def test_a_batch_without_pairs_or_without_negatives_adds_nothing(labels: list[int]) -> None:
    z = torch.zeros(len(labels), 3).requires_grad_()  # and features of length 0 are safe
    same = same_class("classification", torch.tensor(labels), 3)
    scl, penalty = relaxed_contrast(z, same, 0.05, 2, 0.7)
    (scl + penalty).backward()
    assert scl.item() == 0
    assert penalty.item() == pytest.approx(0, abs=1e-12)
    assert z.grad is not None
    assert z.grad.eq(0).all()


def test_what_counts_as_one_class() -> None:
    present = torch.tensor([[1, 0, 255], [1, 1, 0], [0, 1, 0], [0, 0, 255]])
    wanted = [[True, True, False, False], [True, True, True, False], [False, True, True, False]]
    assert same_class("multilabel", present, 3)[:3].tolist() == wanted
    masks = torch.tensor([[[0, 1]], [[1, 2]], [[2, 0]], [[0, 255]]], dtype=torch.uint8)
    assert same_class("segmentation", masks, 3)[:3].tolist() == wanted


@pytest.mark.parametrize(
    ("model", "task", "widths"),
    [
        ("resnet10-w4", "", [16, 16, 32, 64, 128]),
        ("cnn5", "", [16, 32, 500]),
        ("cnn5", "multilabel", [16, 32, 500]),
        ("seg-small", "segmentation", [64]),
    ],
)
def test_levels(model: str, task: str, widths: list[int]) -> None:
    shape = InputShape(1, 32, 3)
    net = build_task_model(model, task, shape, 8) if task else build_model(model, shape, 500)
    if model.startswith("resnet"):
        net = build_model(model, shape, 128)
    x = torch.rand(2, 1, 32, 32)
    with watched(net, "all") as seen:
        logits = net(x)
    assert [z.shape[1] for z in seen] == widths
    torch.testing.assert_close(logits.shape[:2], net(x).shape[:2])
    assert len(seen) == len(widths)  # after the block nobody watches
    with watched(net, "last") as seen:
        net(x)
    assert len(seen) == 1


def test_without_its_terms_it_is_fedavg(tmp_path: Path) -> None:
    settings = {"dataset": "digits", "models": "cnn5", "image_size": 16, "num_rounds": 1}
    settings |= {"subset": 0.05, "feature_dim": 16, "lr": 0.05, "weight_decay": 0.0}
    plain = run_federation(tmp_path / "a", 2, method="fedavg", **settings)
    relaxed = run_federation(tmp_path / "b", 2, method="fedrcl", fedrcl__weight=0.0, **settings)
    for metric in ("loss_ce", "accuracy"):
        found = [row["value"] for row in relaxed.metrics(metric=metric)]
        assert found == [row["value"] for row in plain.metrics(metric=metric)]
        assert found


def test_clients_of_any_task_are_served(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 4, method="fedrcl", models="cnn5, seg-small, text-small, cnn5", num_rounds=1,
        tasks="multilabel@scenes, segmentation@scenes, text@scenes, classification@digits",
        subset=0.05, partition="iid", image_size=16, lr=0.01, local_epochs=1,
    )  # fmt: skip
    assert run.rows("failures") == []
    assert {row["client"] for row in run.metrics(metric="loss_scl")} == set("0123")
