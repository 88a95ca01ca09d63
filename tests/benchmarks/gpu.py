"""B1 on a machine with a GPU: in float32 and bfloat16, beside the bare loop, and against the CPU.

    python -m tests.benchmarks.gpu --json gpu.json
    python -m tests.benchmarks.gpu --share 1 4 8 16  # so many clients at a time on the GPU

Several clients share the GPU, each in a worker of its own (`client-resources-num-gpus`). The bare
loop runs in as many processes, before and after every run. Then two rounds are made on the CPU
from the same seed, and the metrics of float32 must agree with them within a tolerance: kernels of
a GPU add up in another order, and convolutions there use TF32 unless told otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from deploy.flower.text import Value
from tests.benchmarks.baseline import Baseline, measure_baseline
from tests.benchmarks.figures import run_figures
from tests.benchmarks.machine import load, machine
from tests.benchmarks.measured import Measured, measure_run
from tests.benchmarks.workloads import Workload, with_images, workloads

SHARE = 4
LOSS_TOLERANCE = 0.02
"""Largest relative gap of the mean training loss, GPU against CPU, in each compared round."""
ACCURACY_TOLERANCE = 0.03
"""Largest gap of the mean accuracy; 0.03 is 6 of 200 test images."""
COMPARED_ROUNDS = 2
"""Later rounds are not compared: training amplifies a gap of the last bit from step to step."""
COMPARED = {"loss": ("train", "loss"), "accuracy": ("post", "accuracy_head")}


class GpuMemory:
    """The most memory in use on the GPU while this is open, in MB, by nvidia-smi, and before."""

    def __init__(self) -> None:
        self.before = self.highest = gpu_megabytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=15)

    @property
    def used(self) -> float | None:
        """What came on top of what was in use before; None without nvidia-smi."""
        if self.before is None or self.highest is None:
            return None
        return self.highest - self.before

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            if (now := gpu_megabytes()) is not None:
                self.highest = max(self.highest or 0.0, now)


def gpu_megabytes() -> float | None:
    """Return the memory in use on the first GPU, or None where nvidia-smi does not tell."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    arguments = ["--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(
            [command, *arguments], text=True, capture_output=True, timeout=10, check=True
        )
        return float(done.stdout.split()[0]) * 1.048576
    except (subprocess.SubprocessError, ValueError, IndexError):
        return None


def means(rows: Iterable[Mapping[str, str]], phase: str, metric: str) -> dict[int, float]:
    """Return a metric's mean over clients by round, from the rows of metrics.csv."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if (row["phase"], row["metric"]) == (phase, metric) and row["client"] != "server":
            found.setdefault(int(row["round"]), []).append(float(row["value"]))
    return {number: statistics.fmean(values) for number, values in found.items()}


def gaps(device: Iterable[Any], cpu: Iterable[Any]) -> list[dict[str, Any]]:
    """Compare two runs' rows of metrics.csv round by round, in the rounds that both have.

    Raises
    ------
    ValueError
        If they have no round with both metrics in common.
    """
    device, cpu, found = list(device), list(cpu), []
    for name, (phase, metric) in COMPARED.items():
        one, other = means(device, phase, metric), means(cpu, phase, metric)
        common = [n for n in sorted(one.keys() & other.keys()) if n <= COMPARED_ROUNDS]
        if not common:
            raise ValueError(f"the runs have no {metric} of phase {phase!r} to be compared")
        for number in common:
            gap = abs(one[number] - other[number])
            limit = ACCURACY_TOLERANCE
            if name == "loss":
                gap, limit = gap / abs(other[number]), LOSS_TOLERANCE
            found.append(
                {
                    "round": number, "metric": name, "device": one[number], "cpu": other[number],
                    "gap": gap, "limit": limit, "agrees": gap <= limit,
                }
            )  # fmt: skip
    return found


def measure(
    workload: Workload, device: str, share: int, amp: str
) -> tuple[dict[str, Any], Measured]:
    """Measure bare loop, run and bare loop in one precision."""
    workload = workload.with_values(amp=amp, device=device)
    federation: dict[str, Value] = {}
    if device != "cpu":
        # A little less than an equal share, so that rounding never costs a worker.
        federation = {
            "client-resources-num-gpus": int(1e4 / share) / 1e4, "init-args-num-gpus": 1
        }  # fmt: skip
    loads = [load()]
    baselines: list[Baseline] = [measure_baseline(workload, share, device)]
    with GpuMemory() as memory:
        seen = measure_run(workload, share, federation=federation, keep_metrics=True)
    baselines.append(measure_baseline(workload, share, device))
    loads.append(load())
    figures = run_figures(seen, baselines)
    for name, value in (
        ("mb_a_client", None if memory.used is None else memory.used / seen.workers),
        ("baseline_torch_mb", baselines[-1].gpu_bytes / 1e6),
    ):
        if value is not None:
            figures[name] = value
    result = {
        "load": loads,
        "figures": figures,
        "measured": {k: v for k, v in dataclasses.asdict(seen).items() if k != "metrics"},
        "baselines": [dataclasses.asdict(baseline) for baseline in baselines],
    }
    say(
        f"{amp:>5}: round {figures['round_s']:.2f} s, bare loop {figures['baseline_s']:.2f} s, "
        f"ratio {figures['round_to_baseline']:.2f}, efficiency {figures['efficiency']:.2f}, "
        f"start-up {figures['start_up_s']:.0f} s, {share} clients at a time, "
        + (
            f"{figures['mb_a_client']:.0f} MB of the device each"
            if "mb_a_client" in figures
            else "memory of the device unknown"
        )
        + f", accuracy {seen.accuracy}"
    )
    return result, seen


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def refusal(device: str) -> str | None:
    """Return why the device cannot be measured, or None."""
    if device == "cpu" or (device.startswith("cuda") and torch.cuda.is_available()):
        return None
    return (
        f"device {device}: torch {torch.__version__} sees no CUDA device on this machine; nothing "
        "was measured (--device cpu tries the script without one)"
    )


def main() -> int:
    """Measure, compare and, if asked, write JSON; returns 1 if metrics disagree, 2 without GPU."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--share", type=int, nargs="+", default=[SHARE], metavar="N",
        help=f"clients at a time, one measurement each ({SHARE})",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="shrunken, to try the script")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if (reason := refusal(options.device)) is not None:
        say(reason)
        return 2
    if min(options.share) < 1:
        parser.error(f"--share {min(options.share)}: expected integers of at least 1")
    # Evaluated after training, so that both compared rounds have scores that training made.
    workload = with_images(workloads(options.quick)["B1"]).with_values(evaluate_when="post")
    facts = machine()
    facts["device"] = (
        torch.cuda.get_device_name(0) if options.device == "cuda" else facts["processor"]
    )
    say(f"{workload.title}, {workload.clients} clients on {facts['device']}")
    shares: dict[int, dict[str, Any]] = {}
    rows: list[dict[str, str]] = []
    for share in options.share:
        for amp in ("off", "bf16"):
            result, seen = measure(workload, options.device, share, amp)
            shares.setdefault(share, {})[amp] = result
            rows = rows or seen.metrics
    on_cpu = workload.with_values(device="cpu", num_rounds=4 if options.quick else 3)
    compared = gaps(rows, measure_run(on_cpu, 2, keep_metrics=True).metrics)
    for gap in compared:
        say(
            f"round {gap['round']}, {gap['metric']:8}: device {gap['device']:.4f}, CPU "
            f"{gap['cpu']:.4f}, gap {gap['gap']:.4f} of {gap['limit']}: "
            + ("agrees" if gap["agrees"] else "DISAGREES")
        )
    if options.json:
        content = {
            "machine": facts, "quick": options.quick, "command": sys.argv[1:],
            "shares": shares, "compared": compared,
        }  # fmt: skip
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0 if all(gap["agrees"] for gap in compared) else 1


if __name__ == "__main__":
    sys.exit(main())
