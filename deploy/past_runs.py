"""`wildflower runs`, `clean`, `check` and `report`: what is to be known of runs, and deleted."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from server_app.console import percent, say, table
from server_app.records.kept_states import STATES, delete_states
from server_app.records.run_directory import (
    COMPLETED,
    INTERRUPTED,
    RUNNING,
    is_in_use,
    lock_run,
    require_run,
)
from strategies.base.options import ConfigError
from strategies.base.run_config import RunConfig

DAMAGED = "damaged"


@dataclass(frozen=True)
class RunStatus:
    """How a run is.

    Attributes
    ----------
    name, status, reason : str
        As in config.json; what runs is "running", and what was killed "interrupted".
    info : dict
        The content of config.json; empty if it is damaged.
    """

    name: str
    status: str
    reason: str
    info: dict[str, Any]


def status_of(directory: Path) -> RunStatus:
    """Return how the run in a directory is; one whose config.json cannot be read is "damaged"."""
    try:
        info = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        name, status = str(info.get("run_name") or directory.name), str(info["status"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return RunStatus(directory.name, DAMAGED, f"config.json: {error!r}", {})
    if is_in_use(directory):  # also one that is being resumed
        return RunStatus(name, RUNNING, "", info)
    if status == RUNNING:  # killed
        return RunStatus(name, INTERRUPTED, f"go on with resume='{name}'", info)
    return RunStatus(name, status, str(info.get("reason") or ""), info)


def add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `wildflower runs`."""
    _add_place(parser)


def add_clean_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `wildflower clean`."""
    _add_place(parser)
    parser.add_argument("--yes", action="store_true", help="delete without asking")


def _add_place(parser: argparse.ArgumentParser) -> None:
    usual = RunConfig.output_dir
    parser.add_argument(
        "directory", type=Path, nargs="?", default=Path(usual),
        help=f"where the runs are, their output-dir, or one run (default: {usual})",
    )  # fmt: skip


def list_runs(options: argparse.Namespace) -> int:
    """Print a line a run, the newest first."""
    rows = []
    for directory in _runs_in(options.directory):
        run = status_of(directory)
        config, summary = run.info.get("config") or {}, _summary(directory)
        started = _started(run.info)
        rounds = summary.get("rounds", "")
        rows.append(
            (started, (run.name, run.status, config.get("method", ""), config.get("dataset", ""),
                       rounds, _score(summary), _age(started)))
        )  # fmt: skip
    rows.sort(key=lambda row: row[0], reverse=True)
    say(table(("run", "status", "method", "dataset", "rounds", "score", "age"),
              [cells for _, cells in rows]))  # fmt: skip
    return 0


def clean(options: argparse.Namespace) -> int:
    """Delete checkpoints and private states of completed runs, after showing how much that is.

    Returns
    -------
    int
        0 if there was nothing to do or it is done, 1 if nothing was deleted for want of a yes.
    """
    found = {}
    for directory in _runs_in(options.directory):
        if status_of(directory).status == COMPLETED and (size := _size(directory)):
            found[directory] = size
    if not found:
        say("no completed run has checkpoints or private states; other runs are left as they are")
        return 0
    for directory, size in found.items():
        say(f"  {size / 1e6:10.1f} MB  {directory.name}")
    say(
        f"checkpoints and private states of {len(found)} completed runs take "
        f"{sum(found.values()) / 1e6:.1f} MB. Records and reports stay; the runs cannot be resumed "
        "for further rounds any more."
    )
    if not options.yes and not _agreed():
        say("nothing was deleted; --yes deletes without asking")
        return 1
    freed = sum(size for directory, size in found.items() if _delete_states(directory))
    say(f"{freed / 1e6:.1f} MB were freed")
    return 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        return False
    return input("Delete them? [y/N] ").strip().lower() in ("y", "yes")


def _delete_states(directory: Path) -> bool:
    """Delete a completed run's states unless somebody uses it now; say whether it was done."""
    try:
        lock = lock_run(directory)
    except ConfigError as error:
        say(f"left as it is: {error}")
        return False
    try:
        delete_states(directory)
    finally:
        lock.release()
    return True


def _size(directory: Path) -> int:
    """Return the bytes of a run's states; a folder that is a link is not the run's own."""
    own = [directory / name for name in STATES if not (directory / name).is_symlink()]
    files = (path for folder in own for path in folder.rglob("*"))
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())


def _runs_in(place: Path) -> Iterator[Path]:
    """Yield the directories of runs, which have a config.json: `place` itself or those in it."""
    directory = place.expanduser()
    if (directory / "config.json").is_file():
        yield directory
        return
    found = sorted(path.parent for path in directory.glob("*/config.json"))
    if not found:
        raise ConfigError(f"{directory}: there are no runs here; name the output-dir of some")
    yield from found


def _summary(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it has not ended, or never did
        return {}
    return found if isinstance(found, dict) else {}


def _score(summary: dict[str, Any]) -> str:
    scores = summary.get("scores") or {}
    if not scores:  # of an older version
        final = (summary.get("accuracy") or {}).get("final")
        return "" if final is None else percent(final)
    named = ((task, s.get("metric"), s.get("final")) for task, s in scores.items())
    several = len(scores) > 1
    return ", ".join(
        f"{task} {metric} {percent(final)}" if several else f"{metric} {percent(final)}"
        for task, metric, final in named
    )


def _started(info: dict[str, Any]) -> datetime:
    try:
        found = datetime.fromisoformat(str(info.get("started")))
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _age(started: datetime) -> str:
    """Return the time since the run's first start: "3 d", "5 h", "12 min"."""
    if started.timestamp() == 0:
        return "unknown"
    minutes = int((datetime.now(UTC) - started).total_seconds() // 60)
    if minutes >= 2 * 24 * 60:
        return f"{minutes // (24 * 60)} d"
    return f"{minutes // 60} h" if minutes >= 120 else f"{minutes} min"


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `wildflower check` and `wildflower report`."""
    parser.add_argument("directory", type=Path, help="the run's directory")


def check(options: argparse.Namespace) -> int:
    """Tell how a run ended; returns 0 if it completed."""
    require_run(options.directory)
    found = status_of(options.directory)
    print(f"{found.name}: {found.status}" + (f": {found.reason}" if found.reason else ""))
    return 0 if found.status == COMPLETED else 1


def report(options: argparse.Namespace) -> int:
    """Write a run's report.html again; returns 0."""
    from server_app.report import write_report

    require_run(options.directory)
    print(write_report(options.directory))
    return 0
