"""Partitioners of flwr-datasets by name, with their arguments."""

from __future__ import annotations

import numpy as np
import pytest

from data import DataError, DataSpec, load_dataset, partition_indices
from data.flwr_partitions import flwr_partition

LABELS = np.repeat(np.arange(4), 50)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("IidPartitioner", ""),
        ("DirichletPartitioner", "alpha=0.5, min_partition_size=2"),
        ("ShardPartitioner", "num_shards_per_partition=2"),
        ("PathologicalPartitioner", "num_classes_per_partition=2"),
        ("LinearPartitioner", ""),
        ("SizePartitioner", "partition_sizes=[20, 30, 50, 60]"),
        ("InnerDirichletPartitioner", "partition_sizes=[50, 50, 50, 50], alpha=0.3"),
        (
            "DistributionPartitioner",
            "distribution_array=[[1, 2], [1, 1], [1, 1], [3, 1]], "
            "num_unique_labels_per_partition=2, preassigned_num_samples_per_label=3",
        ),
    ],
)  # fmt: skip
def test_rows_are_shared_by_the_named_one(name: str, options: str) -> None:
    parts, again = (flwr_partition(LABELS, 4, f"flwr:{name}", options, 3) for _ in range(2))
    assert len(parts) == 4
    owned = np.concatenate(parts)
    assert len(np.unique(owned)) == len(owned) > 100
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))
    other = flwr_partition(LABELS, 4, f"flwr:{name}", options, 4)
    assert any(not np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_sizes_and_classes_are_what_was_asked_for() -> None:
    sizes = "partition_sizes=[20, 30, 50, 60]"
    parts = flwr_partition(LABELS, 4, "flwr:SizePartitioner", sizes, 0)
    assert [len(part) for part in parts] == [20, 30, 50, 60]
    few = "num_classes_per_partition=2"
    parts = flwr_partition(LABELS, 4, "flwr:PathologicalPartitioner", few, 0)
    assert all(len(np.unique(LABELS[part])) <= 2 for part in parts)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("NoPartitioner", "", "has no such partitioner of rows; it has ContinuousPartitioner"),
        ("NaturalIdPartitioner", "", "has no such partitioner"),
        ("ShardPartitioner", "shards=2", "takes no shards; it takes num_partitions"),
        ("ShardPartitioner", "", "failed|does not take this"),
        ("DirichletPartitioner", "alpha", "is no list like"),
        ("DirichletPartitioner", "", "does not take this"),
        ("SizePartitioner", "partition_sizes=[20, 30]", "makes 2 parts for 4 clients"),
    ],
)
def test_what_is_wrong_is_said(name: str, options: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        flwr_partition(LABELS, 4, f"flwr:{name}", options, 0)


def test_a_run_shares_its_data_set_so() -> None:
    spec = DataSpec(
        subset=0.2, partition="flwr:ShardPartitioner",
        partition_options="num_shards_per_partition=2",
    )  # fmt: skip
    clients = partition_indices(spec, load_dataset("digits"), 4)
    rows = np.concatenate([np.concatenate([c.train, c.validation, c.test]) for c in clients])
    assert len(np.unique(rows)) == len(rows) > 300
    with pytest.raises(DataError, match="size-sigma"):
        partition_indices(
            DataSpec(partition="flwr:IidPartitioner", size_sigma=1.0), load_dataset("digits"), 4
        )
    with pytest.raises(DataError, match="flwr:NAME, or natural:COLUMN"):
        DataSpec(partition="flwr:")
