"""From what was measured to ratios, goals and the table."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.baseline import Baseline
from tests.benchmarks.measured import SERVER, WORKER, Measured

HALF_A_STATE = 22e6
"""Server memory that B4 may add: less than half of one client's state (44 MB) is noise."""

COLUMNS: dict[str, str] = {
    "round s": "round_s",
    "bare s": "baseline_s",
    "round/bare": "round_to_baseline",
    "client s": "client_compute_s",
    "efficiency": "efficiency",
    "bare loop's": "baseline_efficiency",
    "ms/client": "overhead_ms",
    "ms/trained": "overhead_trained_ms",
    "start s": "start_up_s",
    "server MB": "server_mb",
    "anon": "server_anonymous_mb",
    "worker MB": "worker_mb",
    "anon ": "worker_anonymous_mb",
    "disk MB": "disk_mb",
}
LEGEND = """\
round s     median wall seconds of a round, records and checkpoint included, without rounds 1 and 2
bare s      the bare PyTorch loop: median round, mean of the one before and the one after the run
client s    seconds a round that clients were at work, summed over clients
efficiency  client s / (round s x workers), over all rounds that count
bare loop's the same of the bare loop: below 1 where clients cannot be divided evenly
ms/client   (round s x workers - bare loop's busy seconds) / clients trained or evaluated, in ms
ms/trained  the same divided by the clients that trained alone
start s     from the submission by `flwr run` to the beginning of round 1
MB          peak resident memory of the server process and of one worker
anon        the part of it that is the process's own, seen once a second
disk MB     files of the run's directory at its end"""


@dataclasses.dataclass(frozen=True)
class Goal:
    """A figure and its limit.

    Attributes
    ----------
    workload, what : str
        Whose figure, and which.
    value, limit : float
        In the same unit.
    at_least : bool
        Whether the limit is a lower one.
    """

    workload: str
    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value is on the right side of the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        """Return the goal as a line of text."""
        sign, verdict = (">=" if self.at_least else "<="), ("met" if self.met else "MISSED")
        return (
            f"{verdict:7} {self.workload:6} {self.what:66} {self.value:9.3f} {sign} {self.limit:g}"
        )


def run_figures(run: Measured, baselines: Sequence[Baseline]) -> dict[str, float]:
    """Return the figures of one run beside the bare loops before and after it.

    Of the two loops the mean is taken: the load of a shared machine during the run lies between
    those before and after it.
    """
    round_s = statistics.median(run.round_s)
    baseline_s = statistics.fmean(statistics.median(baseline.round_s) for baseline in baselines)
    busy_s = statistics.fmean(statistics.median(baseline.busy_s) for baseline in baselines)
    capacity = sum(run.round_s) * run.workers
    overhead = 1e3 * (round_s * run.workers - busy_s)
    collected = statistics.fmean(baseline.parts_s.get("collect", 0.0) for baseline in baselines)
    peaks = {
        name: run.peaks.get(role, {}) for name, role in (("server", SERVER), ("worker", WORKER))
    }
    return {
        "round_s": round_s,
        "baseline_s": baseline_s,
        "baseline_busy_s": busy_s,
        "baseline_without_collection_s": baseline_s * (1 - collected / busy_s),
        "round_to_baseline": round_s / baseline_s,
        "client_compute_s": statistics.median(run.compute_s),
        "efficiency": sum(run.compute_s) / capacity,
        "baseline_efficiency": busy_s / (baseline_s * run.workers),
        "overhead_ms": overhead / max(run.participants, run.evaluated),
        "overhead_trained_ms": overhead / run.participants,
        "start_up_s": run.start_up_s,
        **{f"{name}_mb": kinds.get("highest", 0) / 1e6 for name, kinds in peaks.items()},
        **{
            f"{name}_anonymous_mb": kinds.get("anonymous", 0) / 1e6 for name, kinds in peaks.items()
        },
        "disk_mb": run.disk_bytes / 1e6,
    }


def goals(workloads: Mapping[str, Mapping[str, Any]]) -> list[Goal]:
    """Return the goals that the workloads measured here have.

    Parameters
    ----------
    workloads : mapping
        By name, each with "figures" from `run_figures`, or what `B4`'s and `start`'s own have.
    """
    figures = {name: r["figures"] for name, r in workloads.items() if r["figures"]}
    found = []
    if "B1" in figures:
        found += [
            Goal("B1", "efficiency", figures["B1"]["efficiency"], 0.90, at_least=True),
            Goal("B1", "round / baseline", figures["B1"]["round_to_baseline"], 1.15),
        ]
    for name in ("B2", "B2-train", "B3", "B3-train"):
        if name in figures:
            text = "overhead, ms a round and client that trained or was evaluated"
            found.append(Goal(name, text, figures[name]["overhead_ms"], 50))
    if {"B2", "B3"} <= figures.keys():
        for kind, text in (("server_mb", "resident"), ("server_anonymous_mb", "anonymous")):
            ratio = figures["B3"][kind] / figures["B2"][kind]
            found.append(Goal("B3/B2", f"server memory, {text}", ratio, 1.2))
    if "B4" in figures:
        found += [
            Goal("B4", "private state, s a client and message, timed",
                figures["B4"]["state_s"], 0.15,
            ),
            Goal(
                "B4", "the same, against models kept in memory", figures["B4"]["compared_s"], 0.15
            ),
            Goal(
                "B4", "server memory that private state adds, MB (noise: half a state)",
                figures["B4"]["state_server_mb"], HALF_A_STATE / 1e6,
            ),
        ]  # fmt: skip
    if "start" in figures:
        found.append(
            Goal("start", "start-up / empty app's", figures["start"]["start_up_ratio"], 1.3)
        )
    return found


def table(workloads: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures of all federations as text."""
    lines = ["".join(f"{name:>12}" for name in ("", *COLUMNS))]
    for name, result in workloads.items():
        if "round_s" in result["figures"]:
            cells = (f"{result['figures'][key]:12.{_digits(key)}f}" for key in COLUMNS.values())
            lines.append(f"{name:>12}" + "".join(cells))
    return "\n".join(lines)


def _digits(key: str) -> int:
    if key.endswith(("_mb", "_ms")):
        return 1 if key.endswith(("ms", "disk_mb")) else 0
    return 2 if key.endswith("start_up_s") else 3
