"""Weights & Biases: online with a key, else offline into the run's own directory."""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.tracking.base import Point, TrackedRun

PROJECT = "wildflower"


class WandbTracker:
    """One run of W&B, whose id is the run's token, so that every start goes on with it."""

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to its makers, offline as well
        self._wandb: Any = importlib.import_module("wandb")
        mode = wandb_mode()
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.token,
            name=run.name,
            dir=str(run.directory),
            mode=mode,
            resume="allow",
            config=dict(run.settings),
            # The records hold all that is said, and how the machine is used is no one's business
            settings=self._wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, save_code=False
            ),
        )
        # Steps of our own: W&B's must grow, and a closing evaluation has the last round's number
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        folder = run.directory / "wandb"
        shown = f"offline in {folder}; wandb sync {folder}/offline-run-*"
        self.place = shown if mode == "offline" else str(self._run.url or mode)

    def write(self, points: Sequence[Point]) -> None:
        """Log the points, a round at a time."""
        rounds: dict[int, dict[str, float]] = defaultdict(dict)
        for point in points:
            rounds[point.round][point.series] = point.value
        for number, values in sorted(rounds.items()):
            self._run.log({"round": number, **values})

    def finish(self, status: str, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        """Set the summary, add the files as an artifact, and end the run."""
        self._run.summary.update({"status": status, **summary})
        if files:
            artifact = self._wandb.Artifact(f"report-{self._run.id}", "report")
            for path in files:
                artifact.add_file(str(path))
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if status == "completed" else 1)


def wandb_mode() -> str:
    """Return WANDB_MODE if set; else "online" where WANDB_API_KEY is, so that nothing is asked."""
    usual = "online" if os.environ.get("WANDB_API_KEY") else "offline"
    return os.environ.get("WANDB_MODE") or usual


def open_tracker(run: TrackedRun) -> WandbTracker:
    """Begin W&B's run or go on with it."""
    return WandbTracker(run)
