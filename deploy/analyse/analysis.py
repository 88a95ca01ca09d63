"""What is measured of a run's models, in one pass over its clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.split import Split
from deploy.analyse.measures import (
    Calibration,
    calibration,
    centred_gram,
    confusion,
    linear_cka,
)
from deploy.analyse.models import REPRESENTATION, Analysed, analysed, common_examples
from deploy.analyse.regions import Head, Regions, regions
from deploy.evenly import evenly
from deploy.kept_run import KeptRun
from strategies.base.options import ConfigError

LARGEST_BYTES = 8e9
"""Memory for Gram matrices."""


@dataclass(frozen=True)
class Plan:
    """What is looked at.

    Attributes
    ----------
    images : int
        Test examples for CKA, the same for all clients.
    clients : int
        At most so many clients, evenly over all.
    map_clients, map_images : int
        Clients, and examples of each, in the t-SNE map.
    seed : int
        Of the examples and of t-SNE.
    """

    images: int = 512
    clients: int = 20
    map_clients: int = 5
    map_images: int = 150
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Map:
    """Representations of common test examples in two dimensions.

    Attributes
    ----------
    points : NDArray[np.float64]
        (m, 2) by t-SNE.
    clients, labels : NDArray[np.int64]
        (m,) whose model, and which class.
    """

    points: NDArray[np.float64]
    clients: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Analysis:
    """What was measured.

    Attributes
    ----------
    directory : Path
        Of the run.
    method : str
        What ran.
    round : int
        After which round the models are.
    clients : list of int
        Who was looked at, ascending.
    of_all : int
        How many clients the run had.
    class_names : tuple of str
        By label.
    images : int
        Test examples behind CKA.
    cka : dict of str to ndarray
        By stage: (K, K) over `clients`; NaN where a client has no such stage, or it does not vary.
    confusions : dict of int to ndarray
        (C, C) by client, on its own test examples; clients without any are left out.
    calibrations : dict of int to Calibration
        The same.
    pooled : Calibration or None
        Of all their predictions together; None without any.
    map : Map or None
        None where the representations cannot be put together; `map_note` says why.
    map_note : str
        Which examples and clients are in the map, or why there is none.
    regions : list of Regions
        Of the same examples and clients where d = 2, one a head; else empty.
    """

    directory: Path
    method: str
    round: int
    clients: list[int]
    of_all: int
    class_names: tuple[str, ...]
    images: int
    cka: dict[str, NDArray[np.float64]]
    confusions: dict[int, NDArray[np.int64]]
    calibrations: dict[int, Calibration]
    pooled: Calibration | None
    map: Map | None
    map_note: str
    regions: list[Regions]

    def mean_cka(self, stage: str) -> float | None:
        """Return a stage's mean over pairs of different clients; None where there is no pair."""
        values = self.cka[stage][np.triu_indices(len(self.clients), 1)]
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else None


@dataclass
class _Seen:
    """What is gathered of the clients, one after the other; `Analysis` has what it means."""

    grams: dict[str, dict[int, NDArray[np.float64]]] = field(default_factory=dict)
    vectors: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    heads: dict[int, Head] = field(default_factory=dict)
    confusions: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    calibrations: dict[int, Calibration] = field(default_factory=dict)
    sure: list[NDArray[np.float32]] = field(default_factory=list)
    right: list[NDArray[np.bool_]] = field(default_factory=list)
    class_names: tuple[str, ...] = ()

    def add_stages(self, item: Analysed, examples: Split, on_map: list[int] | None) -> None:
        """Pass the common examples through a model; `on_map` are those to keep vectors of."""
        for stage, outputs in item.stages(examples).items():
            self.grams.setdefault(stage, {})[item.number] = centred_gram(outputs)
            if stage == REPRESENTATION and on_map is not None:
                self.vectors[item.number] = outputs[on_map]
                if (head := item.head) is not None:
                    self.heads[item.number] = head

    def similarities(self, clients: list[int]) -> dict[str, NDArray[np.float64]]:
        """Return the CKA of these clients by stage, in order of depth."""
        by_depth = sorted(self.grams.items(), key=_depth)
        return {stage: pairs(found, clients) for stage, found in by_depth}

    def add_scores(self, item: Analysed) -> None:
        """Compare a model's predictions with the labels of its client's own test examples."""
        data = item.client.context.data
        self.class_names = data.class_names
        if len(data.test):
            probabilities, labels = item.scores(data.test)
            predicted = probabilities.argmax(axis=1)
            self.confusions[item.number] = confusion(labels, predicted, data.num_classes)
            self.sure.append(probabilities.max(axis=1))
            self.right.append(predicted == labels)
            self.calibrations[item.number] = calibration(self.sure[-1], self.right[-1])


def analyse(directory: Path, plan: Plan) -> Analysis:
    """Measure a run.

    Raises
    ------
    ConfigError
        There is no run, its states are not kept, or its models cannot be compared.
    """
    run = KeptRun.of(directory)
    wanted = evenly(run.trained(run.last_round), plan.clients)
    examples = common_examples(run, wanted, plan.images, plan.seed)
    _refuse_large(len(examples), len(wanted))
    drawn = evenly(list(range(len(examples))), plan.map_images)
    on_map = evenly(wanted, plan.map_clients)
    seen = _Seen()
    for item in analysed(run, wanted):
        seen.add_stages(item, examples, drawn if item.number in on_map else None)
        seen.add_scores(item)
    labels = examples.labels[drawn]
    points, note = mapped(seen.vectors, labels, plan.seed)
    sure, right = seen.sure, seen.right
    return Analysis(
        directory=directory,
        method=str(run.records.settings.get("method", "")),
        round=run.last_round,
        clients=wanted,
        of_all=len(run.client_ids),
        class_names=seen.class_names,
        images=len(examples),
        cka=seen.similarities(wanted),
        confusions=seen.confusions,
        calibrations=seen.calibrations,
        pooled=calibration(np.concatenate(sure), np.concatenate(right)) if sure else None,
        map=points,
        map_note=note,
        regions=regions(seen.heads, seen.vectors, labels),
    )


def _refuse_large(examples: int, clients: int) -> None:
    """All Gram matrices are in memory at once: some five stages of every client."""
    needed = 5 * 8 * examples**2 * clients
    if needed > LARGEST_BYTES:
        raise ConfigError(
            f"--images {examples} with {clients} clients would take about {needed / 1e9:.1f} GB of "
            f"memory, at most {LARGEST_BYTES / 1e9:.1f} GB are used; choose fewer images, or fewer "
            "--clients"
        )


def _depth(item: tuple[str, object]) -> tuple[bool, int, str]:
    """Order stages by depth, the representation last."""
    return item[0] == REPRESENTATION, len(item[0]), item[0]


def pairs(grams: dict[int, NDArray[np.float64]], clients: list[int]) -> NDArray[np.float64]:
    """Return the CKA of every pair of clients, (K, K); NaN where there is none."""
    table = np.full((len(clients), len(clients)), np.nan)
    for i, one in enumerate(clients):
        for j in range(i + 1):
            if one in grams and clients[j] in grams:
                value = linear_cka(grams[one], grams[clients[j]])
                table[i, j] = table[j, i] = np.nan if value is None else value
    return table


def mapped(
    vectors: dict[int, NDArray[np.float32]], labels: NDArray[np.int64], seed: int
) -> tuple[Map | None, str]:
    """Return the t-SNE of several clients' representations (m, d) of the same examples."""
    widths = {rows.shape[1] for rows in vectors.values()}
    if len(widths) > 1:
        return None, f"no map: the representations have unlike widths, {sorted(widths)}"
    together = np.concatenate(list(vectors.values()))
    if len(together) < 4 or not together.std(axis=0).any():
        return None, "no map: there are too few different representations"
    from sklearn.manifold import TSNE  # half a second to import

    perplexity = min(30.0, (len(together) - 1) / 3)
    points = TSNE(perplexity=perplexity, random_state=seed, init="pca").fit_transform(together)
    owners = np.repeat(list(vectors), [len(rows) for rows in vectors.values()])
    note = f"{len(labels)} test examples, each by the models of {len(vectors)} clients"
    return Map(points.astype(np.float64), owners, np.tile(labels, len(vectors))), note
