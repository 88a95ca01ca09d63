"""Clients of a simulation that send wrong numbers, and what that costs the others.

A bad client trains as it should and multiplies every floating-point number of its uplink by one
factor: -1 turns all signs, 10 makes them large. It acts behind the client's own code, like a device
with other software would, so that no option of a device can be set to it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from client_app.app import app as client_app
from deploy.compare.plan import PlannedRun, make_plan
from deploy.compare.progress import COMPLETE, check_states, start_config
from server_app.app import app as server_app
from server_app.records.run_reader import read_run
from server_app.records.scores import main_scores, weighted_mean
from server_app.rounds.exchange import RunError
from server_app.rounds.in_process import FIRST_NODE, InProcessGrid
from strategies.base.parsing import default_run_config
from strategies.base.payload import ARRAYS
from strategies.base.run_config import RunConfig
from strategies.base.server import RegistrationError


@dataclass(frozen=True)
class Trial:
    """What is tried: every method with every mean and factor, once for each seed.

    Attributes
    ----------
    name : str
        Begins the names of the runs.
    clients, bad : int
        How many there are, and how many of them are bad: the first ones.
    methods, means : tuple of str
        Methods and values of `robust-mean`.
    factors : tuple of float
        By what bad clients multiply what they send; 1 is the control, in which all are honest.
    seeds : tuple of int
        Of the runs.
    settings : Mapping
        Run-config keys of all runs.
    """

    name: str
    clients: int
    bad: int
    methods: tuple[str, ...]
    means: tuple[str, ...]
    factors: tuple[float, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """What came out of one run.

    Attributes
    ----------
    method, mean, status : str
        Of the run.
    factor : float
        The bad clients'.
    score : float, optional
        Mean final score of the clients that are honest in every run of the trial, weighted by test
        examples; None without one.
    refused : int
        How many answers of the bad clients the server refused.
    """

    method: str
    mean: str
    factor: float
    status: str
    score: float | None
    refused: int


class PoisonedGrid(InProcessGrid):
    """A Grid on which some clients multiply what they upload by a factor.

    Parameters
    ----------
    bad : int
        How many clients, from client 0 on.
    factor : float
        By what.
    num_clients, run_config
        As for `InProcessGrid`.
    """

    def __init__(
        self, bad: int, factor: float, num_clients: int, run_config: Mapping[str, Any]
    ) -> None:
        super().__init__(client_app, num_clients, run_config)
        self._bad, self._factor = bad, factor

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        is_bad = message.metadata.dst_node_id - FIRST_NODE < self._bad
        if is_bad and not reply.has_error() and ARRAYS in reply.content:
            reply.content[ARRAYS] = multiplied(reply.content.array_records[ARRAYS], self._factor)
        return reply


def multiplied(record: ArrayRecord, factor: float) -> ArrayRecord:
    """Return an uplink's arrays with every floating-point number multiplied."""
    return ArrayRecord({name: _multiplied(array, factor) for name, array in record.items()})


def _multiplied(array: Array, factor: float) -> Array:
    values = array.numpy()
    if not np.issubdtype(values.dtype, np.floating):
        return array
    with np.errstate(over="ignore"):
        return Array((values * factor).astype(values.dtype))


def poison(trial: Trial) -> list[Cell]:
    """Make every run of a trial that is not complete, and return what came out of all.

    An interrupted trial goes on where it was: complete runs are read, one that was cut off is
    resumed.

    Raises
    ------
    ConfigError
        If a run's settings cannot be meant, before any run starts.
    """
    plans = {factor: make_plan(_content(trial, factor)) for factor in trial.factors}
    states = {factor: check_states(plan) for factor, plan in plans.items()}
    runs = [(factor, run) for factor, plan in plans.items() for run in plan.runs]
    cells = []
    for number, (factor, planned) in enumerate(runs, 1):
        print(f"[{number}/{len(runs)}] {planned.name}", flush=True)
        if (state := states[factor][planned.name]) != COMPLETE:
            _run(trial, factor, planned, state)
        cells.append(_cell(trial, factor, planned))
    return cells


def _content(trial: Trial, factor: float) -> dict[str, Any]:
    """Return the trial with one factor as the content of a comparison's file."""
    # A run goes on without bad clients once they are in quarantine.
    settings = {"min-clients": max(1, trial.clients - trial.bad), **trial.settings}
    output = settings.pop("output-dir", RunConfig.output_dir)
    how = "honest" if factor == 1 else f"{trial.bad}-bad-x{factor:g}"
    return {
        "name": f"{trial.name}-{how}",
        "output-dir": output,
        "clients": trial.clients,
        "seeds": list(trial.seeds),
        "settings": settings,
        "methods": [
            {"name": method, "label": f"{method}-{mean}", "overrides": {"robust-mean": mean}}
            for method, mean in itertools.product(trial.methods, trial.means)
        ],
    }


def _run(trial: Trial, factor: float, planned: PlannedRun, state: str) -> None:
    config = {**default_run_config(planned.method), **start_config(planned, state)}
    grid = PoisonedGrid(trial.bad, factor, trial.clients, config)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    try:
        server_app(grid=grid, context=context)
    except (RunError, RegistrationError) as error:  # an outcome, too: the bad clients ended it
        print(f"{planned.name}: {error}", flush=True)


def _cell(trial: Trial, factor: float, planned: PlannedRun) -> Cell:
    records = read_run(planned.directory)
    final = main_scores(records).final()
    honest = [pair for client, pair in final.items() if client >= trial.bad]
    bad = {str(client) for client in range(trial.bad)}
    return Cell(
        planned.method, planned.run.robust_mean, factor, str(records.info.get("status")),
        weighted_mean(honest), int(records.failures["client"].isin(bad).sum()),
    )  # fmt: skip


def table(trial: Trial, cells: Sequence[Cell]) -> str:
    """Return a Markdown table: a row for each method and mean, a column for each factor."""
    heads = ["all honest" if x == 1 else f"{trial.bad} bad, x {x:g}" for x in trial.factors]
    lines = [f"| method | mean | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    for method, mean in itertools.product(trial.methods, trial.means):
        row = [c for c in cells if (c.method, c.mean) == (method, mean)]
        lines.append(f"| {method} | {mean} | {' | '.join(_texts(trial, row))} |")
    return "\n".join(lines)


def _texts(trial: Trial, row: Sequence[Cell]) -> Iterator[str]:
    for factor in trial.factors:
        found = [cell for cell in row if cell.factor == factor]
        scores = [100 * cell.score for cell in found if cell.score is not None]
        failed = sum(cell.status != "completed" for cell in found)
        text = f"{statistics.mean(scores):.2f}" if scores else "no score"
        if len(scores) > 1:
            text += f" ± {statistics.stdev(scores):.2f}"
        if refused := sum(cell.refused for cell in found):
            text += f", {refused} refused"
        yield text + (f", {failed} not completed" if failed else "")
