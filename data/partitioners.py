"""How rows are shared among clients: one function per scheme, pure in (labels, numbers, seed).

Each takes the labels of the rows to share and returns, for K clients, arrays of positions in
that label array; every position occurs exactly once. The Dirichlet and IID schemes are those of
flwr-datasets; the other two are not in it.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.spec import DataError

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Rows = NDArray[np.int64]

# flwr-datasets itself draws eleven times per seed; this many seeds are tried.
_DIRICHLET_SEEDS = 5
# Constant of the released code: no client's part of a class is drawn below this over C.
_PATHOLOGICAL_LEAST = 40


def check_clients(num_clients: int, examples: int) -> None:
    """Refuse a client count that no scheme can serve.

    Parameters
    ----------
    num_clients : int
        Number of clients K.
    examples : int
        Number of examples N to share.

    Raises
    ------
    DataError
        If K is below 1 or above N.
    """
    if num_clients < 1:
        raise DataError(f"num-clients={num_clients} is not accepted; give a whole number from 1.")
    if num_clients > examples:
        raise DataError(
            f"{num_clients} clients cannot share {examples} examples; use at most {examples} "
            "clients, or a larger subset or dataset."
        )


def dirichlet(
    labels: Rows, num_clients: int, alpha: float, min_examples: int, seed: int
) -> list[Rows]:
    """Draw each class's shares from a symmetric Dirichlet (PRA, "practical" heterogeneity).

    FedRE's released code repeats the draw until every client has min(40, N/(2K)) examples; here
    40 is `min_examples` and the repeats are bounded. Clients that hold more than N/K examples get
    none of the remaining classes.

    Parameters
    ----------
    labels : NDArray[np.int64]
        (N,).
    num_clients : int
        Number of clients K.
    alpha : float
        Concentration, above 0.
    min_examples : int
        Fewest examples of a client; lowered to N/(2K). 0 allows empty clients.
    seed : int
        Seed of all draws.

    Returns
    -------
    rows : list[NDArray[np.int64]]
        One array per client.

    Raises
    ------
    DataError
        If no draw gave every client its minimum, with the sizes and what to change.
    """
    needed = min(min_examples, len(labels) // (2 * num_clients))
    shares = _dirichlet_with(labels, num_clients, alpha, needed, seed)
    if shares is not None:
        return shares
    smallest = _largest_minimum(labels, num_clients, alpha, needed, seed)
    if smallest is None:
        reached, third = "the proportions underflow to zero", "another partition-seed"
    else:
        reached = f"the smallest client of the best draw has {smallest}"
        third = f"a smaller minimum (min-examples={smallest})"
    raise DataError(
        f"partition=dirichlet with alpha={alpha:g} could not give each of {num_clients} clients "
        f"{needed} of {len(labels)} examples: {reached}. Use a larger alpha (alpha="
        f"{alpha * 5:g}), fewer clients ({max(1, num_clients // 4)}) or {third}."
    )


def _largest_minimum(
    labels: Rows, num_clients: int, alpha: float, needed: int, seed: int
) -> int | None:
    """Return the largest minimum below `needed` that a draw satisfies; None if there is no draw.

    The partitioner keeps the sizes of failed draws to itself, so each better draw is asked for.
    """
    largest = None
    least = 0
    while least < needed:
        shares = _dirichlet_with(labels, num_clients, alpha, least, seed)
        if shares is None:
            break
        largest = min(len(rows) for rows in shares)
        least = largest + 1
    return largest


def _dirichlet_with(
    labels: Rows, num_clients: int, alpha: float, needed: int, seed: int
) -> list[Rows] | None:
    """Return the first of some draws with so many examples for every client; None without one."""
    for attempt in np.random.SeedSequence(seed).generate_state(_DIRICHLET_SEEDS):
        shares = _dirichlet_draw(labels, num_clients, alpha, needed, int(attempt))
        if shares is not None:
            return shares
    return None


def _dirichlet_draw(
    labels: Rows, num_clients: int, alpha: float, needed: int, seed: int
) -> list[Rows] | None:
    """Run flwr-datasets' partitioner once; None if it gave up or its arithmetic failed."""
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=num_clients,
        partition_by="label",
        alpha=float(alpha),
        min_partition_size=needed,
        self_balancing=True,
        seed=seed,
    )
    # Small alphas underflow to all-zero proportions; without `errstate` the division gives NaN and
    # the partitioner silently hands the whole class to the last client.
    with warnings.catch_warnings(), np.errstate(divide="raise", invalid="raise"):
        warnings.simplefilter("ignore", UserWarning)
        try:
            return _run_partitioner(partitioner, labels, num_clients, seed)
        except (ValueError, FloatingPointError):
            return None


def iid(labels: Rows, num_clients: int, seed: int) -> list[Rows]:
    """Deal shuffled rows in equal parts; sizes differ by at most one.

    Parameters
    ----------
    labels : NDArray[np.int64]
        (N,).
    num_clients : int
        Number of clients K.
    seed : int
        Seed of the shuffle.

    Returns
    -------
    rows : list[NDArray[np.int64]]
        One array per client.
    """
    from flwr_datasets.partitioner import IidPartitioner

    return _run_partitioner(IidPartitioner(num_clients), labels, num_clients, seed)


def _run_partitioner(
    partitioner: Partitioner, labels: Rows, num_clients: int, seed: int
) -> list[Rows]:
    """Share positions through a flwr-datasets partitioner, by a column that numbers them."""
    from datasets import Dataset

    # Neither partitioner shuffles before it cuts, so the rows come shuffled.
    order = np.random.default_rng(seed).permutation(len(labels))
    partitioner.dataset = Dataset.from_dict({"row": order, "label": labels[order]})
    parts = []
    for client in range(num_clients):
        # Through Arrow: reading the column as Python objects is ten times slower.
        table = partitioner.load_partition(client).with_format("arrow")[:]
        parts.append(table["row"].to_numpy().astype(np.int64))
    return parts


def pathological(labels: Rows, num_clients: int, classes_per_client: int, seed: int) -> list[Rows]:
    """Give each client a few classes (PAT, "pathological" heterogeneity), as FedRE's code does.

    For each class in turn, the first ceil(K c / C) clients in id order that still miss classes
    get it. All but the last of them receive a random integer count in [max(n/10, 40/C), n), n
    being the class's size over their number; the last receives the rest.

    Departures, where the released code fails: a class takes fewer clients if otherwise a later
    class would find none (K c not divisible by C), and parts are n where the range is empty.

    Parameters
    ----------
    labels : NDArray[np.int64]
        (N,). C counts the classes that occur.
    num_clients : int
        Number of clients K.
    classes_per_client : int
        Classes of each client, c.
    seed : int
        Seed of all draws.

    Returns
    -------
    rows : list[NDArray[np.int64]]
        One array per client.

    Raises
    ------
    DataError
        If c exceeds C, K c is below C, or a class has fewer examples than clients.
    """
    classes = np.unique(labels)
    check_quotas("pathological", len(classes), num_clients, classes_per_client)
    generator = np.random.default_rng(seed)
    wanted = math.ceil(num_clients * classes_per_client / len(classes))
    quota = np.full(num_clients, classes_per_client)
    parts: list[list[Rows]] = [[] for _ in range(num_clients)]
    for number, label in enumerate(classes):
        later_classes = len(classes) - number - 1
        affordable = int(quota.sum()) - later_classes
        chosen = np.flatnonzero(quota > 0)[: min(wanted, affordable)]
        quota[chosen] -= 1
        rows = generator.permutation(np.flatnonzero(labels == label))
        sizes = _pathological_sizes(label, len(rows), len(chosen), len(classes), generator)
        for client, part in zip(chosen, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
            parts[client].append(part)
    return [np.concatenate(part) if part else np.empty(0, np.int64) for part in parts]


def _pathological_sizes(
    label: int, examples: int, holders: int, num_classes: int, generator: np.random.Generator
) -> Rows:
    """Draw how many examples of one class each of its holders receives; (holders,)."""
    if examples < holders:
        raise DataError(
            f"partition=pathological: class {label} has {examples} examples for {holders} clients; "
            "use fewer clients, fewer classes-per-client, or a larger subset."
        )
    equal = examples / holders
    low, high = int(max(equal / 10, _PATHOLOGICAL_LEAST / num_classes)), int(equal)
    if low < high:
        drawn = generator.integers(low, high, size=holders - 1)
    else:
        drawn = np.full(holders - 1, high)
    return np.append(drawn, examples - drawn.sum()).astype(np.int64)


def check_quotas(
    partition: str, num_classes: int, num_clients: int, classes_per_client: int
) -> None:
    """Refuse classes per client that cannot be had, or that leave a class to nobody.

    Parameters
    ----------
    partition : str
        The scheme, for the message.
    num_classes, num_clients, classes_per_client : int
        C, K and c.

    Raises
    ------
    DataError
        If c exceeds C, or K c is below C.
    """
    if classes_per_client > num_classes:
        raise DataError(
            f"partition={partition}: classes-per-client={classes_per_client} exceeds the "
            f"{num_classes} classes of the dataset; set classes-per-client={num_classes} or less."
        )
    if classes_per_client * num_clients < num_classes:
        raise DataError(
            f"partition={partition}: {num_clients} clients with classes-per-client="
            f"{classes_per_client} hold at most {num_clients * classes_per_client} of "
            f"{num_classes} classes, and every example must have an owner. Set classes-per-client="
            f"{math.ceil(num_classes / num_clients)} or use "
            f"{math.ceil(num_classes / classes_per_client)} clients."
        )
