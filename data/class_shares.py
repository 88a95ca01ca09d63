"""FedMRL's class split: one table of (class, share) per client, applied to every part alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data.partitioners import Rows, check_quotas
from data.spec import DataError

_SHARE_RANGE = (0.4, 0.6)


def share_table(
    classes: Rows, num_clients: int, classes_per_client: int, seed: int
) -> NDArray[np.float64]:
    """Draw which share of which class each client owns (FedMRL's released code).

    Every class is cut into floor(c K / C) shares, drawn from U(0.4, 0.6) and normalised; client
    after client picks c classes, always among those with the most shares left. Departure: where
    C does not divide c K, the released code runs out of shares; here the remainder goes, one
    share each, to randomly chosen classes.

    Parameters
    ----------
    classes : NDArray[np.int64]
        (C,) labels that occur.
    num_clients : int
        Number of clients K.
    classes_per_client : int
        Classes of each client, c.
    seed : int
        Seed of all draws.

    Returns
    -------
    table : NDArray[np.float64]
        (K, C), 0 where a client does not hold a class; every column sums to 1.

    Raises
    ------
    DataError
        If c exceeds C or K c is below C.
    """
    check_quotas("class-shares", len(classes), num_clients, classes_per_client)
    generator = np.random.default_rng(seed)
    each, remainder = divmod(num_clients * classes_per_client, len(classes))
    left = np.full(len(classes), each)
    left[generator.permutation(len(classes))[:remainder]] += 1
    shares = []
    for count in left:
        drawn = generator.uniform(*_SHARE_RANGE, size=count)
        shares.append(list(drawn / drawn.sum()))
    table = np.zeros((num_clients, len(classes)))
    for client in range(num_clients):
        for _ in range(classes_per_client):
            free = np.where(table[client] == 0, left, -1)  # -1: never the most
            pick = generator.choice(np.flatnonzero(free == free.max()))
            table[client, pick] = shares[pick].pop()
            left[pick] -= 1
    return table


def apply_table(table: NDArray[np.float64], classes: Rows, labels: Rows, seed: int) -> list[Rows]:
    """Share rows among clients as a table of shares says.

    Parameters
    ----------
    table : NDArray[np.float64]
        (K, C) as `share_table` returns.
    classes : NDArray[np.int64]
        (C,) the label of each column.
    labels : NDArray[np.int64]
        (N,) labels of the rows to share.
    seed : int
        Seed of the shuffle within a class.

    Returns
    -------
    rows : list[NDArray[np.int64]]
        One array of positions per client.
    """
    generator = np.random.default_rng(seed)
    parts: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in table]
    for column, label in enumerate(classes):
        rows = generator.permutation(np.flatnonzero(labels == label))
        owners = np.flatnonzero(table[:, column])
        # Cumulated before rounding, so that the parts add up to the class.
        ends = np.rint(np.cumsum(table[owners, column]) * len(rows)).astype(np.int64)
        for owner, part in zip(owners, np.split(rows, ends[:-1]), strict=True):
            parts[owner].append(part)
    return [np.concatenate(part) for part in parts]


def check_shares(table: NDArray[np.float64], classes: Rows, labels: Rows) -> None:
    """Refuse classes with fewer training examples than owners.

    Parameters
    ----------
    table, classes
        As in `apply_table`.
    labels : NDArray[np.int64]
        (N,) labels of the training rows.

    Raises
    ------
    DataError
        Naming the class and both numbers.
    """
    for column, label in enumerate(classes):
        owners, examples = np.count_nonzero(table[:, column]), np.count_nonzero(labels == label)
        if examples < owners:
            raise DataError(
                f"partition=class-shares: class {label} has {examples} training examples for "
                f"{owners} clients; use fewer clients, fewer classes-per-client, or a larger "
                "subset."
            )
