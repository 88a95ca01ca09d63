"""Shows that a change of the code left every number as it was: records runs, and compares them.

    python -m tests.unchanged record before/     # at the old revision
    python -m tests.unchanged compare before/    # at the new one; exit code 1 if anything differs

Every registered method in one process, and three runs through `flwr run` with Ray. Kept of each are
metrics.csv, traffic.csv and summary.json, without the summary's times.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from deploy.contract.runs import Candidate
from deploy.flower.simulation import FlowerSimulation
from strategies.base.method import method_names
from tests.support import SMALL

ROOT = Path(__file__).parents[1]
FILES = ("metrics.csv", "traffic.csv", "summary.json")
IN_PROCESS: dict[str, Any] = {
    "num_rounds": 3,
    "sample_fraction": 0.7,
    "subset": 0.12,
    "image_size": 16,
    "feature_dim": 32,
    "models": "cnn5, cnn4, resnet10-w4",
}
THROUGH_RAY: dict[str, dict[str, Any]] = {
    "fedre-pathological": {"method": "fedre", "partition": "pathological", "classes-per-client": 4},
    "fedin-sampled": {
        "method": "fedin",
        "sample-fraction": 0.5,
        "models": "resnet10-w4, resnet14-w4",
    },
    "fedmuscle-tasks": {
        "method": "fedmuscle",
        "tasks": "multilabel@scenes, classification@digits, classification@digits[0-4]",
        "models": "vit-tiny, seg-small, cnn4",
        "subset": 0.05,
    },
}
LIMIT = 600.0
"""Seconds that one run through Ray may take."""


def record(directory: Path) -> None:
    """Run everything and keep the files below `directory`, by kind of run and name."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch)
        os.environ["WILDFLOWER_CACHE"] = str(runs / "cache")
        for method in method_names():
            print(f"in process: {method}", flush=True)
            done = Candidate(method).run(runs / method, 3, **IN_PROCESS)
            _keep(done.path, directory / "in-process" / method)
        with FlowerSimulation(environment={"WILDFLOWER_CACHE": str(runs / "cache")}) as flower:
            for name, changed in THROUGH_RAY.items():
                print(f"through Ray: {name}", flush=True)
                values = {**SMALL, "output-dir": str(runs), "run-name": name, **changed}
                run = flower.run(ROOT, values, clients=3, workers=2, timeout=LIMIT)
                if not run.completed:
                    raise RuntimeError(f"{name} ended as {run.status}: {run.log[-3000:]}")
                _keep(runs / name, directory / "ray" / name)


def _keep(run: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        text = (run / name).read_text(encoding="utf-8")
        if name == "summary.json":
            text = json.dumps({k: v for k, v in json.loads(text).items() if k != "time"}, indent=2)
        (place / name).write_text(text, encoding="utf-8")


def differences(before: Path, after: Path) -> list[str]:
    """Return the files, relative to both directories, that are not in both or not equal."""
    names = {p.relative_to(d) for d in (before, after) for p in d.rglob("*") if p.is_file()}
    return [
        str(name) for name in sorted(names) if _content(before / name) != _content(after / name)
    ]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def main() -> int:
    """Record, or record again and compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.unchanged", description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("directory", type=Path, help="of the recorded files")
    options = parser.parse_args()
    if options.action == "record":
        record(options.directory)
        return 0
    if not any(options.directory.rglob("metrics.csv")):
        parser.error(f"{options.directory}: nothing was recorded there")
    with tempfile.TemporaryDirectory() as scratch:
        record(Path(scratch))
        changed = differences(options.directory, Path(scratch))
        compared = len(list(Path(scratch).rglob("*.*")))
    for name in changed:
        print(f"differs: {name}")
    print(f"{compared - len(changed)} of {compared} files are equal")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
