"""MLflow: the server that MLFLOW_TRACKING_URI names, else files beside the runs."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.tracking.base import Point, TrackedRun

EXPERIMENT = "wildflower"
TOKEN = "wildflower.token"
MOST_METRICS, MOST_PARAMS = 1000, 100
"""In one request, as MLflow allows."""
_ENDS = {"completed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MlflowTracker:
    """One run of MLflow, found again by a tag that holds the run's token."""

    def __init__(self, run: TrackedRun) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            # No run can have this name, see `run_config.NAME`
            uri = (run.directory.parent / ".mlflow").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs all of it
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client: Any = importlib.import_module("mlflow.tracking").MlflowClient(uri)
        self._id = self._find(run)
        self._keep_settings(run)
        self.place = f"run {self._id} in {uri}"

    def _find(self, run: TrackedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        for found in self._client.search_runs([number], f"tags.`{TOKEN}` = '{run.token}'"):
            self._client.update_run(found.info.run_id, status="RUNNING")
            return str(found.info.run_id)
        tags = {TOKEN: run.token}
        return str(self._client.create_run(number, tags=tags, run_name=run.name).info.run_id)

    def _keep_settings(self, run: TrackedRun) -> None:
        """Log settings as parameters; MLflow's never change, so what a resume changed is a tag."""
        known = self._client.get_run(self._id).data.params
        settings = {key: str(value) for key, value in run.settings.items()}
        new = [self._entities.Param(k, v) for k, v in settings.items() if k not in known]
        for batch in _batches(new, MOST_PARAMS):
            self._client.log_batch(self._id, params=batch)
        for key in known.keys() & settings.keys():
            if known[key] != settings[key]:
                self._client.set_tag(self._id, f"resumed.{key}", settings[key])

    def write(self, points: Sequence[Point]) -> None:
        """Log the points with their rounds as steps."""
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(p.series, p.value, now, p.round) for p in points]
        for batch in _batches(metrics, MOST_METRICS):
            self._client.log_batch(self._id, metrics=batch)

    def finish(self, status: str, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log the summary as metrics and the files as artifacts, and end the run."""
        self.write([Point(f"summary/{name}", 0, value) for name, value in summary.items()])
        for path in files:
            self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, _ENDS[status])


def open_tracker(run: TrackedRun) -> MlflowTracker:
    """Begin MLflow's run or go on with it."""
    return MlflowTracker(run)


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
