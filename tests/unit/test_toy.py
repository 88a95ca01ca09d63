"""The data set `toy`: what its docstring says of it, and that it goes where tables go."""

from __future__ import annotations

import numpy as np
import pytest

from data import DataError, DataSpec, TaskSpec, VectorDataset, load_dataset, load_task_data
from data.toy import means, roots, toy
from server_app.idle_keys import idle_keys
from strategies.base.parsing import parse_run_config

pytestmark = pytest.mark.usefixtures("private_cache")

TASK = TaskSpec("classification", "toy")


def log_densities(points: np.ndarray) -> np.ndarray:
    """Return log densities at points (n, 2) by class, (n, 5), up to a constant."""
    columns = []
    for mean, root in zip(means(), roots(), strict=True):
        inverse = np.linalg.inv(root @ root.T)
        steps = points - mean
        distances = np.einsum("ni,ij,nj->n", steps, inverse, steps)
        columns.append(-distances / 2 - np.log(abs(np.linalg.det(root))))
    return np.stack(columns, axis=1)


def test_who_knows_the_distributions_is_right_71_times_of_100() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 5, 100_000)
    steps = draw.standard_normal((len(labels), 2))
    points = means()[labels] + np.einsum("nij,nj->ni", roots()[labels], steps)
    right = (log_densities(points).argmax(axis=1) == labels).mean()
    assert right == pytest.approx(0.71, abs=0.005)


def test_points_are_always_the_same_and_standardised() -> None:
    one, other = toy(), toy()
    assert np.array_equal(one.inputs, other.inputs)
    assert one.inputs.shape == (2_500, 2)
    np.testing.assert_allclose(one.inputs[:2_000].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(one.inputs[:2_000].std(axis=0), 1, atol=1e-6)
    assert np.bincount(one.labels[one.train_size :]).tolist() == [100] * 5


def test_clients_share_its_rows() -> None:
    found = load_dataset("toy")
    assert isinstance(found, VectorDataset)
    assert (found.name, found.features, found.class_names) == ("toy", 2, tuple("ABCDE"))
    parts = [load_task_data(DataSpec("toy", alpha=1.0), [TASK], i, 4, None) for i in range(4)]
    assert sum(len(p.train) + len(p.validation) + len(p.test) for p in parts) == 2_500


def test_it_has_no_columns() -> None:
    with pytest.raises(DataError, match=r"toy has no columns; .* are tabular, series and hf:NAME"):
        load_task_data(DataSpec("toy", partition="natural:x"), [TASK], 0, 4, None)
    run = parse_run_config({"dataset": "toy", "models": "mlp-small", "label-column": "x"})
    assert any("label-column" in text for text in idle_keys(run))
