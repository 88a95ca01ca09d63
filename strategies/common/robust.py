"""Means over clients that one of them cannot decide: the run-config key `robust-mean`.

"median" and "trimmed" are the coordinate-wise median and the trimmed mean of Yin et al.,
Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (ICML 2018); "clipped"
shortens every client's change to a bound, as Sun et al., Can You Really Backdoor Federated
Learning? (2019), the bound being a multiple of the round's median. All three need what every client
of the round sent, so that memory grows with their number; the plain mean holds one sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strategies.base.run_config import RunConfig
from strategies.common.prototypes import ClassAverage, ClassVectors
from strategies.common.weights import RunningMean, State, StateArrays, mean_tensor

CHUNK = 65536
"""Coordinates that are sorted at once."""
FEWEST = 3
"""With fewer values there is no telling which of them is unlike the others."""


def mean_over_clients(run: RunConfig, around: State | None = None) -> RunningMean:
    """Return an empty mean of the kind that the run asks for.

    Parameters
    ----------
    run : RunConfig
        `robust-mean`, and what belongs to it.
    around : mapping of str to Tensor, optional
        From where "clipped" measures a change: the weights that clients received. An entry that it
        lacks, and what is a change already, counts from 0.
    """
    if run.robust_mean == "off":
        return RunningMean()
    return _robust(run, around)


def _robust(run: RunConfig, around: State | None = None) -> RobustMean:
    return RobustMean(run.robust_mean, run.robust_trim, run.robust_clip, around)


def _say_few(holders: Iterable[int], what: str) -> None:
    """Warn of what fewer clients sent than there have to be to leave one of them out."""
    counts = list(holders)
    if few := sum(count < FEWEST for count in counts):
        print(
            f"warning: robust-mean: {few} of {len(counts)} {what} came from fewer than {FEWEST} "
            "clients, of whom none can be left out",
            flush=True,
        )


def remarks(run: RunConfig) -> tuple[str, ...]:
    """Return what a user should know of the run's robust mean."""
    if run.robust_mean == "off":
        return ()
    return (
        f"robust-mean = {run.robust_mean!r} holds what all clients of a round send in memory, and "
        f"of fewer than {FEWEST} clients that have an entry it leaves nobody out",
    )


class RobustMean(RunningMean):
    """Robust means by entry, of states that need not have the same entries.

    "median" and "trimmed" count every client once, because its number of examples is only what it
    says; "clipped" weights as the plain mean. Of integers, counters, the lower median is kept.
    Entries with fewer than three values are averaged, each once, or clipped.

    Parameters
    ----------
    rule : str
        "median", "trimmed" or "clipped".
    trim : float
        Share of the clients left out at each end, at least one; below 0.5.
    clip : float
        How many times as large as the median over the clients a change may be, as the root mean
        square over all of a client's entries.
    around : mapping of str to Tensor, optional
        From where changes are measured; 0 where an entry is missing.
    """

    def __init__(
        self, rule: str, trim: float = 0.1, clip: float = 1.0, around: State | None = None
    ) -> None:
        super().__init__()
        self.rule, self.trim, self.clip = rule, trim, clip
        self._around = around or {}
        self._states: list[tuple[StateArrays, float]] = []

    def add(self, state: StateArrays, weight: float) -> None:
        """Keep a state with weight > 0 until the means are asked for; it must not change."""
        self._states.append((dict(state), weight))
        for name in state:
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def means(self) -> dict[str, Tensor]:
        """Return the robust mean of every entry that was added, in the dtype received."""
        held = [sum(name in state for state, _ in self._states) for name in self._weights]
        _say_few(held, "entries")
        return self.quiet_means()

    def quiet_means(self) -> dict[str, Tensor]:
        """Return the means without a word on how many clients are behind each."""
        factors = self._factors() if self.rule == "clipped" else [1.0] * len(self._states)
        return {name: self._mean(name, factors) for name in self._weights}

    def _mean(self, name: str, factors: list[float]) -> Tensor:
        held = [
            (np.asarray(state[name]), weight, factor)
            for (state, weight), factor in zip(self._states, factors, strict=True)
            if name in state
        ]
        items = [item for item, _, _ in held]
        dtype, count = items[0].dtype, len(items)
        if dtype.kind != "f":
            rank = (count - 1) // 2
            return mean_tensor(np.partition(np.stack(items), rank, axis=0)[rank], dtype)
        if self.rule == "clipped":
            return mean_tensor(self._clipped(name, held), dtype)
        middle = (count - 1) // 2
        cut = middle if self.rule == "median" else min(middle, max(1, int(self.trim * count)))
        return mean_tensor(trimmed(items, cut), dtype)

    def _origin(self, name: str) -> NDArray[Any] | float:
        known = self._around.get(name)
        return 0.0 if known is None else known.detach().cpu().numpy().astype(np.float64)

    def _factors(self) -> list[float]:
        """Return by how much every client's change is shortened, at most 1."""
        sizes = [self._size(state) for state, _ in self._states]
        most = self.clip * float(np.median(sizes)) if sizes else 0.0
        return [most / size if size > most else 1.0 for size in sizes]

    def _size(self, state: StateArrays) -> float:
        total, count = 0.0, 0
        for name, item in state.items():
            if item.dtype.kind == "f":
                total += float(np.square(item - self._origin(name), dtype=np.float64).sum())
                count += item.size
        return math.sqrt(total / count) if count else 0.0

    def _clipped(
        self, name: str, held: list[tuple[NDArray[Any], float, float]]
    ) -> NDArray[np.float64]:
        origin = self._origin(name)
        total = np.zeros(held[0][0].shape)
        for item, weight, factor in held:
            total += (item.astype(np.float64) - origin) * (factor * weight)
        result: NDArray[np.float64] = origin + total / self._weights[name]
        return result


def trimmed(items: list[NDArray[Any]], cut: int) -> NDArray[np.float64]:
    """Return, by coordinate, the mean without the `cut` least and the `cut` greatest values.

    With cut = (m - 1) // 2 of m items that is the median. All have one shape; a chunk is sorted at
    a time, so that little more than the result is needed beside them.
    """
    flat = [item.reshape(-1) for item in items]
    result = np.empty(flat[0].size)
    for start in range(0, len(result), CHUNK):
        block = np.stack([item[start : start + CHUNK] for item in flat]).astype(np.float64)
        block.sort(axis=0)
        result[start : start + CHUNK] = block[cut : len(flat) - cut].mean(axis=0)
    return result.reshape(items[0].shape)


class RobustClassAverage(ClassAverage):
    """Robust means of vectors by class; every call of `add` is one client's."""

    def __init__(self, run: RunConfig, classes: int, width: int) -> None:
        super().__init__(classes, width)
        self._run = run
        self._means: dict[int, RobustMean] = {}
        self._holders: Counter[int] = Counter()

    def add(self, class_ids: Tensor, vectors: Tensor, weights: Tensor | None = None) -> None:
        """Keep vectors (n, width) of classes (n,), with weights (n,) above 0, by default 1."""
        shares = torch.ones(len(class_ids)) if weights is None else weights
        for label, row, share in zip(class_ids.tolist(), vectors, shares.tolist(), strict=True):
            self._means.setdefault(label, _robust(self._run)).add({"vector": row.numpy()}, share)
            self._holders[label] += 1
            self.weights[label] += share

    def result(self) -> ClassVectors:
        """Return the classes added, ascending, their robust means, and their summed weights."""
        _say_few(self._holders.values(), "classes")
        rows = [self._means[label].quiet_means()["vector"] for label in sorted(self._means)]
        present = self.weights.nonzero().flatten()
        means = torch.stack(rows) if rows else self.sums[:0]
        return present.numpy(), means.float().numpy(), self.weights[present].long().numpy()


def class_average(run: RunConfig, classes: int, width: int) -> ClassAverage:
    """Return an empty average by class, (classes, width), of the kind that the run asks for."""
    if run.robust_mean == "off":
        return ClassAverage(classes, width)
    return RobustClassAverage(run, classes, width)
