"""The benchmark: rounds, start-up, memory and disk of real runs, beside a bare PyTorch loop.

    python -m tests.benchmarks                        # everything, on a quiet machine
    python -m tests.benchmarks B1 B4 --json speed.json
    python -m tests.benchmarks --quick                # minutes; shows that it works, no more

Every federation is a real `flwr run` in Ray simulation with two workers of one CPU. The bare loop
runs right before and right after it, so that other work on the machine shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.baseline import Baseline, measure_baseline
from tests.benchmarks.figures import LEGEND, goals, run_figures, table
from tests.benchmarks.machine import load, machine
from tests.benchmarks.measured import SERVER, Measured, measure_run
from tests.benchmarks.muscle import measure_muscle
from tests.benchmarks.private_state import StateCost, measure_state
from tests.benchmarks.startup import empty_start_up
from tests.benchmarks.workloads import Workload, with_images, workloads

WORKERS = 2
NAMES = ("B1", "B2", "B2-train", "B3", "B3-train", "B4", "B5", "start")


def federation(workload: Workload, run: Any = measure_run) -> dict[str, Any]:
    """Measure the bare loop, the run and the bare loop again."""
    workload = with_images(workload)
    loads = [load()]
    say(f"{workload.name}: {workload.title}: bare loop, run, bare loop")
    baselines = [measure_baseline(workload, WORKERS)]
    loads.append(load())
    seen: Measured | StateCost = run(workload, WORKERS)
    loads.append(load())
    baselines.append(measure_baseline(workload, WORKERS))
    measured = seen.with_files if isinstance(seen, StateCost) else seen
    result: dict[str, Any] = {
        "title": workload.title,
        "note": workload.note,
        "clients": workload.clients,
        "config": workload.config,
        "load": loads,
        "measured": dataclasses.asdict(seen),
        "baselines": [dataclasses.asdict(baseline) for baseline in baselines],
        "figures": run_figures(measured, baselines),
    }
    say(summary(measured, baselines))
    if isinstance(seen, StateCost):
        result["figures"] |= state_figures(seen)
    return result


def state_figures(cost: StateCost) -> dict[str, float]:
    """Return what private state costs, for B4."""
    with_files, in_memory = (
        run.peaks[SERVER]["highest"] / 1e6 for run in (cost.with_files, cost.in_memory)
    )
    return {
        "state_s": sum(cost.parts_s.values()),
        **{f"state_{part}_s": seconds for part, seconds in cost.parts_s.items()},
        "compared_s": cost.compared_s,
        "state_server_mb": with_files - in_memory,
        "server_mb_in_memory": in_memory,
    }


def start_up(quick: bool) -> dict[str, Any]:
    """Compare the submission to the first training step with an empty app's; best of each."""
    say("start: an empty app and a run in turn")
    workload = workloads(quick)["B2"]
    workload = dataclasses.replace(workload, name="start", clients=10).with_values(
        sample_fraction=1.0, num_rounds=1
    )
    loads, own, empty = [load()], [], []
    for _ in range(1 if quick else 3):
        empty.append(empty_start_up(workload.clients, WORKERS))
        own.append(measure_run(workload, WORKERS).start_up_s)
        loads.append(load())
    ratio = min(own) / min(empty)
    say(f"  empty {min(empty):.1f} s, run {min(own):.1f} s, ratio {ratio:.2f}")
    figures = {"empty_s": min(empty), "start_up_s": min(own), "start_up_ratio": ratio}
    return {"title": "start-up", "load": loads, "empty_s": empty, "own_s": own, "figures": figures}


def muscle(quick: bool) -> dict[str, Any]:
    """Measure FedMuscle's loss."""
    say("B5: FedMuscle's loss, B = 32, d = 256, one thread")
    before = load()
    found = measure_muscle(quick)
    for users, values in found.items():
        say(f"  M = {users}: {values['ms']:9.2f} ms  {values['mb']:7.1f} MB")
    return {"title": "FedMuscle's loss", "load": [before], "by_users": found, "figures": {}}


def summary(run: Measured, baselines: list[Baseline]) -> str:
    """Return one line about a run while others are still to come."""
    return (
        f"  rounds {', '.join(f'{s:.2f}' for s in run.round_s)} s; bare "
        + " and ".join(", ".join(f"{s:.2f}" for s in baseline.round_s) for baseline in baselines)
        + f" s; {run.participants} trained, {run.evaluated} evaluated by {run.workers} workers; "
        f"{run.total_s:.0f} s in all"
    )


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def measure(name: str, quick: bool, rounds: int | None) -> dict[str, Any]:
    """Measure one workload; one that fails is a result with an "error"."""
    known = workloads(quick)
    try:
        if name not in known:
            return muscle(quick) if name == "B5" else start_up(quick)
        workload = known[name] if rounds is None else known[name].with_values(num_rounds=rounds)
        return federation(workload, measure_state if name == "B4" else measure_run)
    except (RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
        say(f"  {name} could not be measured: {error}")
        return {"title": name, "load": [load()], "error": str(error), "figures": {}}


def report(facts: dict[str, Any], found: dict[str, dict[str, Any]]) -> str:
    """Return table, legend, notes and goals as text."""
    notes = [f"{name}: {r['note']}" for name, r in found.items() if r.get("note")]
    if "B4" in found and "error" not in found["B4"]:
        notes.append(_state_note(found["B4"]["figures"]))
    loads = ", ".join(f"{name} {result['load'][0][0]:.1f}" for name, result in found.items())
    return "\n".join(
        [
            "", table(found), "", LEGEND, "", *notes,
            f"load before each workload, of {facts['cores']} cores: {loads}",
            f"machine: {facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB; "
            f"torch {facts['torch']}, flwr {facts['flwr']}, revision {facts['revision'][:12]}",
            "", *(goal.line() for goal in goals(found)),
        ]
    )  # fmt: skip


def _state_note(figures: dict[str, float]) -> str:
    parts = ", ".join(
        f"{name} {figures[f'state_{name}_s']:.3f}"
        for name in ("read", "write", "tidy")
        if f"state_{name}_s" in figures
    )
    return (
        f"B4: private state, s a client and message: {parts}; {figures['compared_s']:.3f} more "
        f"than with models in memory; server {figures['server_mb']:.0f} MB, "
        f"{figures['server_mb_in_memory']:.0f} MB without state"
    )


def main() -> int:
    """Measure, print the table and, if asked, write all as JSON; 1 if a workload failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, help="of every federation, at least 4")
    parser.add_argument("--quick", action="store_true", help="shrunken, to try the benchmark")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"{unknown[0]!r}: expected {', '.join(NAMES)}")
    if options.rounds is not None and options.rounds < 4:
        parser.error(f"--rounds = {options.rounds}: at least 4, the first two do not count")
    facts = machine()
    found: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        if name in (options.names or NAMES):
            found[name] = measure(name, options.quick, options.rounds)
            if options.json:  # after each, so that nothing is lost of what has been measured
                content = {
                    "machine": facts, "quick": options.quick, "command": sys.argv[1:],
                    "workloads": found,
                    "goals": [{**dataclasses.asdict(g), "met": g.met} for g in goals(found)],
                }  # fmt: skip
                options.json.write_text(json.dumps(content, indent=2) + "\n")
    print(report(facts, found))
    return 1 if any("error" in result for result in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
