"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.workloads import ROOT

PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy", "safetensors")


def machine() -> dict[str, Any]:
    """Return processor, cores, memory, versions and the repository's revision."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        **{name: version(name) for name in PACKAGES},
        "revision": revision(),
    }


def processor(cpuinfo: str) -> str:
    """Return the first processor's name in the text of /proc/cpuinfo."""
    names = [
        line.split(":", 1)[1] for line in cpuinfo.splitlines() if line.startswith("model name")
    ]
    return names[0].strip() if names else platform.machine()


def revision() -> str:
    """Return git's name of the commit, with "-dirty" where files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=ROOT, text=True, capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def load() -> list[float]:
    """Return the machine's load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]
