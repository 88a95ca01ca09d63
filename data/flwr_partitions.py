"""Any partitioner of flwr-datasets by its name: `partition='flwr:ShardPartitioner'`."""

from __future__ import annotations

import inspect
import tomllib
import warnings
from typing import Any

import numpy as np

from data.partitioners import Rows
from data.spec import FLWR_PARTITION, DataError

_LABEL = "label"
_NO_PARTITIONER = frozenset(
    (
        # Of columns, by a function, or by a column that the labels' own data set lacks
        *("VerticalEvenPartitioner", "VerticalSizePartitioner", "IdToSizeFncPartitioner"),
        *("Partitioner", "NaturalIdPartitioner", "GroupedNaturalIdPartitioner"),
    )
)


def flwr_partition(
    labels: Rows, num_clients: int, partition: str, options: str, seed: int
) -> list[Rows]:
    """Share rows by a partitioner of flwr-datasets.

    It is given `num_partitions`, `seed` and `partition_by`, the label, where it takes them and the
    options do not name them; what it takes as an array is given as an array.

    Parameters
    ----------
    labels : NDArray[np.int64]
        (N,).
    num_clients : int
        Number of clients K.
    partition, options : str
        `partition` and `partition_options` of a `DataSpec`.
    seed : int
        Seed of all draws, and of the order in which the partitioner sees the rows.

    Returns
    -------
    rows : list[NDArray[np.int64]]
        One array per client; no row has two owners, and some partitioners leave rows out.

    Raises
    ------
    DataError
        If there is no such partitioner, it does not take the options, it fails, or it makes
        another number of parts.
    """
    from datasets import Dataset

    partitioner = _made(partition, options, num_clients, seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    parts = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            partitioner.dataset = Dataset.from_dict({"row": order, _LABEL: labels[order]})
            if (made := partitioner.num_partitions) != num_clients:
                raise ValueError(f"it makes {made} parts for {num_clients} clients")
            for client in range(num_clients):
                table = partitioner.load_partition(client).with_format("arrow")[:]
                parts.append(table["row"].to_numpy().astype(np.int64))
    except (ValueError, TypeError, IndexError, KeyError, ArithmeticError, RuntimeError) as error:
        raise _refused(partition, options, f"failed: {error}") from error
    owned = np.concatenate(parts)
    if len(np.unique(owned)) != len(owned):
        raise _refused(partition, options, "gave a row to two clients")
    return parts


def _made(partition: str, options: str, num_clients: int, seed: int) -> Any:
    from flwr_datasets import partitioner as library

    name = partition.removeprefix(FLWR_PARTITION)
    known = sorted(set(library.__all__) - _NO_PARTITIONER)
    if name not in known:
        raise DataError(
            f"partition={partition}: flwr-datasets has no such partitioner of rows; it has "
            f"{', '.join(known)}."
        )
    kind: Any = getattr(library, name)
    taken = inspect.signature(kind).parameters
    given = {"num_partitions": num_clients, "partition_by": _LABEL, "seed": seed}
    values = {k: v for k, v in given.items() if k in taken} | _read(partition, options)
    if unknown := sorted(set(values) - set(taken)):
        raise _refused(partition, options, f"takes no {unknown[0]}; it takes {', '.join(taken)}")
    for key, value in values.items():
        if isinstance(value, list) and str(taken[key].annotation).startswith("numpy.ndarray"):
            values[key] = np.array(value)
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise _refused(partition, options, f"does not take this: {error}") from error


def _read(partition: str, options: str) -> dict[str, Any]:
    try:
        return dict(tomllib.loads(f"options = {{{options}}}")["options"])
    except tomllib.TOMLDecodeError as error:
        text = "is no list like 'alpha=0.5, shuffle=false' with TOML values"
        raise _refused(partition, options, f"{text} ({error})") from error


def _refused(partition: str, options: str, reason: str) -> DataError:
    return DataError(
        f"partition={partition} with partition-options={options!r} {reason}; set other "
        "partition-options, or another partition."
    )
