"""The run of method `local` that a run is compared with: the run-config key `local-run`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.tasks import task_name
from server_app.records.client_tasks import ClientTask
from server_app.records.relative_change import named, refuse_unlike, relative_changes
from server_app.records.scores import Scores, main_scores
from strategies.base.messages import ClientInfo
from strategies.base.options import ConfigError
from strategies.base.run_config import RunConfig


def check_local_run(run_root: Path, name: str) -> None:
    """Refuse, before anything starts, a run that cannot be compared with at the end.

    Parameters
    ----------
    run_root : Path
        Directory of all runs, `RunConfig.run_root`.
    name : str
        The value of `local-run`; an empty one asks for nothing.

    Raises
    ------
    ConfigError
        If it is not a completed run of method `local` with main scores.
    """
    if name:
        _read_local_run(run_root, name)


def check_local_clients(run_root: Path, name: str, infos: Mapping[int, ClientInfo]) -> None:
    """Refuse, after the registration, a run whose clients have other tasks or other data.

    Clients that join later are compared at the end alone.

    Raises
    ------
    ConfigError
        Naming these clients; also if the run is not one for `check_local_run`.
    """
    if name:
        own = {i: ClientTask(task_name(c.task), c.metric, c.data_hash) for i, c in infos.items()}
        refuse_unlike(own, _read_local_run(run_root, name).clients, name)


def change_against_local_run(
    run: RunConfig, scores: Scores
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the summary's section `delta`, or None and the reason if there was one to be made."""
    if not run.local_run:
        return None, None
    try:
        reference = _read_local_run(run.run_root, run.local_run)
        found = relative_changes(scores, reference, run.local_run)
    except ConfigError as error:
        return None, str(error)
    if found.percent is None:
        left_out = named(f"client {i}: {why}" for i, why in found.left_out.items())
        return None, f"no client could be compared with {run.local_run!r}: {left_out}"
    return {
        "against": run.local_run,
        "percent": found.percent,
        "by_client": {str(client): change for client, change in found.by_client.items()},
        "by_task": dict(found.by_task),
        "clients_compared": len(found.by_client),
        "left_out": {str(client): reason for client, reason in found.left_out.items()},
    }, None


def _read_local_run(run_root: Path, name: str) -> Scores:
    from server_app.records.csv_tables import DamagedRecordError
    from server_app.records.run_reader import read_run

    path = run_root / name
    remedy = "run method local below the same output-dir first, and name that run here"
    try:
        info = json.loads((path / "config.json").read_text(encoding="utf-8"))
        method, status = info["config"]["method"], info["status"]
        if method != "local":
            problem = f"{path} is a run of method {method!r}"
        elif status != "completed":
            problem = f"{path} is not completed (its status is {status!r})"
        else:
            scores = main_scores(read_run(path))
            if scores.tests:
                return scores
            problem = f"no client was evaluated in {path}"
    except FileNotFoundError as error:
        problem = f"there is no completed run in {path} ({error.filename} is missing)"
    except DamagedRecordError as error:
        problem = f"the records in {path} are damaged (ValueError: {error.reason}) at {error.place}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"the records in {path} are damaged ({type(error).__name__}: {error})"
    raise ConfigError(f"local-run = {name!r}: {problem}; {remedy}")
