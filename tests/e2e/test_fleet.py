"""A fleet of real processes: up, a run, Ctrl-C, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.cli import main
from deploy.fleet.app_guard import app_hash
from deploy.fleet.fleet_file import read_fleet
from deploy.fleet.specs import fleet_mark
from deploy.fleet.status import read_state
from deploy.fleet.supervisor import ACCEPTED
from deploy.flower.commands import flower_environment
from deploy.flower.processes import end_family, executable, family, free_port
from tests.e2e.conftest import LIMIT, ROOT
from tests.support import OWN_MODEL, SMALL, Outcome, make_hostile

pytestmark = pytest.mark.e2e

ENDS_WITHIN = 30.0


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A fleet of two unlike devices, one with an own model; what a failed test leaves is ended."""
    path = tmp_path / "fleet.yaml"
    (tmp_path / "code").mkdir()
    make_hostile(tmp_path / "code")
    (tmp_path / "code" / "data.py").write_text(OWN_MODEL)
    (tmp_path / "apps").write_text(f"{app_hash(ROOT)}  # this very version\n")
    content = {
        "name": "pair",
        "directory": str(tmp_path / "pair"),
        "server": {"port": 0},
        "devices": [
            {
                "client-id": 0, "model": "cnn5", "device": "cpu", "partition-id": 0,
                "allowed-apps": str(tmp_path / "apps"),
            },
            {
                "client-id": 1, "model": "data:tiny", "device": "cpu", "partition-id": 1,
                "code-dir": str(tmp_path / "code"),
            },
        ],
        "settings": {
            **{key: SMALL[key] for key in ("dataset", "subset", "min-examples")},
            "output-dir": str(tmp_path / "runs"), "round-timeout": LIMIT, "num-rounds": 1,
        },
        # Evaluating after training saves one exchange.
        "presets": {
            "fedre": {
                "method": "fedre", "run-name": "one", "evaluate-when": "post",
                "privacy.clip-norm": 1.0, "privacy.noise-multiplier": 4.0,
            }
        },
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    yield path
    end_family(fleet_mark(tmp_path / "pair"), set())


def fleet(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start a sub-command of `wildflower fleet` as a user would."""
    return subprocess.Popen(
        [sys.executable, "-m", "deploy.cli", "fleet", *map(str, arguments)],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the only line that a wrong call prints."""
    capsys.readouterr()
    assert main(["fleet", *map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1), printed
    return printed.err


def wait_until_up(up: subprocess.Popen[str]) -> str:
    """Return what `fleet up` prints until all is up."""
    assert up.stdout is not None
    lines = []
    for line in up.stdout:
        lines.append(line)
        if line.startswith("next: "):
            return "".join(lines)
    raise AssertionError("".join(lines))


@contextlib.contextmanager
def impostor(file: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Add device 7 to the running fleet, and run its SuperNode as one that says it is client 0."""
    content = yaml.safe_load(file.read_text())
    content["devices"].append({"client-id": 7, "model": "cnn5", "partition-id": 2})
    file.write_text(yaml.safe_dump(content))
    added = fleet("add", file, 7)
    assert added.wait(LIMIT) == 0, added.communicate()
    running = read_state(read_fleet(file)).fleet
    home, log = tmp_path / "seventh", tmp_path / "seventh.log"
    command = [
        "flower-supernode", "--superlink", running.server.local_endpoint,
        "--root-certificates", str(running.files.ca), "--port", str(free_port()),
        "--auth-supernode-private-key", str(running.files.key(running.device(7))),
        "--node-config", 'client-id=0 partition-id=0 num-partitions=2 model="cnn5"',
    ]  # fmt: skip
    mark, _, value = fleet_mark(running.directory).partition("=")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [executable(command[0]), *command[1:]], cwd=tmp_path, stdout=output,
            stderr=subprocess.STDOUT, env=flower_environment(home, {mark: f"{value}-seventh"}),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT
        while ACCEPTED not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield process
    finally:
        end_family(f"{mark}={value}-seventh", set())
        process.wait(10)


def test_up_run_and_ctrl_c(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TLS and keys, three unlike processes, one round with noise; Ctrl-C ends all within 15 s.

    First on the path of all its processes are files with the names of our packages.
    """
    mark = fleet_mark(tmp_path / "pair")
    up = fleet("up", file, env={**os.environ, "PYTHONPATH": str(tmp_path / "code")})
    try:
        table = wait_until_up(up)
        for name in ("superlink", "superexec", "client-0", "client-1"):
            assert f"  {name} " in table
        assert table.count("online") == 3
        with impostor(file, tmp_path) as seventh:
            run = fleet("run", file, "-c", "min-clients=2")
            text, _ = run.communicate(timeout=LIMIT)
            assert run.returncode == 0, text
            assert "client 7: says that it is client 0, but has the key" in text
            revoked = fleet("revoke", file, 7)
            assert revoked.wait(LIMIT) == 0, revoked.communicate()
            seventh.wait(ENDS_WITHIN)  # of itself, at the SuperLink's next word
        assert "round 1/1  2 of 2 clients" in text
        assert "finished:completed" in text
        assert "runs already" in refusal(capsys, "up", file)
        state = json.loads((tmp_path / "pair" / "state.json").read_text())
        pids = {process["pid"] for process in state["processes"]}
        # TLS and keys are on: every process was told to use them.
        for pid in pids:
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            assert "--insecure" not in command
            assert {"--root-certificates", "--ssl-ca-certfile"} & set(command)
        assert len(family(mark, set())) >= 4
        begin = time.monotonic()
        up.send_signal(signal.SIGINT)
        text, _ = up.communicate(timeout=LIMIT)
        assert time.monotonic() - begin < ENDS_WITHIN
        assert up.returncode == 0, text
        assert "all its processes have ended" in text
    finally:
        up.kill()
        up.wait()
    assert family(mark, set()) == set()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    outcome = Outcome(tmp_path / "runs" / "one")
    assert [row["model"] for row in outcome.rows("clients")] == ["cnn5", "data:tiny"]
    failures = outcome.rows("failures")  # it is asked again in a later round
    assert {(row["client"], row["kind"]) for row in failures} == {("", "registration")}
    told = {(row["client"], row["noise_from"]) for row in outcome.rows("privacy")}
    assert told == {("0", "operating system"), ("1", "operating system")}
    privacy = outcome.summary["privacy"]
    # One Gaussian mechanism of multiplier 4 / 2, by dp-accounting.
    assert (privacy["messages_of_a_client"], privacy["epsilon"]) == (
        1,
        pytest.approx(1.9931, abs=1e-4),
    )
    states = sorted((tmp_path / "pair" / "processes").glob("client-*/state/one/*"))
    assert len(states) == 2
    secret = [path for path in (tmp_path / "pair").rglob("*") if b"PRIVATE KEY" in content(path)]
    assert sorted(path.name for path in secret) == ["ca.key", "client-0", "client-1", "server.key"]


def content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_nothing_outlives_a_killed_parent(file: Path, tmp_path: Path) -> None:
    """kill -9 of `fleet up` while it starts: its processes end all the same."""
    mark = fleet_mark(tmp_path / "pair")
    up = fleet("up", file)
    deadline = time.monotonic() + LIMIT
    while not family(mark, set()):
        assert up.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    up.kill()
    up.communicate()
    deadline = time.monotonic() + ENDS_WITHIN
    while family(mark, set()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_wrong_call_is_one_line(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "missing.yaml: cannot be read" in refusal(capsys, "up", tmp_path / "missing.yaml")
    assert "does not run; `wildflower fleet up" in refusal(capsys, "run", file)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(file.read_text().replace("port: 0", f"port: {port}"))
        text = refusal(capsys, "up", file)
    assert f"{file}: server.port = {port}: cannot listen on 127.0.0.1" in text
    assert read_fleet(file).server.port == port
    file.write_text(file.read_text().replace("client-id: 1", "client-id: 0"))
    assert f"{file}: devices[1].client-id = 0: expected" in refusal(capsys, "up", file)
