"""All trackers of a run, as the round loop sees them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server_app.tracking.base import TrackedRun
from server_app.tracking.points import RecordFollower
from server_app.tracking.worker import Worker

FINISH_WAIT = 60.0
"""Seconds that the end of a run waits for a tracker to bring away what it has."""


class Tracking:
    """Shows a run in the trackers that its run-config names; does nothing without any.

    Parameters
    ----------
    names : tuple of str
        Of `run_config.TRACKERS`.
    directory : Path
        Of the run.
    """

    def __init__(self, names: tuple[str, ...], directory: Path) -> None:
        self.names = names
        self.directory = directory
        self._follower: RecordFollower | None = None
        self._workers: list[Worker] = []

    def begin(self, info: dict[str, Any], done: int) -> None:
        """Open the trackers and show what the records of a resumed run have and they lack.

        Parameters
        ----------
        info : dict
            The content of config.json.
        done : int
            Finished rounds.
        """
        if not self.names:
            return
        self._follower = RecordFollower(self.directory)
        run = TrackedRun(
            self.directory.name, str(info["token"]), self.directory, info["config"], shown=done
        )
        self._workers = [Worker(name, run) for name in self.names]
        self.follow()

    def follow(self) -> None:
        """Show what was recorded since the last call; returns at once."""
        if self._follower is None:
            return
        if points := self._follower.new_points():
            for worker in self._workers:
                worker.write(points)

    def finish(self, status: str) -> None:
        """Show how the run ended, with its summary and report, and wait for the trackers."""
        files = [self.directory / name for name in ("report.html", "summary.json")]
        present = [path for path in files if path.is_file()]
        summary = dict(_numbers(_summary(files[1])))
        for worker in self._workers:
            worker.finish(status, summary, present, FINISH_WAIT)


def _summary(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of nested objects: ``accuracy/final``; a task's clients are no series."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{name}/{key}" if name else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield name, float(value)
