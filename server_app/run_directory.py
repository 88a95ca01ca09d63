"""The run's directory: made once, locked while in use, resumed only with the same settings."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import platform
import secrets
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from strategies.base.exchange import Card
from strategies.base.options import ConfigError
from strategies.base.run_config import MAY_CHANGE_ON_RESUME, RunConfig

PACKAGES = ("flwr", "flwr-datasets", "torch", "torchvision", "numpy", "safetensors")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is either the old one or the whole new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


class RunDirectory:
    """`<output-dir>/<run-name>/` of design.md section 5.

    Attributes
    ----------
    path : Path
        The directory.
    info : dict
        The content of config.json.
    resumed : bool
        Whether the directory was there before.
    """

    def __init__(self, path: Path, info: dict[str, Any], lock: FileLock, resumed: bool) -> None:
        self.path = path
        self.info = info
        self.resumed = resumed
        self._lock = lock

    @classmethod
    def open(cls, run: RunConfig) -> RunDirectory:
        """Create the directory of a new run, or open that of the run to resume.

        Raises
        ------
        ConfigError
            If a new run's directory exists, the run to resume does not, its settings differ
            (all differing keys are listed), or another process is using it.
        """
        name = run.resume or run.run_name or _fresh_name(run)
        path = run.run_root / name
        if run.resume:
            if not (path / "config.json").is_file():
                raise ConfigError(f"resume = {name!r}: there is no run in {path}")
            lock = _lock(path)
            info = json.loads((path / "config.json").read_text(encoding="utf-8"))
            try:
                _refuse_changes(name, info["config"], run.flat())
            except ConfigError:
                lock.release()
                raise
            info["config"] = {**run.flat(), "run-name": name, "resume": ""}
            directory = cls(path, info, lock, resumed=True)
        else:
            if path.exists():
                raise ConfigError(
                    f"run-name = {name!r}: {path} exists; go on with it by resume='{name}', or "
                    "take another run-name"
                )
            path.mkdir(parents=True)
            lock = _lock(path)
            directory = cls(path, _describe(run, name), lock, resumed=False)
        directory.set_status("running")
        return directory

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def set_status(self, status: str, **facts: Any) -> None:
        """Write config.json with a new status ("running", "completed", "failed") and facts."""
        self.info.pop("reason", None)  # of an earlier failure, when the run goes on
        self.info |= {"status": status, **facts}
        write_atomically(self.path / "config.json", json.dumps(self.info, indent=2) + "\n")

    def write_cards(self, cards: dict[int, Card]) -> None:
        """Write clients.csv; on resume first refuse clients whose data or model changed.

        Clients of the resumed run that are away keep their rows.
        """
        path = self.path / "clients.csv"
        rows: dict[int, Iterable[object]] = {}
        if self.resumed and path.is_file():
            rows = {i: row.values() for i, row in _known_clients(path, cards).items()}
        names = [field.name for field in dataclasses.fields(Card)]
        names = ["client" if name == "client_id" else name for name in names]
        partial = path.with_name(".clients.csv.partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            for client_id, card in cards.items():
                rows[client_id] = [
                    " ".join(map(str, v)) if isinstance(v, list) else v
                    for v in dataclasses.astuple(card)
                ]
            writer.writerows(row for _, row in sorted(rows.items()))
        partial.replace(path)

    def release(self) -> None:
        """Let another process use the directory."""
        self._lock.release()


def _fresh_name(run: RunConfig) -> str:
    return f"{run.method}-{run.dataset}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _lock(path: Path) -> FileLock:
    lock = FileLock(path / "run.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{path}: another process is using this run") from None
    return lock


def _refuse_changes(name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [
        f"{key}: was {before.get(key)!r}, now {now.get(key)!r}"
        for key in sorted({*before, *now} - MAY_CHANGE_ON_RESUME)
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise ConfigError(
            f"resume = {name!r}: settings differ from the run's; " + "; ".join(changed)
        )


def _known_clients(path: Path, cards: dict[int, Card]) -> dict[int, dict[str, str]]:
    """Return the rows of clients.csv by client id, after refusing clients that changed."""
    with path.open(newline="", encoding="utf-8") as file:
        before = {int(row["client"]): row for row in csv.DictReader(file)}
    for client_id, card in sorted(cards.items()):
        row = before.get(client_id)
        for key in ("model", "data_hash") if row else ():
            if row is not None and row[key] != str(getattr(card, key)):
                raise ConfigError(
                    f"client {client_id}: {key} was {row[key]} when the run began and is "
                    f"{getattr(card, key)} now; a resumed run needs the same clients"
                )
    return before


def _describe(run: RunConfig, name: str) -> dict[str, Any]:
    return {
        "run_name": name,
        "status": "running",
        "config": {**run.flat(), "run-name": name},
        "versions": {
            "wildflower": _version("wildflower"),
            "python": platform.python_version(),
            **{package: _version(package) for package in PACKAGES},
        },
        "git_revision": _git_revision(),
        "seed": run.seed,
        "split_hash": None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "token": secrets.token_hex(8),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """Return the revision of the app's checkout, or None where it runs from a bundle."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
