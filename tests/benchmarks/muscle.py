"""B5: FedMuscle's loss, forward and backward, in a process of its own for every M.

python -m tests.benchmarks.muscle 3
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.workloads import ROOT

USERS = (1, 2, 3, 4, 5)
ITEMS, WIDTH = 32, 256
LIMIT = 300.0
SECONDS = 2.0
"""How long one M is repeated for, at least five times."""


def measure_muscle(quick: bool) -> dict[str, dict[str, float]]:
    """Return milliseconds and MB above the imports, by M."""
    found = {}
    for users in USERS[: 3 if quick else None]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.muscle", str(users)],
            cwd=ROOT, text=True, capture_output=True, timeout=LIMIT, check=True,
        )  # fmt: skip
        found[str(users)] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(users: int) -> dict[str, float]:
    """Measure the loss of B = 32 items with `users` others, in this process, on one thread."""
    import torch
    import torch.nn.functional as F

    from strategies.common.losses import muscle_loss

    torch.set_num_threads(1)
    torch.manual_seed(0)
    anchor = F.normalize(torch.randn(ITEMS, WIDTH), dim=1).requires_grad_()
    others = F.normalize(torch.randn(users, ITEMS, WIDTH), dim=2)

    def step() -> float:
        started = time.perf_counter()
        muscle_loss(anchor, others).mean().backward()
        return time.perf_counter() - started

    muscle_loss(anchor[:2], others[:, :2]).mean().backward()  # what torch loads late
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _peak()
    seconds: list[float] = []
    deadline = time.perf_counter() + SECONDS
    step()
    while len(seconds) < 5 or time.perf_counter() < deadline:
        seconds.append(step())
    return {"ms": 1e3 * statistics.median(seconds), "mb": (_peak() - before) / 1e6}


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1]))))
