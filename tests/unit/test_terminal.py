"""Commands whose output nobody reads any more go on all the same."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.terminal import outliving_readers

ROOT = Path(__file__).parents[2]


def test_a_run_goes_on_without_a_reader(tmp_path: Path) -> None:
    """`wildflower run ... | head -2` with a real pipe: complete records, and no complaint."""
    settings = f"num-rounds=2 subset=0.2 output-dir='{tmp_path}' run-name='run'"
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy.cli", "run", "--clients", "2", "-c", settings],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    read = [process.stdout.readline() for _ in range(2)]
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(300) == 0, errors
    assert "wildflower: run run in" in read[0]
    assert "Pipe" not in errors
    assert json.loads((tmp_path / "run" / "config.json").read_text())["status"] == "completed"
    assert (tmp_path / "run" / "report.html").is_file()
    assert len((tmp_path / "run" / "rounds.csv").read_text().splitlines()) == 1 + 2 + 1


def test_short_output_to_a_closed_pipe_is_no_failure() -> None:
    """`wildflower --help | true`: what is left in the buffer at the end is dropped as well."""
    for closed in ("stdout", "stderr"):
        code = (
            "import os, sys, runpy\nreading, writing = os.pipe()\nos.close(reading)\n"
            f"os.dup2(writing, sys.{closed}.fileno())\n"
            "from deploy.cli import main\n"
            "sys.exit(main(['check', 'nowhere']))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=300)
        assert done.returncode == 2


def test_other_faults_of_an_output_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(OSError, match="No space"), outliving_readers():
        print("text")
