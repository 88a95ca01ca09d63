"""Flower's own commands, run against one SuperLink: submitting, following and ending runs."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy.flower.processes import end_child, executable
from deploy.flower.text import LineReader, Value, log_text, toml_lines, without_colours

CONNECTION = "private"
"""Name of the SuperLink connection in the client's config.toml."""

COMMAND_SECONDS = 120.0
"""How long the SuperLink may take to answer after its start, and one Flower command to end."""


class FlowerError(RuntimeError):
    """A Flower process did not start, or a Flower command failed."""


@dataclasses.dataclass(frozen=True)
class FlowerRun:
    """How a run ended.

    Attributes
    ----------
    run_id : str
        Flower's number of the run.
    status : str
        As `flwr ls` names it: "finished:completed", "finished:failed" or "finished:stopped".
    details : str
        What Flower says about the status, often nothing.
    log : str
        The run's log, without colours.
    """

    run_id: str
    status: str
    details: str
    log: str

    @property
    def completed(self) -> bool:
        """Whether Flower calls the run completed."""
        return self.status.startswith("finished:completed")


def flower_environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Flower process: quiet, offline, with its own FLWR_HOME.

    Parameters
    ----------
    home : Path
        FLWR_HOME: configuration, logs and unpacked apps.
    extra : Mapping of str to str
        Variables to add.
    """
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        **extra,
        "FLWR_HOME": str(home),
        # Flower's processes look for their helpers on the path.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


class FlowerClient:
    """Runs `flwr` with a FLWR_HOME whose config.toml knows one SuperLink.

    Parameters
    ----------
    home : Path
        FLWR_HOME; run-configs and logs of runs go there as well.
    environment : Mapping of str to str
        As `flower_environment` returns it.
    """

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.environment = dict(environment)

    def connect(self, address: str, root_certificates: Path | None = None) -> None:
        """Write config.toml: where the SuperLink is, and whom to trust; None is without TLS."""
        trust = (
            "insecure = true"
            if root_certificates is None
            else f"root-certificates = {json.dumps(str(root_certificates))}"
        )
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n',
            encoding="utf-8",
        )

    def submit(
        self, app: Path, config: Mapping[str, Value], federation: Mapping[str, Value] | None = None
    ) -> str:
        """Submit a run and return its id.

        Parameters
        ----------
        app : Path
            Directory of the Flower app, with its pyproject.toml.
        config : Mapping
            Run-config keys to override.
        federation : Mapping, optional
            `--federation-config` keys, of use in simulation only.

        Raises
        ------
        FlowerError
            With Flower's own words, for example for an unknown run-config key.
        """
        arguments = ["run", str(app.absolute()), CONNECTION, "--format", "json"]
        if federation:
            text = toml_lines(federation).replace("\n", " ").strip()
            arguments += ["--federation-config", text]
        path = self.home / f"run-config-{secrets.token_hex(4)}.toml"
        path.write_text(toml_lines(config), encoding="utf-8")
        if config:
            arguments += ["--run-config", str(path)]
        try:
            return str(self.flwr_json(*arguments)["run-id"])
        finally:
            path.unlink(missing_ok=True)

    def wait(
        self,
        run_id: str,
        *,
        timeout: float,
        on_line: Callable[[str], None] | None = None,
        patience: float = 0.0,
        may_return: Callable[[], bool] = lambda: True,
    ) -> FlowerRun:
        """Wait for the end of a run; a run that is not over in time is stopped.

        Parameters
        ----------
        run_id : str
            From `submit`.
        timeout : float
            Seconds to wait.
        on_line : callable, optional
            Called with every line of the log about when it is written.
        patience : float
            Seconds for which the SuperLink may be away, for example while it is started again.
        may_return : callable, optional
            Whether a SuperLink that is away may come back at all.

        Raises
        ------
        TimeoutError
            If the run is not over after `timeout` seconds.
        FlowerError
            If the SuperLink is gone.
        """
        deadline = time.monotonic() + timeout
        path = self.home / f"run-{run_id}.log"
        lines = LineReader(path, on_line)
        while True:
            self._follow(run_id, lines, deadline)
            status = self._patient_status(run_id, patience, may_return)
            if status[0].startswith("finished"):
                return FlowerRun(run_id, *status, log_text(path))
            if time.monotonic() >= deadline:
                self.stop(run_id)
                raise TimeoutError(
                    f"run {run_id}: {status[0]} after {timeout:g} s, so it was stopped; the end "
                    f"of its log: {log_text(path)[-2000:]}"
                )
            time.sleep(1.0)

    def status(self, run_id: str) -> tuple[str, str]:
        """Return a run's status and its details."""
        answer = self.flwr_json("ls", CONNECTION, "--run-id", run_id, "--format", "json")
        run = answer["runs"][0]
        return str(run["status"]), str(run.get("status-details") or "").replace("N/A", "")

    def stop(self, run_id: str) -> None:
        """Stop a run; one that is over already is left alone."""
        self.flwr("stop", run_id, CONNECTION)

    def flwr(self, *arguments: str) -> tuple[int, str]:
        """Run a Flower command; return its exit status and what it printed."""
        with tempfile.TemporaryFile() as output:
            process = self.spawn(["flwr", *arguments], output)
            try:
                process.wait(COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                raise FlowerError(
                    f"flwr {arguments[0]} did not end within {COMMAND_SECONDS:g} s"
                ) from None
            finally:
                end_child(process)
            output.seek(0)
            return process.returncode, without_colours(output.read().decode(errors="replace"))

    def flwr_json(self, *arguments: str) -> dict[str, Any]:
        """Run a Flower command that answers in JSON; raise `FlowerError` if it failed."""
        code, text = self.flwr(*arguments)
        try:
            answer: dict[str, Any] = json.loads(text[text.index("{") :])
        except ValueError:
            answer = {}
        if code != 0 or not answer.get("success"):
            reason = answer.get("error-message") or text.strip()
            raise FlowerError(f"flwr {arguments[0]} failed: {reason}")
        return answer

    def spawn(
        self, command: list[str], output: Any, errors: int = subprocess.STDOUT
    ) -> subprocess.Popen[bytes]:
        """Start a Flower command; its errors go with its output unless told otherwise.

        In a session of its own, so that Ctrl-C in the terminal reaches this process alone, which
        then ends the others in order.
        """
        return subprocess.Popen(
            [executable(command[0]), *command[1:]],
            stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            cwd=self.home, env=self.environment, start_new_session=True,
        )  # fmt: skip

    def _follow(self, run_id: str, lines: LineReader, deadline: float) -> None:
        """Copy the log of a run to a file until the run ends or the deadline comes."""
        with lines.path.open("wb") as file:
            # One streaming command costs next to nothing; each `flwr ls` costs two seconds. Its
            # output is the log from the beginning, so that a second one can go on in `lines`.
            command = ["flwr", "log", run_id, CONNECTION, "--stream"]
            stream = self.spawn(command, file, subprocess.DEVNULL)
            try:
                while stream.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.2)
                    lines.pass_on()
            finally:
                end_child(stream)
        lines.pass_on()

    def _patient_status(
        self, run_id: str, patience: float, may_return: Callable[[], bool]
    ) -> tuple[str, str]:
        limit = time.monotonic() + patience
        while True:
            try:
                return self.status(run_id)
            except FlowerError:
                if time.monotonic() >= limit or not may_return():
                    raise
            time.sleep(1.0)
