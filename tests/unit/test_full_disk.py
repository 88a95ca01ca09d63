"""A disk that fills up in the middle of a run: said by name, and nothing is lost.

The disks are real file systems of a few megabytes in memory, so these tests need the right to mount
one, as root has it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import main
from server_app.rounds.exchange import RunError
from strategies.base.files import NotWrittenError
from strategies.base.options import ConfigError
from tests.support import Outcome, run_federation
from tests.unit.test_interrupts import Stopped

CLIENTS, ROUNDS = 3, 3

Nodes = Mapping[int, Mapping[str, Any]] | None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, timeout=30).returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=30)


@pytest.fixture
def whole(tmp_path: Path) -> Outcome:
    """The same run on a disk with room."""
    return run_federation(tmp_path / "whole", CLIENTS, num_rounds=ROUNDS)


def fill(disk: Path, left: int) -> None:
    """Take all room but `left` bytes."""
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - left))


def filling(disk: Path, left: int) -> type[Stopped]:
    """Return a Grid with which the disk is full, but for `left` bytes, from round 3 on."""

    class Filling(Stopped):
        def stop(self) -> None:
            if not (disk / "ballast").exists():
                fill(disk, left)

    return Filling


def assert_goes_on(disk: Path, whole: Outcome, nodes: Nodes = None) -> None:
    """Check that the run, with room again, leaves the same records as one without any fault."""
    (disk / "ballast").unlink()
    resumed = run_federation(disk / "runs", CLIENTS, nodes=nodes, num_rounds=ROUNDS, resume="run")
    assert resumed.config["status"] == "completed"
    for name in ("metrics.csv", "traffic.csv"):
        assert resumed.text(name) == whole.text(name)
    left = [path.name for path in resumed.path.rglob("*") if path.name.endswith(".partial")]
    assert left == []


def test_no_room_for_a_private_state(disk: Path, whole: Outcome) -> None:
    """The client names file and room; the server, whose files are small, writes everything."""
    with pytest.raises(RunError, match=r"client \d.*round-00003.safetensors: cannot be written"):
        run_federation(
            disk / "runs", CLIENTS, num_rounds=ROUNDS,
            grid_class=filling(disk, 700_000), report=True,
        )  # fmt: skip
    left = Outcome(disk / "runs" / "run")
    assert left.config["status"] == "failed"
    assert re.search(r"where 0\.\d MB are free .*make room there", left.config["reason"])
    assert [row["client"] for row in left.rows("failures")] == ["0", "1", "2"]
    assert "cannot be written" in left.text("report.html")
    assert_goes_on(disk, whole)


def test_no_room_for_the_servers_files(
    tmp_path: Path, disk: Path, whole: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even the status can be written; what there is says that the run can go on.

    The rows of round 3 may still fit into the last page of their files: they are cut back.
    """
    states = {"num-partitions": CLIENTS, "state-dir": str(tmp_path / "states")}
    nodes = {i: {"partition-id": i, **states} for i in range(CLIENTS)}
    with pytest.raises(NotWrittenError, match=r"checkpoints/.*: cannot be written, where 0.0 MB"):
        run_federation(
            disk / "runs", CLIENTS, num_rounds=ROUNDS, nodes=nodes,
            grid_class=filling(disk, 0),
        )  # fmt: skip
    printed = capsys.readouterr().out
    assert "the run failed: NotWrittenError: " in printed
    assert "warning: " in printed.split("the run failed")[1]
    assert main(["check", str(disk / "runs" / "run")]) == 1
    assert capsys.readouterr().out.endswith("go on with resume='run'\n")
    assert_goes_on(disk, whole, nodes)


def test_no_room_for_a_run_at_all(disk: Path) -> None:
    fill(disk, 0)
    with pytest.raises(ConfigError, match=r"^output-dir: .*config.json: cannot be written"):
        run_federation(disk / "runs", CLIENTS)
