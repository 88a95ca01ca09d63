"""TensorBoard: event files below the run's own directory, shown by ``tensorboard --logdir``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.tracking.base import Point, TrackedRun


class TensorBoardTracker:
    """Writes `<run>/tensorboard/`; TensorBoard has no files of its own, so the report is named."""

    def __init__(self, run: TrackedRun) -> None:
        folder = run.directory / "tensorboard"
        writers: Any = importlib.import_module("torch.utils.tensorboard")
        # What a killed server wrote of rounds that are to come is not shown any more
        self._writer = writers.SummaryWriter(str(folder), purge_step=run.shown + 1)
        self._writer.add_text("settings", _fenced(dict(run.settings)), run.shown)
        self._writer.flush()
        self.place = f"tensorboard --logdir {folder.parent.parent}"

    def write(self, points: Sequence[Point]) -> None:
        """Add scalars and flush."""
        for point in points:
            self._writer.add_scalar(point.series, point.value, point.round)
        self._writer.flush()

    def finish(self, status: str, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        """Add status, summary and the places of files as texts."""
        text = f"{status}\n\n" + "".join(f"- {path}\n" for path in files)
        self._writer.add_text("report", text)
        self._writer.add_text("summary", _fenced(dict(summary)))
        self._writer.close()


def open_tracker(run: TrackedRun) -> TensorBoardTracker:
    """Open the run's event files; each start adds a file, all are shown as one run."""
    return TensorBoardTracker(run)


def _fenced(values: dict[str, Any]) -> str:
    return f"```\n{json.dumps(values, indent=2)}\n```"
