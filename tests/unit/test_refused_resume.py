"""A resume that is refused, for whatever reason, changes not one byte of the run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import main
from server_app.rounds.in_process import InProcessGrid
from tests.support import Outcome, run_federation

CLIENTS, ROUNDS = 3, 2
SETTINGS: dict[str, Any] = {"models": "cnn1, cnn2, cnn1", "num_rounds": ROUNDS, "method": "local"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A completed run of method `local`, and another one of other clients."""
    directory = tmp_path_factory.mktemp("finished")
    run_federation(directory, 2, run_name="other", **SETTINGS)
    return run_federation(directory, CLIENTS, **SETTINGS)


@pytest.fixture
def run(finished: Outcome, tmp_path: Path) -> Outcome:
    """A copy of it to resume."""
    shutil.copytree(finished.path.parent, tmp_path / "runs")
    return Outcome(tmp_path / "runs" / "run")


def files(directory: Path) -> dict[str, bytes]:
    """Return all that is below a directory, by path; the empty lock is no content."""
    found = {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*.*")}
    return {name: content for name, content in found.items() if name != "run.lock"}


def resume(run: Outcome, clients: int = CLIENTS, **settings: Any) -> None:
    nodes = settings.pop("nodes", None)
    grid = settings.pop("grid_class", InProcessGrid)
    run_federation(
        run.path.parent, clients, nodes=nodes, grid_class=grid, resume="run",
        **{**SETTINGS, "wait_timeout": 0.2, **settings},
    )  # fmt: skip


class Interrupted(InProcessGrid):
    """Ctrl-C while the clients register."""

    def push_messages(self, messages: Any) -> Any:
        raise KeyboardInterrupt


def truncate_checkpoints(run: Outcome) -> None:
    for path in (run.path / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-5])


def lose_a_round(run: Outcome) -> None:
    path = run.path / "rounds.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("1,")))


def untouched(run: Outcome) -> None:
    """Leave the run as it is."""


def node(client: int, clients: int, **more: Any) -> Mapping[str, Any]:
    return {"partition-id": client, "num-partitions": clients, **more}


REFUSALS: dict[str, tuple[dict[str, Any], Callable[[Outcome], None], str]] = {
    "settings": ({"alpha": 0.5}, untouched, "alpha: was 0.1, now 0.5"),
    "fewer rounds": ({"num_rounds": 1}, untouched, "num-rounds = 1: expected at least 2"),
    "two clients": ({"clients": 2}, untouched, "data_hash was"),
    "four clients": ({"clients": 4}, untouched, "data_hash was"),
    "too few": ({"min_clients": 4}, untouched, "of 4 clients"),
    "a model": ({"nodes": {1: node(1, 3, model="cnn3")}}, untouched, "model was cnn2"),
    "no data": (
        {"nodes": {0: node(0, 3, **{"data-dir": "/nowhere", "dataset": "imagefolder"})}},
        untouched, "nowhere",
    ),
    "local-run unlike": ({"local_run": "other"}, untouched, "other"),
    "local-run unknown": ({"local_run": "nobody"}, untouched, "nobody"),
    "checkpoints": ({}, truncate_checkpoints, "none of 2 checkpoints can be used"),
    "records": ({}, lose_a_round, "round 1 is not recorded"),
    "interrupted": ({"grid_class": Interrupted}, untouched, "^$"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refused_resume_changes_nothing(
    kind: str, run: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, damage, reason = REFUSALS[kind]
    damage(run)
    before = files(run.path)
    with pytest.raises(BaseException, match=reason):
        resume(run, **settings)
    assert files(run.path) == before
    assert main(["check", str(run.path)]) == 0
    assert "run: completed" in capsys.readouterr().out
    if kind == "fewer rounds":  # and, to see it once, it is of use to other runs as before
        name = {"run_name": "compared", "local_run": "run"}
        compared = run_federation(run.path.parent, CLIENTS, **{**SETTINGS, **name})
        assert compared.summary["delta"]["percent"] == 0


def test_one_damaged_checkpoint_stays_until_the_run_goes_on(run: Outcome) -> None:
    newest = run.path / "checkpoints" / "round-00002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-5])
    before = files(run.path)
    with pytest.raises(Exception, match="model was cnn2"):
        resume(run, nodes={1: node(1, 3, model="cnn3")})
    assert files(run.path) == before
    resume(run)
    assert newest.with_suffix(".damaged").is_file()
    assert newest.is_file()
    assert run.config["status"] == "completed"


@pytest.mark.parametrize("left", [0, 2_000, 9_000])
def test_a_full_disk_refuses_too(left: int, run: Outcome, tmp_path: Path) -> None:
    """Whichever of the files does not fit, all others stay as they were."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, timeout=30).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        shutil.copytree(run.path.parent, disk / "runs")
        moved = Outcome(disk / "runs" / "run")
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - left))
        before = files(moved.path)
        with pytest.raises(Exception, match="cannot be written"):
            resume(moved)
        assert files(moved.path) == before
        (disk / "ballast").unlink()
        resume(moved, num_rounds=3)
        assert moved.config["status"] == "completed"
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=30)
