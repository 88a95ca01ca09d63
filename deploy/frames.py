"""Runs and comparisons as pandas data frames, for notebooks; `import wildflower` has the functions.

>>> import wildflower
>>> run = wildflower.load_run("~/wildflower/RUN-NAME")
>>> run.metrics.query("metric == 'accuracy'").groupby("round")["value"].mean()
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import pandas as pd

from deploy.compare.plan import PlannedRun, read_plan
from deploy.compare.progress import COMPLETE, run_state
from deploy.past_runs import status_of
from server_app.records.csv_files import read_rows
from server_app.records.run_reader import read_run
from strategies.base.messages import ClientInfo
from strategies.base.options import ConfigError

_WHOLE = {name for name, kind in get_type_hints(ClientInfo).items() if kind is int}


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A run directory, read.

    Attributes
    ----------
    path : Path
        The directory.
    status : str
        "running", "completed", "failed" or "interrupted".
    settings : dict
        The flat run-config.
    summary : dict
        The content of summary.json; empty while there is none.
    metrics : DataFrame
        round, client, phase, metric, value, examples: what clients measured. Rows without a finite
        value are left out.
    server_metrics : DataFrame
        round, phase, metric, value, examples: what the server measured.
    traffic : DataFrame
        round, client, direction, scalars, bytes, purpose.
    clients : DataFrame
        By client id, the columns of clients.csv.
    rounds : DataFrame
        round, seconds, client_compute_s, participants, failed, workers. The closing evaluation is
        no round and left out.
    failures : DataFrame
        round, client, kind, reason: who was left out.
    """

    path: Path
    status: str
    settings: dict[str, Any]
    summary: dict[str, Any]
    metrics: pd.DataFrame
    server_metrics: pd.DataFrame
    traffic: pd.DataFrame
    clients: pd.DataFrame
    rounds: pd.DataFrame
    failures: pd.DataFrame

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name


@dataclasses.dataclass(frozen=True, eq=False)
class ComparisonRuns:
    """The complete runs of a comparison.

    Attributes
    ----------
    table : DataFrame
        A row a planned run: run, variant, method (its label), seed, complete, and where it is
        complete the numbers of the summary's accuracy and traffic: final, best, ...
    runs : dict of str to Run
        The complete runs by name.
    metrics, traffic, rounds : DataFrame
        Those of all complete runs, with the columns run, variant, method and seed in front.
    """

    table: pd.DataFrame
    runs: dict[str, Run]
    metrics: pd.DataFrame
    traffic: pd.DataFrame
    rounds: pd.DataFrame


def load_run(path: str | Path) -> Run:
    """Read a run directory, also of a run that goes on.

    Raises
    ------
    FileNotFoundError
        There is no run.
    DamagedRecordError
        A file is malformed; the message names file and line.
    """
    directory = Path(path).expanduser()
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory}: there is no run here (no config.json)")
    records = read_run(directory)
    return Run(
        path=directory,
        status=status_of(directory).status,
        settings=records.settings,
        summary=records.summary or {},
        metrics=records.metrics.reset_index(drop=True)[
            ["round", "client", "phase", "metric", "value", "examples"]
        ],
        server_metrics=records.server_metrics.reset_index(drop=True),
        traffic=records.traffic,
        clients=_clients(directory / "clients.csv"),
        rounds=records.rounds.reset_index(drop=True),
        failures=records.failures,
    )


def load_comparison(path: str | Path) -> ComparisonRuns:
    """Read the complete runs of a comparison.

    Parameters
    ----------
    path : str or Path
        The YAML file that `wildflower compare` ran.

    Raises
    ------
    ConfigError
        The file is not fit, or the runs have other settings than it says.
    """
    plan = read_plan(Path(path).expanduser())
    states = {planned.name: run_state(planned, plan.clients) for planned in plan.runs}
    complete = [planned for planned in plan.runs if states[planned.name] == COMPLETE]
    if not complete:
        raise ConfigError(f"{path}: none of its runs is complete in {plan.output}")
    runs = {planned.name: load_run(planned.directory) for planned in complete}
    rows = [
        {**_place(planned), "complete": planned.name in runs, **_numbers(runs.get(planned.name))}
        for planned in plan.runs
    ]
    frames = {
        name: pd.concat(
            [_placed(planned, getattr(runs[planned.name], name)) for planned in complete],
            ignore_index=True,
        )
        for name in ("metrics", "traffic", "rounds")
    }
    return ComparisonRuns(table=pd.DataFrame(rows), runs=runs, **frames)


def _place(planned: PlannedRun) -> dict[str, Any]:
    return {
        "run": planned.name,
        "variant": planned.variant,
        "method": planned.label,
        "seed": planned.seed,
    }


def _placed(planned: PlannedRun, frame: pd.DataFrame) -> pd.DataFrame:
    own = frame.assign(**_place(planned))
    return own[[*_place(planned), *frame.columns]]


def _numbers(run: Run | None) -> dict[str, float]:
    """Return the numbers of a summary's accuracy and traffic."""
    sections = [run.summary.get(name) or {} for name in ("accuracy", "traffic")] if run else []
    return {
        key: value
        for section in sections
        for key, value in section.items()
        if isinstance(value, int | float)
    }


def _clients(path: Path) -> pd.DataFrame:
    """Return clients.csv by client id; whole numbers as such, all else as texts."""
    frame = pd.DataFrame(read_rows(path))
    for column in frame.columns:
        if column == "client" or column in _WHOLE:
            frame[column] = pd.to_numeric(frame[column]).astype("Int64")
    return frame.set_index("client") if len(frame.columns) else frame
