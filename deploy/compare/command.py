"""`wildflower compare FILE.yaml`: many runs one after another, one table and one page of them.

The file names methods, seeds and shared settings (deploy/comparisons holds some; `compare.plan`
reads them). Its runs go through `flwr run` on one private SuperLink, one after the other, or with
`--processes N` N at once without Flower's processes. A run that is complete is skipped and one that
was cut off is resumed, so the command can be interrupted and started again at any time. The table
and the page are written after every run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from deploy.arguments import count
from deploy.compare.deltas import unlike_models
from deploy.compare.differences import differences, statement
from deploy.compare.output import left_out, markdown, table_cells, write_outputs
from deploy.compare.own_processes import RunProcesses
from deploy.compare.plan import Plan, PlannedRun, read_plan
from deploy.compare.progress import (
    COMPLETE,
    PARTIAL,
    check_states,
    run_state,
    start_config,
    why_incomplete,
)
from deploy.compare.results import Row
from deploy.flower.processes import terminate_as_interrupt
from deploy.flower.simulation import FlowerError, FlowerSimulation
from deploy.run import with_code_dir
from server_app.console import say
from server_app.records.csv_files import finished_rounds
from server_app.records.run_directory import write_atomically
from strategies.base.options import ConfigError

SHOWN = ("round ", "resuming after", "stopping after", "wildflower: ", "client ")
"""Beginnings of the log lines that are passed on to the terminal."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", type=Path, help="the comparison, a YAML file")
    parser.add_argument(
        "--app", type=Path, metavar="DIR", help="the Flower app (default: where this program is)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check the file, list its runs, and stop"
    )
    add_processes(parser)


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Declare the argument for runs without Flower's processes."""
    parser.add_argument(
        "--processes", type=count, metavar="N",
        help="N runs at once, each in a process of its own without Ray, on the CPU: faster for "
        "small runs",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    """Run a comparison.

    Returns
    -------
    int
        0 if all runs are complete, 1 if one failed, 2 if the file or earlier runs are not fit, 130
        after an interrupt.
    """
    try:
        plan = read_plan(args.file.expanduser())
        states = check_states(plan)
        app = app_directory(args.app)
        check_processes(args.processes, plan, args.app)
    except ConfigError as error:
        print(f"wildflower compare: {error}", file=sys.stderr)
        return 2
    if args.dry_run:
        for run in plan.runs:
            say(f"{run.name}: {states[run.name]}")
        return 0
    command = f"wildflower compare {args.file}"
    if args.processes:
        command += f" --processes {args.processes}"
    return run_all(Comparison(plan, states, app, processes=args.processes), command)


def check_processes(processes: int | None, plan: Plan, app: Path | None) -> None:
    """Refuse what `--processes` would leave without effect."""
    if processes is None:
        return
    if plan.gpus_per_client:
        raise ConfigError(
            "--processes: clients are computed on the CPU then, which leaves gpus-per-client "
            "without effect; leave out one of the two"
        )
    if app is not None:
        raise ConfigError("--processes: no Flower app is started then; leave out --app")


def run_all(comparison: Comparison, command: str) -> int:
    """Run a comparison to its end; return the exit code of the command line that asked for it.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    command : str
        How the user goes on after an interrupt.
    """
    program = " ".join(command.split()[:2])
    try:
        with _sole_user(comparison.plan), terminate_as_interrupt():
            return comparison.execute()
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except FlowerError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        comparison.write()
        say(f"interrupted; `{command}` goes on from here")
        return INTERRUPTED


@dataclasses.dataclass
class Comparison:
    """A comparison at work.

    Attributes
    ----------
    plan : Plan
        What to run.
    states : dict of str to str
        How much there is of every run, kept up to date.
    app : Path
        The Flower app.
    notes : dict of str to str
        Why a run failed, by its name.
    processes : int, optional
        How many runs are computed at once without Flower's processes; None: one after the other,
        through `flwr run`.
    """

    plan: Plan
    states: dict[str, str]
    app: Path
    notes: dict[str, str] = dataclasses.field(default_factory=dict)
    processes: int | None = dataclasses.field(default=None, kw_only=True)

    def execute(self) -> int:
        """Run what is not complete; return the exit code."""
        todo = [run for run in self.plan.runs if self.states[run.name] != COMPLETE]
        complete, total = len(self.plan.runs) - len(todo), len(self.plan.runs)
        begun = sum(self.states[run.name] == PARTIAL for run in todo)
        resumed = f", {begun} to be resumed" if begun else ""
        say(f"{self.plan.name}: {total} runs, {complete} already complete{resumed}")
        if note := unlike_models(self.plan.runs):
            say(f"note: {note}")
        self.write()
        numbered = list(enumerate(todo, complete + 1))
        if todo and self.processes:
            self._run_at_once(numbered, self.processes)
        elif todo:
            with FlowerSimulation() as flower:
                for number, run in numbered:
                    self._say_start(number, run)
                    self._run(flower, run)
                    self.write()
        rows = self.write()
        say()
        say(markdown(self.plan, *table_cells(self.plan, rows), left_out(rows)))
        for difference in differences(self.plan, rows):
            say(f"{difference.title}: {statement(difference)}")
        say(f"page: {self.plan.output / self.plan.name}.html")
        for name, reason in self.notes.items():
            say(f"{name}: not complete: {reason}")
        return 1 if self.notes else 0

    def write(self) -> list[Row]:
        """Write table and page of what is complete."""
        return write_outputs(self.plan, self.states, self.notes)

    def _say_start(self, number: int, run: PlannedRun) -> None:
        """Say that a run starts or goes on, and which of all it is."""
        verb = "starts"
        if self.states[run.name] == PARTIAL:
            verb = f"resumes after round {max(finished_rounds(run.directory), default=0)}"
        say(f"[{number}/{len(self.plan.runs)}] {run.name}: {verb}")

    def _run_at_once(self, todo: list[tuple[int, PlannedRun]], processes: int) -> None:
        """Run them in processes of their own, so many at once."""
        waiting = todo[::-1]
        with RunProcesses(processes) as running:
            while waiting or len(running):
                while waiting and not running.full:
                    number, planned = waiting.pop()
                    self._say_start(number, planned)
                    running.start(
                        planned,
                        with_code_dir(start_config(planned, self.states[planned.name])),
                        clients=self.plan.clients,
                        log=self._log_path(planned),
                        timeout=self.plan.run_timeout,
                    )
                ended, reason = running.wait()
                self._take(ended.planned, reason, ended.seconds)
                self.write()

    def _run(self, flower: FlowerSimulation, planned: PlannedRun) -> None:
        """Run one; whatever goes wrong with it becomes its note, unless the SuperLink is gone."""
        started = time.monotonic()
        reason = ""
        try:
            done = flower.run(
                self.app,
                with_code_dir(start_config(planned, self.states[planned.name])),
                clients=self.plan.clients,
                workers=self.plan.workers,
                timeout=self.plan.run_timeout,
                federation=self.plan.federation,
                on_line=_pass_on,
            )
            self._keep_log(planned, done.log)
            reason = done.details or f"Flower says {done.status}; see {self._log_path(planned)}"
        except (FlowerError, TimeoutError) as error:
            reason = str(error)
            if not flower.alive:
                raise FlowerError(f"the private SuperLink ended: {reason}") from error
        self._take(planned, reason, time.monotonic() - started)

    def _take(self, planned: PlannedRun, reason: str, seconds: float) -> None:
        """Note how a run ended: complete, or else why not."""
        try:
            self.states[planned.name] = run_state(planned, self.plan.clients)
        except ConfigError as error:
            self.states[planned.name] = PARTIAL
            reason = f"{error} (was the app changed meanwhile?)"
        who = f"{planned.name}: " if self.processes else ""  # others may be under way
        if self.states[planned.name] != COMPLETE:
            self.notes[planned.name] = why_incomplete(planned) or reason
            say(f"  {who}failed: {self.notes[planned.name]}")
        else:
            say(f"  {who}complete after {seconds:.0f} s")

    def _log_path(self, planned: PlannedRun) -> Path:
        return self.plan.output / "logs" / f"{planned.name}.log"

    def _keep_log(self, planned: PlannedRun, log: str) -> None:
        path = self._log_path(planned)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, log)


def _pass_on(line: str) -> None:
    if line.startswith(SHOWN) and not line.startswith("client  "):
        say("  " + line)


def app_directory(given: Path | None) -> Path:
    """Return the directory of the Flower app: the one given, or the checkout this file is in."""
    path = (given or Path(__file__).parents[2]).expanduser().absolute()
    if not (path / "pyproject.toml").is_file():
        raise ConfigError(
            f"--app = {str(path)!r}: there is no Flower app (no pyproject.toml); name the checkout "
            "of Wildflower"
        )
    return path


@contextlib.contextmanager
def _sole_user(plan: Plan) -> Iterator[None]:
    """Keep a second start of the same comparison from running the same runs."""
    plan.output.mkdir(parents=True, exist_ok=True)
    lock = FileLock(plan.output / f".{plan.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{plan.name}: another process runs it in {plan.output}") from None
    try:
        yield
    finally:
        lock.release()


def main() -> int:
    """Run the command by itself."""
    parser = argparse.ArgumentParser(prog="wildflower compare", description=__doc__)
    add_arguments(parser)
    return execute(parser.parse_args())
