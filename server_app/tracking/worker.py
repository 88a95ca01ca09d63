"""One tracker at work in a thread of its own, so that a run never waits for it."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from server_app.console import say
from server_app.tracking.base import Point, TrackedRun, Tracker, open_tracker
from server_app.tracking.points import is_closing
from strategies.base.files import replacing

LONGEST_QUEUE = 1000
"""Rounds that a tracker may be behind before it is let go: one that hangs must not fill memory."""


@dataclass
class Shown:
    """Which rounds a tracker has, and of which of them the closing evaluation; kept in a file."""

    path: Path
    rounds: int = 0
    closing: int = 0

    def read(self) -> None:
        """Take up what the file says; nothing where there is none or it is damaged."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            self.rounds, self.closing = int(found["rounds"]), int(found["closing"])
        except (OSError, ValueError, KeyError, TypeError):
            self.rounds = self.closing = 0

    def limit(self, done: int) -> None:
        """Count the rounds after `done` as not shown: the run makes them again."""
        self.rounds, self.closing = min(self.rounds, done), min(self.closing, done)

    def write(self) -> None:
        """Write the file, whole."""
        with replacing(self.path) as partial:
            text = json.dumps({"rounds": self.rounds, "closing": self.closing})
            partial.write_text(text + "\n", encoding="utf-8")

    def lacks(self, point: Point) -> bool:
        """Whether the tracker has not been given this point."""
        return point.round > (self.closing if is_closing(point) else self.rounds)

    def add(self, point: Point) -> None:
        """Remember that the tracker has a point; the other points of its round come with it."""
        if is_closing(point):
            self.closing = max(self.closing, point.round)
        else:
            self.rounds = max(self.rounds, point.round)


@dataclass
class _End:
    status: str
    summary: Mapping[str, float]
    files: Sequence[Path]


class Worker:
    """Gives a tracker, in order and in its own thread, what the run has to show.

    The thread is started at once and opens the tracker. If anything fails the tracker is warned
    about once and let go; the run does not notice.

    Parameters
    ----------
    name : str
        One of `run_config.TRACKERS`.
    run : TrackedRun
        What to show. `shown` are the rounds that the run has finished; those of them that the
        tracker has are in a file that earlier starts have left.
    """

    def __init__(self, name: str, run: TrackedRun) -> None:
        self.name = name
        self.shown = Shown(run.directory / "trackers" / f"{name}.json")
        self.shown.read()
        self.shown.limit(run.shown)
        self._run = replace(run, shown=self.shown.rounds)
        self._queue: queue.Queue[list[Point] | _End] = queue.Queue(LONGEST_QUEUE)
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def write(self, points: list[Point]) -> None:
        """Hand over points; returns at once."""
        self._put(points)

    def finish(
        self, status: str, summary: Mapping[str, float], files: Sequence[Path], wait: float
    ) -> None:
        """Hand over the end, and wait at most `wait` seconds until all is written."""
        self._put(_End(status, summary, files))
        if self._failed:
            return
        self._thread.join(wait)
        if self._thread.is_alive() and not self._failed:
            self._give_up(f"it was not ready {wait:.0f} s after the end of the run")

    def _put(self, item: list[Point] | _End) -> None:
        if self._failed:
            return
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._give_up(f"it is {LONGEST_QUEUE} rounds behind")

    def _work(self) -> None:
        try:
            tracker: Tracker = open_tracker(self.name, self._run)
            say(f"tracker {self.name}: {tracker.place}")
            while not self._failed:
                item = self._queue.get()
                if isinstance(item, _End):
                    tracker.finish(item.status, item.summary, item.files)
                    return
                self._show(tracker, item)
        except (Exception, SystemExit) as error:  # whatever a library raises, the run goes on
            self._give_up(f"{type(error).__name__}: {error}")

    def _show(self, tracker: Tracker, points: list[Point]) -> None:
        lacking = [point for point in points if self.shown.lacks(point)]
        if not lacking:
            return
        tracker.write(lacking)
        for point in lacking:
            self.shown.add(point)
        self.shown.write()

    def _give_up(self, reason: str) -> None:
        self._failed = True
        say(
            f"warning: tracker {self.name} is not written any more, the run goes on ({reason}); "
            "resume the run to fill it up from the records"
        )
