"""A SuperLink of one's own: its start, Flower's commands on it, and the end of all it started."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from server_app.flower.processes import (
    Process,
    answers,
    end_child,
    end_family,
    executable,
    family,
    free_port,
    uninterrupted,
)
from server_app.flower.text import log_text, without_colours

CONNECTION = "private"
"""Name of the SuperLink connection in the private config.toml."""

MARK = "WILDFLOWER_FLOWER_SIMULATION"
"""Environment variable that every process of one `FlowerSimulation` carries."""

COMMAND_SECONDS = 120.0
"""How long the SuperLink may take to answer after its start, and one Flower command to end."""


class FlowerError(RuntimeError):
    """A Flower process did not start, or a Flower command failed."""


class PrivateSuperLink:
    """An own `flower-superlink --simulation` on a free local port, as a context manager.

    Parameters
    ----------
    home : Path, optional
        FLWR_HOME: configuration, logs and unpacked apps. A temporary directory, removed at the
        end, unless given.
    environment : Mapping of str to str, optional
        Variables to add for the SuperLink and all that it starts.

    Attributes
    ----------
    home : Path
        FLWR_HOME; `superlink.log` is in it.
    """

    def __init__(
        self, home: Path | None = None, *, environment: Mapping[str, str] | None = None
    ) -> None:
        # Short names under /tmp, because Ray's sockets allow paths of about 100 bytes only.
        self._scratch = Path(tempfile.mkdtemp(prefix="wf-"))
        self.home = (home or self._scratch / "home").expanduser().absolute()
        self.home.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "NO_COLOR": "1",
            "COLUMNS": "200",
            "RAY_TMPDIR": str(self._scratch),
            **(environment or {}),
            "FLWR_HOME": str(self.home),
            MARK: secrets.token_hex(16),
            # The SuperLink looks for its helpers on the path.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._variable = f"{MARK}={self.environment[MARK]}"
        self._superlink: subprocess.Popen[bytes] | None = None
        self._known: set[Process] = set()

    def __enter__(self) -> Self:
        try:
            self._start_superlink()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The SuperLink's process id."""
        if self._superlink is None:
            raise FlowerError("no SuperLink runs; use it in a with statement")
        return self._superlink.pid

    @property
    def alive(self) -> bool:
        """Whether the SuperLink runs."""
        return self._superlink is not None and self._superlink.poll() is None

    def processes(self) -> set[Process]:
        """Return all processes that live because of this SuperLink, itself included."""
        self._known = family(self._variable, self._known)
        return self._known

    def close(self) -> None:
        """End the SuperLink and everything it started, and remove temporary files."""
        with uninterrupted():
            self.processes()
            superlink, self._superlink = self._superlink, None
            if superlink is not None:
                end_child(superlink, seconds=5.0)
            end_family(self._variable, self._known)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _start_superlink(self) -> None:
        port = free_port()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1"]
        log = self.home / "superlink.log"
        with log.open("wb") as file:
            self._superlink = self._spawn([*command, "--port", str(port)], file)
        deadline = time.monotonic() + COMMAND_SECONDS
        while not answers(f"http://127.0.0.1:{port}/health"):
            if self._superlink.poll() is not None or time.monotonic() >= deadline:
                raise FlowerError(
                    f"flower-superlink on port {port} does not answer (exit status "
                    f"{self._superlink.poll()}); the end of {log}: {log_text(log)[-2000:]}"
                )
            time.sleep(0.2)

    def _spawn(self, command: list[str], output: Any) -> subprocess.Popen[bytes]:
        # In a session of its own, so that Ctrl-C in the terminal reaches this process alone,
        # which then ends the others in order.
        return subprocess.Popen(
            [executable(command[0]), *command[1:]],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            cwd=self.home, env=self.environment, start_new_session=True,
        )  # fmt: skip

    def _flwr(self, *arguments: str) -> tuple[int, str]:
        """Run a Flower command; return its exit status and what it printed."""
        with tempfile.TemporaryFile() as output:
            process = self._spawn(["flwr", *arguments], output)
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

    def _flwr_json(self, *arguments: str) -> dict[str, Any]:
        code, text = self._flwr(*arguments)
        try:
            answer: dict[str, Any] = json.loads(text[text.index("{") :])
        except ValueError:
            answer = {}
        if code != 0 or not answer.get("success"):
            reason = answer.get("error-message") or text.strip()
            raise FlowerError(f"flwr {arguments[0]} failed: {reason}")
        return answer
