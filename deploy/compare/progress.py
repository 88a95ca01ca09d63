"""What is there of a planned run already: nothing, a part, all of it, or something else."""

from __future__ import annotations

import json
from typing import Any

from deploy.compare.plan import Plan, PlannedRun
from server_app.records.csv_files import finished_rounds
from server_app.records.run_directory import changed_settings
from strategies.base.options import ConfigError

NEW, PARTIAL, COMPLETE = "new", "incomplete", "complete"

_LEFT_BY_A_START = {"run.lock"}


def check_states(plan: Plan) -> dict[str, str]:
    """Return the state of every planned run by its name: NEW, PARTIAL or COMPLETE.

    Raises
    ------
    ConfigError
        If the directory of a planned run holds a run with other settings; the differing keys of
        all such runs are named.
    """
    states, problems = {}, []
    for run in plan.runs:
        try:
            states[run.name] = run_state(run, plan.clients)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(
            "\n  ".join(["runs with other settings are in the way:", *problems])
            + "\n  Take another name or output-dir, or move these directories away."
        )
    return states


def run_state(planned: PlannedRun, clients: int) -> str:
    """Return how much there is of one run; raises `ConfigError` if its settings differ."""
    directory = planned.directory
    if not (directory / "config.json").is_file():
        return NEW
    info = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    changed = changed_settings(info["config"], planned.run)
    if info.get("clients", clients) != clients:
        changed.append(f"clients: was {info['clients']}, now {clients}")
    done = max(finished_rounds(directory), default=0)
    if done > planned.run.num_rounds:
        changed.append(f"num-rounds: {done} are finished, now {planned.run.num_rounds}")
    if changed:
        raise ConfigError(f"{directory}: " + "; ".join(changed))
    whole = info.get("status") == "completed" and (directory / "summary.json").is_file()
    if whole and info["config"].get("num-rounds") == planned.run.num_rounds:
        return COMPLETE
    return PARTIAL


def start_config(planned: PlannedRun, state: str) -> dict[str, Any]:
    """Return the run-config to start a run with; an incomplete one is resumed.

    A directory that a killed start left without a configuration is removed first.
    """
    if state == PARTIAL:
        return {**planned.config, "run-name": "", "resume": planned.name}
    directory = planned.directory
    if directory.is_dir():
        names = {path.name for path in directory.iterdir()}
        if all(name in _LEFT_BY_A_START or name.endswith(".partial") for name in names):
            for name in names:
                (directory / name).unlink()
            directory.rmdir()
    return dict(planned.config)


def why_incomplete(planned: PlannedRun) -> str:
    """Return the recorded reason why a run is not complete, or nothing."""
    path = planned.directory / "config.json"
    if not path.is_file():
        return ""
    return str(json.loads(path.read_text(encoding="utf-8")).get("reason") or "")
