"""From a partition scheme to each client's training, validation and test rows."""

from __future__ import annotations

import hashlib
import itertools
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data import partitioners
from data.cache import cache_root, fetch_entry
from data.class_shares import apply_table, check_shares, share_table
from data.flwr_partitions import flwr_partition
from data.image_dataset import Dataset
from data.natural import natural_groups, natural_parts
from data.official import apart, official_rows, purpose_seed, validation_of
from data.partitioners import Rows
from data.sizes import unlike_iid_sizes, unlike_shares, unlike_sizes
from data.spec import FLWR_PARTITION, DataError, DataSpec

# Raise it when a scheme changes what it draws, so that old entries are not read.
_FORMAT = 1
_TEST_SHARE = 0.25
_PARTS = ("train", "validation", "test")
_FILE = "split.npz"


@dataclass(frozen=True, eq=False)
class ClientIndices:
    """The rows of a dataset that one client holds, ascending and read-only.

    Attributes
    ----------
    train, validation, test : NDArray[np.int64]
        Rows of the dataset; disjoint, within a client and (but for a global test set) across
        clients.
    """

    train: Rows
    validation: Rows
    test: Rows


def partition_indices(spec: DataSpec, dataset: Dataset, num_clients: int) -> list[ClientIndices]:
    """Share a dataset's rows among clients; a function of (labels, spec, num_clients) only.

    With `test_split="personal"` the official parts are pooled and each client's pool is cut into
    75 % training and 25 % test rows at random; a client with a single example trains on it. With
    "global" only the official training part is shared and every client is tested on the whole
    official test part. `class-shares` never pools: its table is applied to each part. Validation
    rows, a `validation_fraction` of the training rows rounded down, are taken out of them at
    random; where the data set brings a validation set of its own, its rows are shared out with
    the others, and those of a client's share are its validation rows.

    Parameters
    ----------
    spec : DataSpec
        The description.
    dataset : Dataset
        The dataset it describes.
    num_clients : int
        Number of clients K.

    Returns
    -------
    clients : list[ClientIndices]
        By client id.

    Raises
    ------
    DataError
        If the request cannot be satisfied, with sizes and what to change.
    """
    return list(_partition(spec, dataset, num_clients, str(cache_root())))


@lru_cache(maxsize=8)
def _partition(
    spec: DataSpec, dataset: Dataset, num_clients: int, root: str
) -> tuple[ClientIndices, ...]:
    relevant = (
        _FORMAT,
        dataset.labels_digest,
        num_clients,
        spec.partition,
        float(spec.alpha),
        spec.classes_per_client,
        spec.min_examples,
        spec.partition_seed,
        spec.test_split,
        float(spec.validation_fraction),
        float(spec.subset),
        # Where it is 0, entries keep the names they had before it came.
        *([float(spec.size_sigma)] if spec.size_sigma else []),
        *([spec.partition_options] if spec.partition_options else []),
    )
    key = hashlib.sha256(repr(relevant).encode()).hexdigest()[:16]

    def build(target: Path) -> None:
        _write(target, compute_split(spec, dataset, num_clients))

    return fetch_entry(Path(root) / "splits" / f"{num_clients}-{key}", _read, build)


def compute_split(spec: DataSpec, dataset: Dataset, num_clients: int) -> list[ClientIndices]:
    """Compute what `partition_indices` returns, without reading or writing any cache.

    Parameters and errors are those of `partition_indices`.
    """
    train, held, test = official_rows(spec, dataset)
    labels = natural_groups(spec, dataset) if spec.natural_column else dataset.labels
    if spec.partition == "class-shares":
        clients = _class_shares(spec, labels, (train, held, test), num_clients)
    elif spec.test_split == "personal":
        pool = np.concatenate([train, held, test])
        clients = _personal(spec, labels, pool, held, num_clients)
    else:
        pool = np.concatenate([train, held])
        clients = _training_only(spec, labels, pool, held, num_clients)
    if spec.test_split == "global":
        # One array for all: a copy for each of 1000 clients would take 80 MB.
        shared = _frozen(test)
        return [
            ClientIndices(_frozen(client.train), _frozen(client.validation), shared)
            for client in clients
        ]
    return [
        ClientIndices(_frozen(client.train), _frozen(client.validation), _frozen(client.test))
        for client in clients
    ]


def _personal(
    spec: DataSpec, labels: Rows, pool: Rows, held: Rows, num_clients: int
) -> list[ClientIndices]:
    clients = []
    shares = _share(spec, labels, pool, num_clients)
    for share, generator in zip(shares, _generators(spec, "roles"), strict=False):
        rows, given = apart(share, held)
        # The test part is rounded up, but the only example of a client is for training.
        tested = math.ceil(len(rows) * _TEST_SHARE) if len(rows) > 1 else 0
        shuffled = generator.permutation(rows)
        train, validation = validation_of(spec, shuffled[tested:], given, held, generator)
        clients.append(ClientIndices(train, validation, shuffled[:tested]))
    return clients


def _training_only(
    spec: DataSpec, labels: Rows, pool: Rows, held: Rows, num_clients: int
) -> list[ClientIndices]:
    clients = []
    shares = _share(spec, labels, pool, num_clients)
    for share, generator in zip(shares, _generators(spec, "roles"), strict=False):
        rows, given = apart(share, held)
        train, validation = validation_of(spec, rows, given, held, generator)
        clients.append(ClientIndices(train, validation, pool[:0]))
    return clients


def _share(spec: DataSpec, labels: Rows, rows: Rows, num_clients: int) -> list[Rows]:
    """Apply the scheme to some rows; positions become rows again."""
    partitioners.check_clients(num_clients, len(rows))
    mine, seed = labels[rows], purpose_seed(spec, "partition")
    if spec.natural_column:
        return [rows[part] for part in natural_parts(spec, mine, num_clients)]
    # With drawn sizes the minimum is theirs; the scheme only has to leave nobody out.
    least = min(spec.min_examples, 1) if spec.size_sigma else spec.min_examples
    if spec.partition == "dirichlet":
        parts = partitioners.dirichlet(mine, num_clients, spec.alpha, least, seed)
    elif spec.partition == "pathological":
        parts = partitioners.pathological(mine, num_clients, spec.classes_per_client, seed)
    elif spec.partition.startswith(FLWR_PARTITION):
        if spec.size_sigma:
            raise DataError(
                f"size-sigma={spec.size_sigma}: partition={spec.partition} decides on the sizes; "
                "set size-sigma=0, or another partition."
            )
        options = spec.partition_options
        return [
            rows[part] for part in flwr_partition(mine, num_clients, spec.partition, options, seed)
        ]
    else:
        parts = partitioners.iid(mine, num_clients, seed)
    if spec.size_sigma:
        parts = _unlike(spec, mine, parts)
    return [rows[part] for part in parts]


def _unlike(spec: DataSpec, labels: Rows, parts: list[Rows]) -> list[Rows]:
    sigma, least, seed = spec.size_sigma, spec.min_examples, purpose_seed(spec, "sizes")
    if spec.partition == "iid":
        return unlike_iid_sizes(parts, sigma, least, seed)
    keep = spec.partition == "pathological"
    return unlike_sizes(labels, parts, sigma, least, seed, keep=keep)


def _class_shares(
    spec: DataSpec, labels: Rows, official: tuple[Rows, Rows, Rows], num_clients: int
) -> list[ClientIndices]:
    train, held, test = official
    partitioners.check_clients(num_clients, len(train))
    classes = np.unique(labels[np.concatenate(official)])
    table = share_table(
        classes, num_clients, spec.classes_per_client, purpose_seed(spec, "partition")
    )
    generator = np.random.default_rng(purpose_seed(spec, "validation"))
    rest, validation = validation_of(spec, train, held, held, generator)
    check_shares(table, classes, labels[rest])
    if spec.size_sigma:
        totals = np.array([np.count_nonzero(labels[rest] == label) for label in classes])
        seed = purpose_seed(spec, "sizes")
        table = unlike_shares(table, totals, spec.size_sigma, spec.min_examples, seed)
    parts = [
        [
            rows[part]
            for part in apply_table(table, classes, labels[rows], purpose_seed(spec, purpose))
        ]
        for purpose, rows in (("train", rest), ("held-out", validation), ("test", test))
    ]
    return [ClientIndices(*arrays) for arrays in zip(*parts, strict=True)]


def _generators(spec: DataSpec, purpose: str) -> Iterator[np.random.Generator]:
    """Yield one private generator per client, by client id."""
    seed = purpose_seed(spec, purpose)
    for client in itertools.count():
        yield np.random.default_rng([seed, client])


def _frozen(rows: Rows) -> Rows:
    ascending = np.sort(rows)  # neighbouring rows share pages of the mapped images
    ascending.flags.writeable = False
    return ascending


def _write(target: Path, clients: list[ClientIndices]) -> None:
    """Store each part as one array of rows plus a count per client; a shared test set once."""
    shared_test = len(clients) > 1 and all(client.test is clients[0].test for client in clients)
    arrays: dict[str, NDArray[np.int64]] = {}
    for part in _PARTS:
        holders = clients[:1] if part == "test" and shared_test else clients
        rows = [getattr(client, part) for client in holders]
        arrays[part] = np.concatenate(rows)
        arrays[f"{part}_counts"] = np.array([len(array) for array in rows], dtype=np.int64)
    np.savez(target / _FILE, allow_pickle=False, **arrays)


def _read(entry: Path) -> tuple[ClientIndices, ...]:
    parts: dict[str, list[Rows]] = {}
    try:
        with np.load(entry / _FILE, allow_pickle=False) as stored:
            for part in _PARTS:
                ends = np.cumsum(stored[f"{part}_counts"])
                rows = stored[part]
                rows.flags.writeable = False
                parts[part] = np.split(rows, ends[:-1])
    except zipfile.BadZipFile as error:
        raise ValueError(f"{entry} is damaged") from error
    if len(parts["test"]) == 1:
        parts["test"] *= len(parts["train"])
    return tuple(ClientIndices(*arrays) for arrays in zip(*parts.values(), strict=True))


def clear_memory() -> None:
    """Forget the splits this process has read; files stay."""
    _partition.cache_clear()
