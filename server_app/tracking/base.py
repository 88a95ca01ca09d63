"""What a tracker is told, and how the libraries behind it are found."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from models.libraries import is_installed


class Point(NamedTuple):
    """A value of a series.

    Attributes
    ----------
    series : str
        "post/accuracy/client-3", "traffic/train/uplink-bytes"; see `points`.
    round : int
        Where it stands in the series.
    value : float
        Finite.
    """

    series: str
    round: int
    value: float


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker shows of a run besides its series.

    Attributes
    ----------
    name : str
        The run's name.
    token : str
        Drawn once for the run, also of the same name elsewhere; a tracker finds its own run by it.
    directory : Path
        Of the run.
    settings : Mapping of str to bool, int, float or str
        The flat run-config.
    shown : int
        Rounds that the tracker has and that the run goes on after; 0 for a new run.
    """

    name: str
    token: str
    directory: Path
    settings: Mapping[str, Any]
    shown: int


class Tracker(Protocol):
    """One tracker of one run. Whatever a method raises is warned about, and the tracker let go.

    All methods are called in one thread.
    """

    place: str
    """Where to look, in words, for the console."""

    def write(self, points: Sequence[Point]) -> None:
        """Add points and bring them to where they stay."""

    def finish(self, status: str, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        """End with "completed", "failed" or "interrupted"; keep final numbers and files."""


Open = Callable[[TrackedRun], Tracker]
"""Opens a tracker for a new run or, if it has that run already, goes on with it."""


def missing_tracker(names: Sequence[str]) -> str | None:
    """Return what to install for the first tracker whose library is missing; imports none.

    A tracker, its library and the extra that brings it have one name.
    """
    for name in names:
        if not is_installed(name):
            return (
                f"tracker = {name!r}: the library {name} is missing where the server runs; install "
                f"the extra there: pip install 'wildflower[{name}]'"
            )
    return None


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    """Import a tracker's module and open it; raises whatever its library does."""
    module = importlib.import_module(f"server_app.tracking.{name}_tracker")
    opener: Open = module.open_tracker
    return opener(run)
