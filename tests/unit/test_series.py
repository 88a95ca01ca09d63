"""Windows of time series, and the models of rows and windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import data
from data import DataError, DataSpec, VectorDataset, load_dataset
from models import (
    InputShape,
    ModelError,
    SeriesShape,
    Shape,
    TableShape,
    build_model,
    build_task_model,
    list_models,
)
from tests.support import run_federation

pytestmark = pytest.mark.usefixtures("private_cache")


def opened(place: Path, **changes: Any) -> VectorDataset:
    data.clear_memory()
    found = load_dataset(DataSpec("series", data_dir=str(place), **changes))
    assert isinstance(found, VectorDataset)
    return found


def test_windows_by_hand(tmp_path: Path) -> None:
    """Channels by the training windows' mean and deviation; a gap is the mean."""
    windows = np.array([[[1, 3], [10, 10]], [[5, 7], [10, 10]]], np.float32)
    np.savez(tmp_path / "train.npz", x=windows, y=np.array(["walk", "sit"]))
    test = np.array([[[np.nan, 4], [1e9, 10]]])
    np.savez(tmp_path / "test.npz", y=np.array(["sit"]), x=test)
    found = opened(tmp_path)
    assert (found.features, found.steps, found.train_size) == (2, 2, 2)
    assert found.class_names == ("sit", "walk")
    scale = np.std([1, 3, 5, 7])
    assert found.inputs[0, 0].tolist() == pytest.approx([-3 / scale, -1 / scale])
    assert found.inputs[2].tolist() == [[0, 0], [10, 0]]
    said = "; ".join(found.notes)
    assert "1 values are gaps" in said
    assert "1 values cut off" in said


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((4, 2)), "y": np.arange(4)}, r"'x' \(4, 2\).*expected one array \(N, chan"),
        ({"x": np.zeros((4, 1, 2)), "y": np.arange(3)}, r"set it to the array \(4,\) of labels"),
        ({"x": np.zeros((4, 1, 2)), "a": np.arange(4), "b": np.arange(4)}, "one of a, b"),
        ({"x": np.full((4, 1, 2), np.inf), "y": [0, 1, 0, 1]}, "window 0, channel 0, step 0"),
        ({"x": np.full((4, 1, 2), np.nan), "y": [0, 1, 0, 1]}, "channel 0 .* has no value at all"),
        ({"x": np.zeros((4, 1, 2)), "y": [0, 0, 0, 0]}, "'y' has 1 different values"),
        ({"x": np.zeros((2, 1, 2)), "y": np.array([{}, 1], object)}, "cannot be read.*of objects"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "train.npz", **arrays)
    with pytest.raises(DataError, match=said):
        opened(tmp_path)
    (tmp_path / "train.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read"):
        opened(tmp_path)


SHAPES: dict[str, tuple[Shape, ...]] = {
    "table": (TableShape(1, 1), TableShape(30, 4)),
    "series": (SeriesShape(1, 1, 1), SeriesShape(9, 37, 4)),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (n, shape)
        for kind, all_ in SHAPES.items()
        for n in list_models(modality=kind)
        for shape in all_
    ],
)
def test_models_of_numbers_keep_the_rules(name: str, shape: Shape) -> None:
    """Any number of examples, a gradient for every weight, the head of the common shape."""
    model = build_model(name, shape, 16, seed=0)
    size = (shape.features,) if isinstance(shape, TableShape) else (shape.channels, shape.steps)
    draw = torch.Generator().manual_seed(0)
    for count in (1, 5):
        model.zero_grad()
        outputs = model(torch.randn(count, *size, generator=draw))
        assert outputs.shape == (count, shape.num_classes)
        outputs.square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    task = build_task_model(name, "regression", shape, 8, seed=0)
    assert task.represent(torch.randn(3, *size, generator=draw)).shape == (3, 8)


def test_a_model_of_something_else_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'cnn5' reads image, its data has rows of 3.*mlp-small"):
        build_model("cnn5", TableShape(3, 2))
    with pytest.raises(ModelError, match=r"'mlp-small' reads tables, task regression has time ser"):
        build_task_model("mlp-small", "regression", SeriesShape(2, 8, 1), 8)
    with pytest.raises(ModelError, match="'gru-small' reads series, its data has 3x32x32 images"):
        build_model("gru-small", InputShape(3, 32, 10))


@pytest.mark.parametrize("method", ["fedavg", "fml"])
def test_windows_are_learned(method: str, tmp_path: Path) -> None:
    """Slow and fast waves, one client a user; CNN and GRU side by side."""
    draw = np.random.default_rng(0)
    speed = draw.integers(0, 2, 120)
    waves = np.sin(np.arange(16) * (0.4 + 0.8 * speed[:, None]))
    windows = np.stack([waves, 100 * draw.normal(size=(120, 16))], axis=1)
    user = np.arange(120) % 3
    np.savez(tmp_path / "train.npz", windows=windows, speed=speed, user=user)
    run = run_federation(
        tmp_path, 3, method=method, dataset="series", data_dir=str(tmp_path), subset=1.0,
        label_column="speed", partition="natural:user", models="cnn1d-small, gru-small",
        feature_dim=16, num_rounds=2, local_epochs=8, batch_size=8,
        optimizer="adam", lr=0.01,
    )  # fmt: skip
    assert run.summary["accuracy"]["final"] > 0.9
    assert {(row["features"], row["steps"]) for row in run.rows("clients")} == {("2", "16")}
