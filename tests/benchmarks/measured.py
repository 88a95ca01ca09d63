"""One `flwr run` in simulation, watched from outside: times, memory, bytes on disk."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from deploy.flower.simulation import FlowerRun, FlowerSimulation
from deploy.flower.text import Value
from server_app.records.csv_files import read_rows
from tests.benchmarks.memory import ROLES, Peaks
from tests.benchmarks.workloads import ROOT, WARM_UP, BenchmarkError, Workload

ENVIRONMENT = {"RAY_worker_niceness": "0"}
"""Ray lets its workers give way to everything else (niceness 15); the bare loop does not."""
LOOK = 1.0
POLL = 0.02
RUN = "benchmark"
SERVER, WORKER, _ = ROLES


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was seen of a run.

    Attributes
    ----------
    start_up_s : float
        From the submission until round 1 began.
    round_s : list of float
        Wall seconds from the end of a round to the end of the next, records and checkpoint
        included. The first two rounds are left out, here and in the lists below, and the last one
        if it alone evaluates.
    recorded_s : list of float
        The run's own seconds of these rounds, from the first message to the last reply.
    compute_s : list of float
        The run's own seconds that clients were at work, summed over clients.
    participants, evaluated : int
        Clients that trained, and that were evaluated, in the last round.
    workers : int
        Processes that ran clients.
    peaks : dict
        By role and kind, in bytes; see `tests.benchmarks.memory`.
    disk_bytes : int
        Sum of the sizes of the files of the run's directory at its end.
    total_s : float
        From the submission to the end.
    accuracy : float or None
        The last round's mean, to see that the run did learn.
    metrics : list of dict
        The rows of metrics.csv, where they were asked for.
    """

    start_up_s: float
    round_s: list[float]
    recorded_s: list[float]
    compute_s: list[float]
    participants: int
    evaluated: int
    workers: int
    peaks: dict[str, dict[str, int]]
    disk_bytes: int
    total_s: float
    accuracy: float | None
    metrics: list[dict[str, str]] = dataclasses.field(default_factory=list)


class Watch:
    """Notes when rounds end, and how much memory processes take, in a thread of its own."""

    def __init__(self, simulation: FlowerSimulation, rounds: Path) -> None:
        self.peaks = Peaks()
        self.ended: list[float] = []
        self._simulation, self._rounds = simulation, rounds
        self._read = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=10)

    def look_at_rounds(self) -> None:
        """Note the time for every round that is new in rounds.csv."""
        if (grown := _size(self._rounds)) > self._read:
            self._read, now = grown, time.time()
            lines = self._rounds.read_bytes().count(b"\n") - 1  # without the heading
            self.ended += [now] * (lines - len(self.ended))

    def _watch(self) -> None:
        next_look = 0.0
        while not self._over.wait(POLL):
            self.look_at_rounds()
            if time.monotonic() >= next_look:
                self.peaks.look(self._simulation)
                next_look = time.monotonic() + LOOK


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def measure_run(
    workload: Workload,
    workers: int,
    *,
    app: Path = ROOT,
    federation: Mapping[str, Value] | None = None,
    limit: float = 3600.0,
    keep_metrics: bool = False,
) -> Measured:
    """Run a workload through `flwr run` on an own SuperLink, and return what was seen.

    Raises
    ------
    BenchmarkError
        If the run did not complete, or left fewer rounds than it should have.
    """
    with (
        tempfile.TemporaryDirectory() as output,
        FlowerSimulation(environment=ENVIRONMENT) as simulation,
    ):
        directory = Path(output) / RUN
        values: dict[str, Value] = {
            "min-clients": workload.clients, "wait-timeout": 300.0, "on-client-error": "stop",
            "run-name": RUN, "output-dir": output, **workload.config,
        }  # fmt: skip
        with Watch(simulation, directory / "rounds.csv") as watch:
            submitted = time.time()
            run = simulation.run(
                app, values, clients=workload.clients, workers=workers, federation=federation,
                timeout=limit,
            )  # fmt: skip
            total = time.time() - submitted
        return _seen(workload, run, directory, watch, submitted, total, keep_metrics)


def _seen(
    workload: Workload,
    run: FlowerRun,
    directory: Path,
    watch: Watch,
    submitted: float,
    total: float,
    keep_metrics: bool,
) -> Measured:
    if not run.completed:
        raise BenchmarkError(f"{workload.name}: {run.status}: {run.log[-3000:]}")
    rows = [row for row in read_rows(directory / "rounds.csv") if row["closing"] != "True"]
    if len(rows) != workload.rounds or len(watch.ended) < len(rows):
        raise BenchmarkError(
            f"{workload.name}: {len(rows)} rounds in {directory}: {run.log[-3000:]}"
        )
    accuracy = float(rows[-1]["accuracy"]) if rows[-1]["accuracy"] else None
    start = watch.ended[0] - float(rows[0]["seconds"])
    if len(rows) > 1 and rows[-1]["evaluated"] != rows[-2]["evaluated"]:
        del rows[-1]
    ended, steady = watch.ended[: len(rows)], rows[WARM_UP:]
    return Measured(
        start_up_s=start - submitted,
        round_s=[later - earlier for earlier, later in pairwise(ended)][WARM_UP - 1 :],
        recorded_s=[float(row["seconds"]) for row in steady],
        compute_s=[float(row["client_compute_s"]) for row in steady],
        participants=int(rows[-1]["participants"]),
        evaluated=int(rows[-1]["evaluated"]),
        workers=max(int(row["workers"]) for row in rows),
        peaks=watch.peaks.values,
        disk_bytes=sum(p.stat().st_size for p in directory.rglob("*") if p.is_file()),
        total_s=total,
        accuracy=accuracy,
        metrics=read_rows(directory / "metrics.csv") if keep_metrics else [],
    )
