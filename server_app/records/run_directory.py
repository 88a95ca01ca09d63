"""The run's directory: made once, locked while in use, resumed only with the same settings."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from data.spec import file_stem
from server_app.records.csv_files import iterate_rows
from server_app.records.provenance import git_revision, machine, versions
from strategies.base.files import NotWrittenError, replacing
from strategies.base.former_names import in_present_words
from strategies.base.messages import ClientInfo
from strategies.base.options import ConfigError
from strategies.base.parsing import default_run_config, in_rounds
from strategies.base.received_text import harmless_cell
from strategies.base.run_config import RunConfig

CLIENT_COLUMNS = tuple(
    "client" if field.name == "client_id" else field.name
    for field in dataclasses.fields(ClientInfo)
)

RUNNING, COMPLETED, FAILED, INTERRUPTED = "running", "completed", "failed", "interrupted"
"""How a run is, in config.json. One that was killed stays "running"; `is_in_use` tells."""

CLEANED = "cleaned"
"""Key of config.json: whether states and checkpoints were deleted."""

NOT_RUNNING = "RunNotRunningException"
"""Flower's, in one of its private modules: what a call to the SuperLink raises in such a run."""


def early_end(error: BaseException, name: str) -> tuple[str, str]:
    """Return status and reason for what ended a run early.

    Flower ends a ServerApp by `SystemExit(0)`, or by an exception of its own, when the run was
    stopped, when the process is told to end, and when its SuperLink has given the run up; in one
    process Ctrl-C arrives as itself.
    """
    stopped = isinstance(error, SystemExit) and error.code in (0, None)
    if stopped or isinstance(error, KeyboardInterrupt) or type(error).__name__ == NOT_RUNNING:
        return INTERRUPTED, (
            "stopped from outside (Ctrl-C, `flwr stop`, or a SuperLink that was away too long); go "
            f"on with resume='{name}'"
        )
    return FAILED, f"{type(error).__name__}: {error}"


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is either the old one or the whole new one."""
    with replacing(path, durable=True) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


class RunDirectory:
    """`<output-dir>/<run-name>/`: its files, its lock and how the run ended.

    Attributes
    ----------
    path : Path
        The directory.
    info : dict
        The content of config.json.
    resumed : bool
        Whether the directory was there before.
    begun : bool
        Whether this run has written to it. A resumed one does so once nothing can refuse it, so
        that a refusal leaves every file as it was.
    clients : dict of int to dict
        The rows of clients.csv by client id.
    """

    def __init__(self, path: Path, info: dict[str, Any], lock: FileLock, resumed: bool) -> None:
        self.path = path
        self.info = info
        self.resumed = resumed
        self.begun = not resumed
        self.clients = _read_clients(path / "clients.csv") if resumed else {}
        self._lock = lock

    @classmethod
    def open(cls, run: RunConfig) -> RunDirectory:
        """Create the directory of a new run, or open that of the run to resume.

        Raises
        ------
        ConfigError
            If a new run's directory exists, the run to resume does not, its settings differ
            (all differing keys are listed), another process is using it, or its disk is full.
        """
        name = run.resume or run.run_name or _fresh_name(run)
        path = run.run_root / name
        if run.resume and not (path / "config.json").is_file():
            raise ConfigError(f"resume = {name!r}: there is no run in {path}")
        if not run.resume:
            _make(path, name)
        lock = lock_run(path)
        if not run.resume:
            directory = cls(path, _describe(run, name), lock, resumed=False)
        else:
            try:
                info = _read_info(path / "config.json")
                if info.get(CLEANED):
                    raise ConfigError(
                        f"resume = {name!r}: `wildflower clean` deleted the run's checkpoints and "
                        "private states, or the run did (keep-states = false), so it cannot go on; "
                        "start a new run"
                    )
                _refuse_changes(name, info["config"], run)
            except ConfigError:
                lock.release()
                raise
            info["config"] = {**run.flat(), "run-name": name, "resume": "", "resume-round": 0}
            info.pop("reason", None)  # of an earlier failure
            return cls(path, info, lock, resumed=True)
        try:
            directory.set_status(RUNNING)
        except NotWrittenError as error:
            lock.release()
            raise ConfigError(f"output-dir: {error}") from error
        return directory

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def set_status(self, status: str, **facts: Any) -> None:
        """Write config.json with a new status, one of the module's constants, and facts."""
        write_atomically(self.path / "config.json", self._with_status(status, **facts))

    def _with_status(self, status: str, **facts: Any) -> str:
        """Return the text of config.json with a new status and facts."""
        self.info.pop("reason", None)  # of an earlier failure, when the run goes on
        self.info |= {"status": status, **facts}
        return json.dumps(self.info, indent=2) + "\n"

    def refuse(self, info: ClientInfo) -> str | None:
        """Return why a client cannot go on in this run: its data or model has changed."""
        row = self.clients.get(info.client_id, {})
        for key in ("model", "data_hash"):
            now = harmless_cell(str(getattr(info, key)))
            if row and harmless_cell(row[key]) != now:
                return (
                    f"client {info.client_id}: {key} was {row[key]} when it joined and is "
                    f"{now} now; the run needs the same clients, so undo the "
                    "change or start a new run"
                )
        return None

    def write_clients(self, infos: Mapping[int, ClientInfo]) -> None:
        """Write clients.csv: the clients of this run so far, also those that are away."""
        for path, text in self.texts(infos).items():
            write_atomically(path, text)

    def texts(self, infos: Mapping[int, ClientInfo]) -> dict[Path, str]:
        """Return clients.csv and config.json of a running run with these clients, unwritten."""
        pairs = "".join(f"{i}:{infos[i].data_hash};" for i in sorted(infos))
        digest = hashlib.sha256(pairs.encode()).hexdigest()[:16]
        return {
            self.path / "clients.csv": self._clients_text(infos),
            self.path / "config.json": self._with_status(
                RUNNING, split_hash=digest, clients=len(infos)
            ),
        }

    def _clients_text(self, infos: Mapping[int, ClientInfo]) -> str:
        for client_id, info in infos.items():
            values = [client_id, *dataclasses.astuple(info)[1:]]
            texts = (" ".join(map(str, v)) if isinstance(v, list) else str(v) for v in values)
            cells = map(harmless_cell, texts)
            self.clients[client_id] = dict(zip(CLIENT_COLUMNS, cells, strict=True))
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, CLIENT_COLUMNS)
        writer.writeheader()
        writer.writerows(row for _, row in sorted(self.clients.items()))
        return table.getvalue()

    def release(self) -> None:
        """Let another process use the directory."""
        self._lock.release()


def _fresh_name(run: RunConfig) -> str:
    dataset = file_stem(run.dataset)
    return f"{run.method}-{dataset}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _make(path: Path, name: str) -> None:
    """Make a new run's directory; one whose run ended before its first round is used again."""
    unused = (path / "config.json").is_file() and not (path / "rounds.csv").exists()
    if unused and _read_info(path / "config.json").get("status") in (FAILED, INTERRUPTED):
        return
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(
            f"run-name = {name!r}: {path} exists; go on with it by resume='{name}', or take "
            "another run-name"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"output-dir: {path} cannot be made ({error}); expected a place to write to"
        ) from error


def _read_info(path: Path) -> dict[str, Any]:
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: damaged ({error}); the run cannot be resumed") from error
    if not isinstance(info, dict) or not isinstance(info.get("config"), dict):
        raise ConfigError(f"{path}: not a run's configuration; the run cannot be resumed")
    return info


def lock_run(path: Path) -> FileLock:
    """Take the lock of a run's directory; raises `ConfigError` if another process has it."""
    lock = FileLock(path / "run.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{path}: another process is using this run") from None
    return lock


def mark_cleaned(path: Path) -> None:
    """Note in config.json that the run's states are gone, so that no resume takes it for new."""
    info = _read_info(path / "config.json")
    write_atomically(path / "config.json", json.dumps({**info, CLEANED: True}, indent=2) + "\n")


def require_run(path: Path) -> None:
    """Raise `ConfigError` unless there is a run in a directory."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path}: there is no run here (no config.json)")


def is_in_use(path: Path) -> bool:
    """Say whether a process is at work on the run in this directory."""
    try:
        lock_run(path).release()
    except ConfigError:
        return True
    return False


def changed_settings(recorded: Mapping[str, Any], run: RunConfig) -> list[str]:
    """Return what a run that is gone on with would change: ``key: was X, now Y`` of each key.

    A key that came with a later version did at its default what earlier versions did. Keys that a
    resumed run may set differently are left out.
    """
    now = run.flat()
    before = {k: v for k, v in default_run_config(run.chosen_method).items() if k in now}
    before |= in_present_words(recorded)
    # What follows from num-rounds must stay what it was, in a run of more rounds, too.
    first, later = (in_rounds(run.chosen_method, values) for values in (before, now))
    changed = []
    for key in sorted({*before, *now} - run.may_change_on_resume):
        if first.get(key) != later.get(key):
            derived = first.get(key) != before.get(key)
            why = f" (by num-rounds; go on with {key}={first.get(key)}, as the run began)" * derived
            changed.append(f"{key}: was {first.get(key)!r}, now {later.get(key)!r}{why}")
    return changed


def _refuse_changes(name: str, recorded: Mapping[str, Any], run: RunConfig) -> None:
    changed = changed_settings(recorded, run)
    if changed:
        why = " (lr-schedule = 'cosine' gives every round a rate by how many rounds there are)"
        raise ConfigError(
            f"resume = {name!r}: settings differ from the run's; "
            + "; ".join(text + why * text.startswith("num-rounds") for text in changed)
        )


def _read_clients(path: Path) -> dict[int, dict[str, str]]:
    """Return the rows of clients.csv by client id."""
    return {int(row["client"]): row for row in iterate_rows(path)}


def _describe(run: RunConfig, name: str) -> dict[str, Any]:
    return {
        "run_name": name,
        "status": RUNNING,
        "config": {**run.flat(), "run-name": name},
        "versions": versions(),
        "git_revision": git_revision(),
        "seed": run.seed,
        "split_hash": None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "token": secrets.token_hex(8),
    }
