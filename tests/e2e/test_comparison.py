"""A comparison through real `flwr run`s: interrupted, continued, and then nothing left to do.

The run that is interrupted after its second round goes on to the numbers of one process. It is the
app as it is shipped, with a user's folder of pictures and own models by file and module; first on
its path lies what a user may have: files and folders with the names of our packages.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from deploy.flower.processes import end_family, family
from tests.held_models import held_models
from tests.support import OWN_MODEL, Outcome, make_hostile, run_federation

REPOSITORY = Path(__file__).parents[2]
SECONDS = 400

RECORDS = "out/two-fedre-seed0/rounds.csv"
IN_ROUND_3 = f'any(len(p.read_text().splitlines()) > 2 for p in HERE.parent.glob("{RECORDS}"))'
"""Whether FedRE's run has recorded two rounds, below a header."""
MODELS = ("cnn5", "own_models:tiny", "nets:tiny", "held_models:held")


def start(path: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "deploy.compare", str(path)],
            cwd=REPOSITORY, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={
                **os.environ, "WILDFLOWER_TEST": str(path), "PYTHONPATH": str(path.parent / "path"),
            },
        )  # fmt: skip


def mark(path: Path) -> str:
    return f"WILDFLOWER_TEST={path}"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Name the comparison's file; nothing that it started outlives the test, however it ends."""
    yield tmp_path / "two.yaml"
    end_family(mark(tmp_path / "two.yaml"), set())


def left_behind(path: Path) -> set[str]:
    members = family(mark(path), set())
    return {f"{p}: {Path(f'/proc/{p.pid}/cmdline').read_bytes()!r}" for p in members}


def finished(run: Outcome) -> int:
    """Return how many rounds of a run are recorded."""
    return len(run.rows("rounds")) if (run.path / "rounds.csv").is_file() else 0


def in_one_process(directory: Path, config: dict[str, Any]) -> Outcome:
    """Repeat a run with its recorded settings, without Flower and Ray."""
    elsewhere = {"output-dir", "run-name", "resume", "local-run"}
    values = {key: value for key, value in config.items() if key not in elsewhere}
    keys = {key.replace(".", "__").replace("-", "_"): value for key, value in values.items()}
    return run_federation(directory, len(MODELS), **keys)


def write_pictures(root: Path) -> None:
    """Write a folder of images of three colours, one a class."""
    for part, count in (("train", 24), ("test", 8)):
        for number, name in enumerate(("ant", "bee", "cow")):
            (root / part / name).mkdir(parents=True)
            for k in range(count):
                image = Image.new("RGB", (32, 32), color=(80 * number, 10 * k, 90))
                image.save(root / part / name / f"{k}.png")


def write_user_files(root: Path) -> None:
    """Write what a user brings: pictures, own models in `code` and on the path, and traps."""
    write_pictures(root / "pictures")
    code, on_path = root / "code", root / "path"
    for folder in (code, on_path):
        folder.mkdir()
        make_hostile(folder)
    # The folder has a `data` as well, and a file `data.py` that an own model imports.
    (code / "data.py").write_text(OWN_MODEL)
    (code / "nets.py").write_text("from .data import tiny\nimport data\ndata.DATASETS\n")
    (code / "held_models.py").write_text(
        held_models(f'(HERE.parent / "hold").exists() and {IN_ROUND_3}')
    )
    (on_path / "own_models.py").write_text(OWN_MODEL)
    (root / "hold").touch()


def write_comparison(path: Path) -> None:
    content = {
        "name": "two",
        "output-dir": str(path.parent / "out"),
        "clients": len(MODELS),
        "methods": ["local", "fedre"],
        "seeds": [0],
        "target-accuracy": 0.01,
        "parallel-workers": 1,
        "settings": {
            "num-rounds": 3,
            "dataset": "imagefolder",
            "data-dir": str(path.parent / "pictures"),
            "partition": "iid",
            "subset": 1.0,
            "min-examples": 5,
            "models": ", ".join(f"{i}={model}" for i, model in enumerate(MODELS)),
            "code-dir": str(path.parent / "code"),
        },
    }
    path.write_text(yaml.safe_dump(content))


@pytest.mark.e2e
def test_an_interrupted_comparison_goes_on_and_then_skips_everything(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README, U44, U49, too: an image folder split over the clients, and own models."""
    log, hold = tmp_path / "log.txt", tmp_path / "hold"
    write_user_files(tmp_path)
    write_comparison(path)
    run = Outcome(tmp_path / "out" / "two-fedre-seed0")
    process = start(path, log)
    deadline = time.monotonic() + SECONDS
    try:
        while finished(run) < 2:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130, log.read_text()
    finally:
        process.kill()
    assert left_behind(path) == set()
    assert finished(run) == 2, f"{run.rows('failures')} {run.config} {log.read_text()}"
    hold.unlink()
    assert "1 of 2 runs complete" in (tmp_path / "out/two.html").read_text()

    process = start(path, log)
    assert process.wait(SECONDS) == 0, log.read_text()
    assert "2 runs, 1 already complete" in log.read_text()
    assert left_behind(path) == set()
    with (tmp_path / "out/two.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seeds_complete"] for row in rows] == ["1", "1"]
    assert float(rows[1]["uplink_per_round"]) == len(MODELS) * 512
    assert float(rows[1]["final"]) >= 0

    assert_as_in_one_process(run, tmp_path, monkeypatch)

    started = time.monotonic()
    assert start(path, log).wait(60) == 0
    assert "2 runs, 2 already complete" in log.read_text()
    assert "starts" not in log.read_text()
    assert time.monotonic() - started < 60


def assert_as_in_one_process(
    run: Outcome, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a run's files against those of the same clients without Flower and Ray."""
    (directory / "clean").mkdir()
    (directory / "clean" / "own_models.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(directory / "clean")
    here = in_one_process(directory / "here", run.config["config"])
    for name in ("metrics.csv", "traffic.csv", "clients.csv"):
        assert run.text(name) == here.text(name)
    clients = run.rows("clients")
    assert tuple(row["model"] for row in clients) == MODELS
    assert {row["raw_dim"] for row in clients} == {"500", "64"}
    assert sum(int(row["train_examples"]) for row in clients) > 50
    assert {row["workers"] for row in run.rows("rounds")} == {"1"}
    summary = run.summary
    assert summary["accuracy"] == here.summary["accuracy"]
    assert (summary["method"], summary["clients"]) == ("fedre", len(MODELS))
    assert summary["traffic"]["uplink_scalars_per_round"] == len(MODELS) * 512
    assert (run.path / "report.html").stat().st_size > 10_000
