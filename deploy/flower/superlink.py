"""A SuperLink of one's own: its start, and the end of all it started."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from deploy.flower.commands import (
    COMMAND_SECONDS,
    FlowerClient,
    FlowerError,
    flower_environment,
)
from deploy.flower.processes import (
    RUNS,
    answers,
    end_child,
    end_family,
    family,
    free_port,
    uninterrupted,
)
from deploy.flower.text import log_text

MARK = "WILDFLOWER_FLOWER_SIMULATION"
"""Environment variable that every process of one `FlowerSimulation` carries."""


class PrivateSuperLink(FlowerClient):
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
        home = (home or self._scratch / "home").expanduser().absolute()
        home.mkdir(parents=True, exist_ok=True)
        mark = secrets.token_hex(16)
        extra = {"RAY_TMPDIR": str(self._scratch), **(environment or {}), MARK: mark}
        super().__init__(home, flower_environment(home, extra))
        self._variable = f"{MARK}={mark}"
        self._superlink: subprocess.Popen[bytes] | None = None
        self._known: set[psutil.Process] = set()

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

    def processes(self) -> set[psutil.Process]:
        """Return all processes that live because of this SuperLink, itself included."""
        self._known = family(self._variable, self._known)
        return self._known

    def close(self) -> None:
        """End the SuperLink and everything it started, and remove temporary files."""
        with uninterrupted():
            self.processes()
            superlink, self._superlink = self._superlink, None
            end_family(self._variable, self._known, first=RUNS)
            if superlink is not None:
                end_child(superlink)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _start_superlink(self) -> None:
        port = free_port()
        self.connect(f"127.0.0.1:{port}")
        command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1"]
        log = self.home / "superlink.log"
        with log.open("wb") as file:
            self._superlink = self.spawn([*command, "--port", str(port)], file)
        deadline = time.monotonic() + COMMAND_SECONDS
        while not answers(f"http://127.0.0.1:{port}/health"):
            if self._superlink.poll() is not None or time.monotonic() >= deadline:
                raise FlowerError(
                    f"flower-superlink on port {port} does not answer (exit status "
                    f"{self._superlink.poll()}); the end of {log}: {log_text(log)[-2000:]}"
                )
            time.sleep(0.2)
