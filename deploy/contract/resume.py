"""Checks of exact resume: a run that was ended, by itself or with SIGKILL, and one left alone."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import signal
import time
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from flwr.app import Message

from deploy.contract.rounds import same_rows
from deploy.contract.runs import TINY, Candidate, NotKept, Outcome, expect
from models.own_code import searching
from server_app.rounds.in_process import InProcessGrid
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.round_files import round_file, rounds_in
from strategies.base.state import read_beside

CLIENTS = 3
SETTINGS: dict[str, Any] = {
    **TINY,
    "sample_fraction": 0.7,  # two of three: a client that skips a round keeps its state
}
ROUNDS = 4
KILLED_IN = 3
"""The round in which a run is cut off; there are rounds before and after it."""
LIMIT = 120.0
"""Seconds a child may take to reach its last round, many times what it needs."""


@cache
def processes() -> ForkServerContext:
    """Start processes by forking one that has imported everything, instead of waiting for imports.

    That one has a single thread, never runs a client, and ends when this process does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def run_until_killed(directory: Path, tested: Candidate, announce: Connection) -> None:
    """Run a federation that, in round 3, asks to be killed while its second client is at work.

    The first client has saved its state by then, and the server knows nothing of it.
    """
    at_work = 0

    class Announcing(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            nonlocal at_work
            metadata = message.metadata
            at_work += (metadata.message_type, metadata.group_id) == ("train", str(KILLED_IN))
            if at_work != 2:
                return super()._answer(message)
            announce.send_bytes(b"at work")
            super()._answer(message)
            time.sleep(LIMIT)  # however late the signal comes, the round does not end before it
            raise SystemExit("this process was to be killed")

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "output.txt").open("w") as file, contextlib.redirect_stdout(file):
        try:
            tested.run(directory, CLIENTS, grid_class=Announcing, num_rounds=ROUNDS, **SETTINGS)
        except Exception as error:
            announce.send_bytes(f"{type(error).__name__}: {error}".encode())
            raise


def kill_in_its_round(directory: Path, tested: Candidate) -> Outcome:
    """Start the run in a process of its own and end it with SIGKILL in the middle of a round."""
    reader, writer = processes().Pipe(duplex=False)
    process = processes().Process(
        target=run_until_killed, args=(directory, tested, writer), daemon=True
    )
    told = b""
    try:
        process.start()
        writer.close()  # so that the child has the only one, and its end is noticed at once
        with contextlib.suppress(EOFError):
            told = reader.recv_bytes() if reader.poll(LIMIT) else b""
    finally:
        process.kill()
        process.join(30)
        reader.close()
    expect(
        told == b"at work",
        f"the process came to no second client in round {KILLED_IN}: "
        f"{told.decode() or 'it said nothing'}",
    )
    expect(process.exitcode == -signal.SIGKILL, f"the killed process ended with {process.exitcode}")
    killed = Outcome(directory / "run")
    expect(killed.config["status"] == "running", f"killed, it is {killed.config['status']}")
    return killed


def killed_and_resumed_equals_whole(tested: Candidate, directory: Path) -> None:
    """Kill a run in round 3 and resume it: it equals one left alone, bit for bit."""
    parts, settings = directory / "parts", {"num_rounds": ROUNDS, **SETTINGS}
    killed = kill_in_its_round(parts, tested)
    expect(not (killed.path / "summary.json").exists(), "killed, it has a summary.json")
    rounds = [row["round"] for row in killed.rows("rounds")]
    expect(rounds == ["1", "2"], f"killed in round {KILLED_IN}, it has rounds {rounds}")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        resumed = tested.run(parts, CLIENTS, resume="run", **settings)
    expect("resuming after round 2" in output.getvalue(), "it was not resumed after round 2")
    expect(resumed.config["status"] == "completed", f"resumed, it is {resumed.config['status']}")
    whole = tested.run(directory / "whole", CLIENTS, **settings)
    for name in ("metrics", "traffic"):
        same_rows(whole, resumed, name, "a run left alone and one resumed")
    accuracy = [run.summary["accuracy"] for run in (whole, resumed)]
    expect(accuracy[0] == accuracy[1], f"accuracy, alone and resumed: {accuracy}")


class _Stopped(Exception):  # noqa: N818 - not an error of the program
    """The run was to end here."""


def stop_in_round(number: int, directory: Path, tested: Candidate, **settings: Any) -> Outcome:
    """Start the run in this process and end it with an exception before a round's training."""

    class Stopping(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            if (message.metadata.message_type, message.metadata.group_id) == ("train", str(number)):
                raise _Stopped
            return super()._answer(message)

    try:
        tested.run(directory, CLIENTS, grid_class=Stopping, **settings)
    except _Stopped:
        return Outcome(directory / "run")
    raise NotKept(f"the run had no training in round {number}")


def stop_in_its_round(directory: Path, tested: Candidate) -> Outcome:
    """Do in this process what `kill_in_its_round` does with another: cheaper, and less."""
    return stop_in_round(KILLED_IN, directory, tested, num_rounds=ROUNDS, **SETTINGS)


def optimizer_is_kept(tested: Candidate, directory: Path, *, extended: bool = False) -> None:
    """With keep-optimizer, a run stopped in round 3 and resumed equals one of three rounds.

    With `extended`, the first part is a whole run of two rounds, to which one is added.
    """
    settings = {**SETTINGS, "public_size": 32, "keep_optimizer": True, "num_rounds": 3}
    settings |= moving_optimizer(tested)
    whole = tested.run(directory / "whole", CLIENTS, **settings)
    if extended:
        tested.run(directory / "parts", CLIENTS, **{**settings, "num_rounds": 2})
    else:
        stop_in_round(3, directory / "parts", tested, **settings)
    parts = tested.run(directory / "parts", CLIENTS, resume="run", **settings)
    trained = [run.metrics(phase="train") for run in (whole, parts)]
    for left, right in zip(*trained, strict=False):
        expect(left == right, f"a run left alone and one resumed differ: {left} and {right}")
    expect(len(trained[0]) == len(trained[1]), "one of the runs trained more often")
    for client in (whole.path / "clients").iterdir():
        newest = round_file(client, rounds_in(client)[-1])
        expect(read_beside(newest), f"{client.name}: no optimizer was kept")


def moving_optimizer(tested: Candidate) -> dict[str, Any]:
    """Return settings of an optimizer with something to keep, which the method accepts."""
    usual = tested.method.training.optimizer
    first: dict[str, Any] = {"momentum": 0.9} if usual == "sgd" else {}
    adam = {"optimizer": "adam", "lr": 1e-3}
    keys = {"method": tested.name, "keep-optimizer": True}
    try:
        with searching(str(tested.config.get("code_dir", ""))):
            parse_run_config({**keys, **first})
    except ConfigError:  # such as FedNova, whose normalisation knows of one round's momentum only
        return adam
    return first
