"""Partitions that the data bring along: one client a user, a device, a hospital."""

from __future__ import annotations

import numpy as np

from data.image_dataset import Dataset
from data.partitioners import Rows
from data.spec import COLUMN_DATASETS, HUB_PREFIX, DataError, DataSpec


def natural_groups(spec: DataSpec, dataset: Dataset) -> Rows:
    """Return whose each row is, (N,).

    Raises
    ------
    DataError
        If the data set has no such column, or the sizes of clients are to be drawn.
    """
    if spec.size_sigma:
        raise DataError(
            f"size-sigma={spec.size_sigma}: partition={spec.partition} decides on the sizes; set "
            "size-sigma=0, or another partition."
        )
    if dataset.groups is None:
        raise DataError(
            f"partition={spec.partition}: {dataset.name} has no columns; data sets with columns "
            f"are {', '.join(COLUMN_DATASETS)} and {HUB_PREFIX}NAME."
        )
    return dataset.groups


def natural_parts(spec: DataSpec, groups: Rows, num_clients: int) -> list[Rows]:
    """Return the positions of each owner's rows, by the owners' sorted names.

    Raises
    ------
    DataError
        If there are not as many owners as clients.
    """
    owners = np.unique(groups)
    if len(owners) != num_clients:
        raise DataError(
            f"partition={spec.partition}: the rows that are shared have {len(owners)} different "
            f"values of {spec.natural_column!r}, one client each, and there are {num_clients} "
            f"clients; simulate {len(owners)} (num-supernodes, or `wildflower run --clients "
            f"{len(owners)}`), or choose another partition."
        )
    return [np.flatnonzero(groups == owner) for owner in owners]
