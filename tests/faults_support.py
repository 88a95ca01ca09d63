"""A fleet for the tests of faults, and what they do with its runs."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.fleet.fleet_file import read_fleet
from deploy.fleet.local import LocalFleet
from deploy.fleet.specs import flower_client
from deploy.flower.commands import FlowerRun
from deploy.flower.processes import all_processes
from server_app.rounds.transport import LONGEST_POLL
from tests.held_models import held_models
from tests.support import SMALL, Outcome

LIMIT = 600.0
"""Seconds that anything may take, many times what it needs."""

CLIENTS = ("client-0", "client-1", "client-2")
NOT_HELD = (CLIENTS[0], CLIENTS[2])
STRANGER = "client-3"
"""The device whose key the SuperLink does not know."""

ARRIVED = "Sent successfully"
"""What a SuperNode logs when the SuperLink has an answer and its arrays."""

SETTINGS: dict[str, Any] = {
    **SMALL,
    "method": "fedre",
    "subset": 0.15,
    "models": "0=cnn5, 1=held_models:held, 2=resnet10-w4",
    "min-clients": 3,
    "evaluate-when": "post",  # saves the closing exchange
}

HOLD = "WILDFLOWER_TEST_HOLD"
"""The model `held_models:held` does not go on with its training while this file is there."""


TAKEN = 6 * LONGEST_POLL
"""Seconds after which the server has taken what has arrived, also on a busy machine."""


class Faults:
    """A fleet of three devices and a stranger, with TLS and keys, and the runs on it.

    Parameters
    ----------
    running : LocalFleet
        The fleet.
    hold : Path
        While there is a file, client 1 does not go on with its training.
    runs : Path
        The output directory of all runs.
    """

    def __init__(self, running: LocalFleet, hold: Path, runs: Path) -> None:
        self.running = running
        self.hold = hold
        self.runs = runs
        self._begun: tuple[int, list[int]] = (0, [])

    def everyone(self) -> None:
        """Start what an earlier test has ended, and wait for it."""
        for name in ("superlink", "superexec", *CLIENTS):
            self.running.start(name)
        assert self.running.wait_online(["superlink", *CLIENTS], LIMIT) == []

    def submit(self, name: str, **config: Any) -> str:
        """Start a run, or go on with the one of this name if there is one; return Flower's id."""
        keys = {key.replace("_", "-"): value for key, value in config.items()}
        kind = "resume" if (self.runs / name).is_dir() else "run-name"
        own: dict[str, Any] = {"output-dir": str(self.runs), "round-timeout": LIMIT, kind: name}
        self._begun = self.rounds(name), self._answers()
        return self.running.submit(SETTINGS | own | keys)

    def wait(self, run_id: str) -> FlowerRun:
        """Wait for the end of a run."""
        return self.running.wait(run_id, timeout=LIMIT)

    def without_fault(self, name: str, rounds: int) -> None:
        """Have a run that has so many rounds, unless it has as many already."""
        if self.rounds(name) < rounds:
            run = self.wait(self.submit(name, num_rounds=rounds))
            assert run.completed, run.log

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let client 1 not go on with its training inside the block."""
        self.hold.touch()
        try:
            yield
        finally:
            self.hold.unlink()

    def kill_server_app(self) -> None:
        """End the ServerApp with SIGKILL and wait until it is gone."""
        (pid,) = self.running.find("flwr-serverapp")
        (process,) = [p for p in all_processes() if p.pid == pid]
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: process not in all_processes(), "the end of the ServerApp")

    def stop(self, run_id: str) -> None:
        """Tell Flower that a run is over; the ServerApp, if it lives, ends."""
        flower_client(self.running.fleet).stop(run_id)
        self.wait_for_no_server_app()

    def wait_for_no_server_app(self) -> None:
        """Wait until no run is at work."""
        wait_until(lambda: not self.running.find("flwr-serverapp"), "the end of the ServerApp")

    def outcome(self, name: str) -> Outcome:
        """Return the records of a run."""
        return Outcome(self.runs / name)

    def rounds(self, name: str) -> int:
        """Return how many rounds of a run are recorded."""
        path = self.runs / name / "rounds.csv"
        return len(self.outcome(name).rows("rounds")) if path.is_file() else 0

    def states(self, client_id: int, name: str) -> Path:
        """Return where a client keeps its private states of a run."""
        root = self.running.fleet.files.of(f"client-{client_id}") / "state" / name
        return root / f"client-{client_id:05d}"

    def _answers(self) -> list[int]:
        """Return how many answers of the clients not held have arrived, all of their arrays."""
        logs = [Path(self.running.processes[name].log) for name in NOT_HELD]
        return [log.read_text().count(ARRIVED) for log in logs]

    def wait_in_run(self, run_id: str, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds while a run is under way."""
        asked = time.monotonic()

        def holds() -> bool:
            nonlocal asked
            if time.monotonic() > asked + 10.0:  # what never comes in a run that has failed
                asked = time.monotonic()
                status, details = flower_client(self.running.fleet).status(run_id)
                assert condition() or not status.startswith("finished"), (
                    f"{what}: {status} {details}"
                )
            return condition()

        wait_until(holds, what)

    def wait_for_record(self, name: str, number: int, run_id: str) -> None:
        """Wait until a round is recorded; the next one has just begun then."""
        what = f"round {number} of run {name}"
        self.wait_in_run(run_id, lambda: self.rounds(name) >= number, what)

    def wait_in_round(self, name: str, number: int, run_id: str) -> None:
        """Wait until clients 0 and 2 have trained in a round that the held client 1 delays.

        Their answers are with the server then: one that is on its way when the SuperLink ends is
        lost, as Flower deletes what it hands out, and recorded as a failure.
        """
        what = f"the answers to the training in round {number} of run {name}"
        before, answers = self._begun
        more = 1 + number - before  # one is that to the registration

        def arrived() -> bool:
            return all(n >= old + more for n, old in zip(self._answers(), answers, strict=True))

        self.wait_in_run(run_id, arrived, what)
        time.sleep(TAKEN)
        assert self.rounds(name) == number - 1


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds, and not for ever."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {LIMIT:g} s"
        time.sleep(0.1)


@contextlib.contextmanager
def faulty_fleet(directory: Path, cache: Path) -> Iterator[Faults]:
    """Start the fleet; all of it has ended when the block is left."""
    (directory / "own-data").mkdir()
    # The run names a model of the test's own, which a device imports only with its owner's consent.
    own = {"device": "cpu", "allow-custom-models": True}
    partitions = [{"client-id": i, "partition-id": i, **own} for i in range(len(CLIENTS))]
    stranger = {"client-id": len(CLIENTS), "data-dir": str(directory / "own-data")}
    path, hold = directory / "fleet.yaml", directory / "hold"
    content = {
        "name": "faults",
        "directory": str(directory / "fleet"),
        "server": {"port": 0},
        "restarts": {"first-pause": 5.0, "longest-pause": 20.0},  # spares the machine
        "num-partitions": len(CLIENTS),
        "devices": [*partitions, stranger],
    }
    path.write_text(yaml.safe_dump(content))
    environment = {
        "WILDFLOWER_CACHE": str(cache), HOLD: str(hold), "PYTHONPATH": str(modules(directory)),
    }  # fmt: skip
    fleet = read_fleet(path)
    with LocalFleet(fleet, unregistered=[len(CLIENTS)], environment=environment) as running:
        running.kill(STRANGER)  # it tries all the time, which costs others time
        yield Faults(running, hold, directory / "runs")


def modules(directory: Path) -> Path:
    """Return the directory from which `held_models` is imported."""
    path = directory / "modules"
    path.mkdir(exist_ok=True)
    (path / "held_models.py").write_text(held_models(f'Path(os.environ["{HOLD}"]).exists()'))
    return path
