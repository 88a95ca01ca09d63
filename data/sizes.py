"""Clients of unlike sizes: log-normal quantities for every partition scheme.

The scheme decides which classes go to whom, the sizes how many rows each client gets. Sizes are
drawn in proportion to exp(sigma z), z standard normal, as in FedDyn's released code
(`unbalanced_sgm`; Acar et al., ICLR 2021). The scheme's table of rows by client and class is then
fitted to these sizes and to the classes' own totals (iterative proportional fitting, Deming and
Stephan 1940): of all tables with these margins it is the one nearest to the scheme's in relative
entropy, it keeps odds ratios, and a class that a client lacks stays absent. Where the classes that
clients hold leave no room, sizes come as near to those drawn as they allow; every row still has
one owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from data.partitioners import Rows
from data.spec import DataError

Table = NDArray[np.float64]
T = TypeVar("T")

_DRAWS = 10
_FIT_STEPS = 500
_SETTLED = 0.01  # rows of a client by which a step may still change its size


def unlike_sizes(
    labels: Rows, parts: list[Rows], sigma: float, least: int, seed: int, *, keep: bool
) -> list[Rows]:
    """Share out again what a scheme has shared, so that clients get log-normal sizes.

    Parameters
    ----------
    labels : NDArray[np.int64]
        (N,).
    parts : list[NDArray[np.int64]]
        K arrays of positions, as a scheme returns them; an empty one stays empty.
    sigma : float
        Deviation of the logarithm of the sizes, above 0.
    least : int
        Fewest rows of a client; lowered to N/(2K).
    seed : int
        Seed of all draws.
    keep : bool
        Whether every client keeps at least one row of each class it has.

    Returns
    -------
    rows : list[NDArray[np.int64]]
        One array per client; every position exactly once.

    Raises
    ------
    DataError
        If none of ten draws gave every client its minimum, with sizes and what to change.
    """
    classes, columns = np.unique(labels, return_inverse=True)
    counts = _count(columns, parts, len(classes))
    owned = np.concatenate(parts)

    def share(generator: np.random.Generator) -> tuple[list[Rows], Rows]:
        sizes = draw_sizes(counts.sum(axis=1), sigma, generator)
        table = to_whole(fit_table(counts, sizes, least=int(keep)), sizes)
        shared: list[list[Rows]] = [[] for _ in parts]
        for column in range(len(classes)):
            rows = generator.permutation(owned[columns[owned] == column])
            for rest, part in zip(shared, np.split(rows, np.cumsum(table[:, column])[:-1]),
                                  strict=True):  # fmt: skip
                rest.append(part)
        return [np.concatenate(part) for part in shared], table.sum(axis=1)

    return first_with_minimum(share, sigma, len(parts), len(labels), least, seed)


def unlike_iid_sizes(parts: list[Rows], sigma: float, least: int, seed: int) -> list[Rows]:
    """As `unlike_sizes` for shuffled rows, which are cut anew: each client's remain a random draw.

    Parameters and errors are those of `unlike_sizes`.
    """
    shuffled, lengths = np.concatenate(parts), np.array([len(part) for part in parts])

    def share(generator: np.random.Generator) -> tuple[list[Rows], Rows]:
        sizes = draw_sizes(lengths, sigma, generator)
        return np.split(shuffled, np.cumsum(sizes)[:-1]), sizes

    return first_with_minimum(share, sigma, len(parts), len(shuffled), least, seed)


def unlike_shares(table: Table, totals: Rows, sigma: float, least: int, seed: int) -> Table:
    """Fit a table of class shares to log-normal sizes.

    Parameters
    ----------
    table : NDArray[np.float64]
        (K, C) shares of classes, columns adding up to 1, as `class_shares.share_table` returns.
    totals : NDArray[np.int64]
        (C,) training rows of each class, at least as many as it has owners.
    sigma, least, seed
        As in `unlike_sizes`.

    Returns
    -------
    fitted : NDArray[np.float64]
        (K, C) shares, columns adding up to 1; 0 where `table` has 0.

    Raises
    ------
    DataError
        As `unlike_sizes`.
    """
    counts = table * totals

    def share(generator: np.random.Generator) -> tuple[Table, Rows]:
        sizes = draw_sizes(counts.sum(axis=1), sigma, generator)
        fitted = fit_table(counts, sizes, least=1)
        return fitted / np.maximum(totals, 1), np.floor(fitted.sum(axis=1)).astype(np.int64)

    return first_with_minimum(share, sigma, len(table), int(totals.sum()), least, seed)


def first_with_minimum(
    share: Callable[[np.random.Generator], tuple[T, Rows]],
    sigma: float,
    clients: int,
    examples: int,
    least: int,
    seed: int,
) -> T:
    """Return the first draw in which no client has fewer rows than the minimum.

    Raises
    ------
    DataError
        After ten draws, with the sizes and what to change.
    """
    needed = min(least, examples // (2 * clients))
    smallest = []
    for attempt in np.random.SeedSequence(seed).generate_state(_DRAWS):
        shared, sizes = share(np.random.default_rng(int(attempt)))
        if sizes.min() >= needed:
            return shared
        smallest.append(int(sizes.min()))
    raise DataError(
        f"size-sigma={sigma:g} could not give each of {clients} clients {needed} of {examples} "
        f"examples: in {_DRAWS} draws the smallest clients had {min(smallest)} to "
        f"{max(smallest)}. Use a smaller size-sigma (size-sigma={sigma / 2:g}), fewer clients "
        f"({max(1, clients // 4)}) or a smaller minimum (min-examples={max(smallest)})."
    )


def draw_sizes(before: NDArray[np.int64] | Table, sigma: float, rng: np.random.Generator) -> Rows:
    """Draw log-normal sizes that add up to the rows there are.

    Parameters
    ----------
    before : NDArray
        (K,) sizes that the scheme gave; only their sum counts, and who has none.
    sigma : float
        Deviation of the logarithm of the sizes.
    rng : np.random.Generator
        Source of the draw.

    Returns
    -------
    sizes : NDArray[np.int64]
        (K,) by largest remainder; 0 where `before` is 0.
    """
    drawn = sigma * rng.standard_normal(len(before))
    weights = np.where(np.asarray(before) > 0, np.exp(drawn - drawn.max()), 0.0)
    exact: Table = weights / weights.sum() * round(float(np.sum(before)))
    sizes: Rows = np.floor(exact).astype(np.int64)
    lacking = round(float(exact.sum())) - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:lacking]] += 1
    return sizes


def fit_table(counts: Table, sizes: Rows, least: int) -> Table:
    """Fit a table to sizes of clients, its columns keeping their totals exactly.

    Parameters
    ----------
    counts : NDArray[np.float64]
        (K, C) rows by client and class.
    sizes : NDArray[np.int64]
        (K,) wanted sums over the classes.
    least : int
        Fewest rows where `counts` has any; 0 or 1, no more than a column can give.

    Returns
    -------
    fitted : NDArray[np.float64]
        (K, C), 0 where `counts` is 0; columns add up as those of `counts`.
    """
    floor = np.where(counts > 0, float(least), 0.0)
    totals = np.maximum(counts.sum(axis=0) - floor.sum(axis=0), 0.0)
    wanted = np.maximum(sizes - floor.sum(axis=1), 0.0)
    fitted = counts.copy()
    reached = np.full(len(counts), -1.0)
    for _ in range(_FIT_STEPS):
        fitted *= _ratio(wanted, fitted.sum(axis=1))[:, None]
        # Columns last: every row has an owner, whatever the sizes. A column that the clients'
        # sizes emptied (all of its holders have room for nothing else) is filled as it was.
        emptied = (fitted.sum(axis=0) <= 0) & (totals > 0)
        fitted[:, emptied] = counts[:, emptied]
        fitted *= _ratio(totals, fitted.sum(axis=0))[None]
        before, reached = reached, fitted.sum(axis=1)
        if np.abs(reached - before).max() < _SETTLED:
            break
    return fitted + floor


def to_whole(table: Table, sizes: Rows) -> Rows:
    """Round a table to whole rows: columns keep their totals, rows come near their sizes.

    What is left of a column after rounding down goes to those of its holders that lack most.

    Parameters
    ----------
    table : NDArray[np.float64]
        (K, C) with columns that add up to whole numbers.
    sizes : NDArray[np.int64]
        (K,) wanted sums over the columns.

    Returns
    -------
    whole : NDArray[np.int64]
        (K, C), 0 where `table` is 0.
    """
    # The margin keeps 2.9999999999 from becoming 2.
    whole: Rows = np.floor(table + 1e-9).astype(np.int64)
    lacking = sizes - whole.sum(axis=1)
    left = np.rint(table.sum(axis=0)).astype(np.int64) - whole.sum(axis=0)
    for column in np.flatnonzero(left > 0):
        fraction = table[:, column] - whole[:, column]
        order = np.lexsort((-fraction, -np.where(fraction > 1e-9, lacking, -(2**62))))
        holders = order[: left[column]]
        whole[holders, column] += 1
        lacking[holders] -= 1
    return whole


def _count(columns: Rows, parts: list[Rows], classes: int) -> Table:
    return np.array([np.bincount(columns[part], minlength=classes) for part in parts], dtype=float)


def _ratio(wanted: Table, held: Table) -> Table:
    """Return wanted / held, 0 where nothing is held."""
    return np.divide(wanted, held, out=np.zeros_like(wanted), where=held > 0)
