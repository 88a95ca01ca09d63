"""Vectors by class: hand-computed means, missing classes, and the nearest-prototype rule."""

from __future__ import annotations

import numpy as np
import torch

from strategies.common.prototypes import (
    CHUNK,
    ClassAverage,
    class_means,
    distances,
    nearest_scores,
    prototype_loss,
    spread_by_class,
)


def test_class_means_by_hand() -> None:
    """Only classes that are present, ascending, whatever the order of the examples."""
    rows = torch.tensor([[1.0, 0.0], [5.0, 5.0], [3.0, 4.0]])
    ids, means, counts = class_means(rows, torch.tensor([4, 1, 4]))
    assert ids.tolist() == [1, 4]
    assert means.tolist() == [[5.0, 5.0], [2.0, 2.0]]
    assert counts.tolist() == [1, 2]
    assert (ids.dtype, means.dtype, counts.dtype) == (np.int64, np.float32, np.int64)


def test_class_means_over_several_chunks() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2 * CHUNK + 7, 3, generator=generator)
    labels = torch.randint(5, (len(rows),), generator=generator)
    ids, means, counts = class_means(rows, labels)
    for c, mean, count in zip(ids, means, counts, strict=True):
        chosen = rows[labels == int(c)]
        assert count == len(chosen)
        np.testing.assert_allclose(mean, chosen.double().mean(0).numpy(), rtol=1e-6, atol=1e-7)


def test_class_average_weights() -> None:
    """U12: proto 0 of 90 examples and proto 1 of 10 average to 0.5, weighted to 0.1."""
    for weights, expected in ((None, 0.5), ((90, 10), 0.1)):
        average = ClassAverage(3, 1)
        for k, value in enumerate((0.0, 1.0)):
            weight = None if weights is None else torch.tensor([weights[k]])
            average.add(torch.tensor([0]), torch.tensor([[value]]), weight)
        ids, means, _ = average.result()
        assert ids.tolist() == [0]
        assert means.item() == np.float32(expected)


def test_nothing_received() -> None:
    """Before round 1 the table is all zeros and nothing is known."""
    ids, means, counts = ClassAverage(4, 2).result()
    assert (ids.shape, means.shape, counts.shape) == ((0,), (0, 2), (0,))
    table, known = spread_by_class(ids, means, 4)
    assert table.shape == (4, 2)
    assert not known.any()


def test_loss_skips_missing_classes_exactly() -> None:
    table, known = spread_by_class(np.array([1]), np.array([[1.0, 1.0]], np.float32), 3)
    features = torch.tensor([[2.0, 3.0], [9.0, 9.0]], requires_grad=True)
    loss = prototype_loss(features, torch.tensor([1, 2]), table, known)
    # (1 + 4) over a batch of 2 and d = 2; the sample of class 2 adds nothing.
    assert loss.item() == 5 / 4
    loss.backward()
    assert features.grad is not None
    assert features.grad.tolist() == [[0.5, 1.0], [0.0, 0.0]]


def test_nearest_never_predicts_a_missing_class() -> None:
    """The zero row of a missing class is nearest to the zero vector, and still not chosen."""
    ids, vectors = np.array([0, 2]), np.array([[3.0, 4.0], [6.0, 8.0]], np.float32)
    scores = nearest_scores(torch.zeros(1, 2), *spread_by_class(ids, vectors, 3))
    assert scores.tolist() == [[-5.0, -torch.inf, -10.0]]
    assert scores.argmax(dim=1).item() == 0


def test_distances_near_and_far() -> None:
    """Far from the origin small distances survive; where points coincide the gradient is 0."""
    rows = torch.tensor([[1e4, 0.0]], requires_grad=True)
    columns = torch.tensor([[1e4 + 0.125, 0.0], [1e4, 0.0]])
    found = distances(rows, columns)
    assert found.tolist() == [[0.125, 0.0]]
    found[0, 1].backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.0, 0.0]]
