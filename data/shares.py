"""Which rows the clients of a simulation test on: public data must not show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.dataset import load_images
from data.partition import ClientIndices, partition_indices
from data.partitioners import Rows
from data.spec import DataSpec
from data.task_data import client_rows
from data.tasks import TaskSpec, implied_task


@dataclass(frozen=True)
class Shares:
    """How the clients of a simulation share data; the same on all of them.

    Attributes
    ----------
    spec : DataSpec
        Of the run.
    tasks : tuple of TaskSpec
        The run's, cycled over client ids; empty where all clients classify what `spec` names.
    clients : int
        How many there are.
    """

    spec: DataSpec
    tasks: tuple[TaskSpec, ...]
    clients: int

    def tested(self, dataset: str, data_dir: str = "") -> Rows:
        """Return the rows of a data set in some client's test split, ascending; often none.

        Its files are those in `data_dir`: a device with a partition may have its copy elsewhere
        than the run-config says. An `imagefolder` is the clients' only where `data_dir` is theirs.
        """
        return _together([rows.test for rows in self._rows(dataset, data_dir)])

    def held(self, dataset: str, data_dir: str = "") -> Rows:
        """Return the rows of a data set that some client trains, validates or tests on."""
        found = self._rows(dataset, data_dir)
        return _together([p for rows in found for p in (rows.train, rows.validation, rows.test)])

    def _rows(self, dataset: str, data_dir: str) -> Sequence[ClientIndices]:
        if dataset == "imagefolder" and data_dir != self.spec.data_dir:
            return []
        spec = dataclasses.replace(self.spec, data_dir=data_dir)
        implied = implied_task(spec.dataset)
        tasks = self.tasks or (() if implied is None else (implied,))
        if not tasks:
            mine = spec.dataset == dataset
            images = load_images(spec) if mine else None
            return partition_indices(spec, images, self.clients) if images else []
        chosen = [tasks[i % len(tasks)] for i in range(self.clients)]
        return [
            client_rows(spec, tasks, i, self.clients)[1]
            for i, task in enumerate(chosen)
            if (task.dataset or spec.dataset) == dataset
        ]


def _together(parts: Sequence[Rows]) -> Rows:
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
