"""Splits of the comparisons and presets that ship: each can be drawn, whoever runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from data.image_dataset import ImageDataset
from data.partition import compute_split
from data.spec import DataError, DataSpec
from deploy.compare.plan import Plan, read_plan
from deploy.reproduce.listing import plan_of
from deploy.reproduce.loads import DATA
from deploy.reproduce.preset_file import find_preset, preset_names

COMPARISONS = Path(__file__).parents[2] / "deploy" / "comparisons"
OFFICIAL = {**DATA, "imagefolder": DATA["cifar10"]}
"""Sizes by data set; the folder of pictures that the comparisons read is CIFAR-10."""
SCARCE = 300
"""Rows a client up to which Dirichlet's minimum can be out of reach; above it draws are slow."""


@cache
def of_size(name: str) -> ImageDataset:
    """Return a data set of the official size and of as many rows of every class, without images."""
    official = OFFICIAL[name]
    sizes, classes = (official.train, official.test), official.shape.num_classes
    generator = np.random.default_rng(0)
    labels = [generator.permutation(np.arange(rows) % classes) for rows in sizes]
    return ImageDataset(
        name=name,
        images=np.empty((sum(sizes), 1, 1, 1), np.uint8),
        labels=np.concatenate(labels),
        train_size=official.train,
        class_names=tuple(map(str, range(classes))),
        fingerprint=name,
    )


def scarce_splits(plan: Plan) -> Iterator[DataSpec]:
    for planned in plan.runs:
        run = planned.run
        if run.partition != "dirichlet" or run.dataset not in OFFICIAL or run.tasks:
            continue
        official = OFFICIAL[run.dataset]
        if (official.train + official.test) * run.subset / plan.clients <= SCARCE:
            yield run.data_spec


def undrawn(plan: Plan) -> list[str]:
    """Return why splits of few rows a client cannot be drawn, each split once."""
    reasons = []
    for spec in dict.fromkeys(scarce_splits(plan)):
        try:
            compute_split(spec, of_size(spec.dataset), plan.clients)
        except DataError as error:
            reasons.append(f"partition-seed={spec.partition_seed}: {error}")
    return reasons


@pytest.mark.parametrize("path", sorted(COMPARISONS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_comparison_can_divide_its_data(path: Path) -> None:
    assert undrawn(read_plan(path)) == []


def test_every_preset_can_divide_its_data() -> None:
    presets = [find_preset(name) for name in preset_names()]
    plans = [plan_of(preset, scale) for preset in presets for scale in preset.scales]
    assert [reason for plan in plans for reason in undrawn(plan)] == []


def test_a_split_that_cannot_be_drawn_is_found() -> None:
    """A hundred clients, ten of 6,000 rows each at least, Dirichlet(0.1): a file here asked it."""
    plan = read_plan(COMPARISONS / "fedmrl-settings-100.yaml")
    planned = next(planned for planned in plan.runs if planned.run.partition == "dirichlet")
    run = dataclasses.replace(planned.run, min_examples=10)
    asked = dataclasses.replace(planned, run=run)
    (reason,) = undrawn(dataclasses.replace(plan, runs=(asked,)))
    assert "could not give each of 100 clients 10 of 6000 examples" in reason
