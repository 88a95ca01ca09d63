"""A private local Flower: one simulating SuperLink, `flwr run`s on it, and nothing left behind.

    with FlowerSimulation() as flower:
        run = flower.run(app, {"method": "fedre"}, clients=10, timeout=600)
        print(run.status, run.log)

Every process started here carries a mark in its environment, by which `close` finds them all,
Ray's included, even those whose parent is gone. Only the standard library is used.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from server_app.flower.processes import end_child
from server_app.flower.superlink import CONNECTION, FlowerError, PrivateSuperLink
from server_app.flower.text import LineReader, Value, log_text, toml_lines

__all__ = ["FlowerError", "FlowerRun", "FlowerSimulation"]


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


class FlowerSimulation(PrivateSuperLink):
    """An own `flower-superlink --simulation` on a free local port, as a context manager.

    Parameters and attributes are those of `PrivateSuperLink`; of use are `pid`, `home` and
    `processes()`.
    """

    def run(
        self,
        app: Path,
        config: Mapping[str, Value],
        *,
        clients: int,
        timeout: float,
        workers: int | None = None,
        federation: Mapping[str, Value] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> FlowerRun:
        """Start a run and wait for its end; parameters as in `start` and `wait`."""
        run_id = self.start(app, config, clients=clients, workers=workers, federation=federation)
        return self.wait(run_id, timeout=timeout, on_line=on_line)

    def start(
        self,
        app: Path,
        config: Mapping[str, Value],
        *,
        clients: int,
        workers: int | None = None,
        federation: Mapping[str, Value] | None = None,
    ) -> str:
        """Submit a run and return its id.

        Parameters
        ----------
        app : Path
            Directory of the Flower app, with its pyproject.toml.
        config : Mapping
            Run-config keys to override.
        clients : int
            How many simulated clients there are.
        workers : int, optional
            How many processes Ray runs clients in; one per core unless given.
        federation : Mapping, optional
            Further `--federation-config` keys, for example `client-resources-num-gpus`.

        Raises
        ------
        FlowerError
            With Flower's own words, for example for an unknown run-config key.
        """
        resources: dict[str, Value] = {
            "num-supernodes": clients, "client-resources-num-cpus": 1, **(federation or {})
        }  # fmt: skip
        if workers is not None:
            resources["init-args-num-cpus"] = workers
        return self._submit(app, config, resources)

    def wait(
        self, run_id: str, *, timeout: float, on_line: Callable[[str], None] | None = None
    ) -> FlowerRun:
        """Wait for the end of a run; a run that is not over in time is stopped.

        Parameters
        ----------
        run_id : str
            From `start`.
        timeout : float
            Seconds to wait.
        on_line : callable, optional
            Called with every line of the log about when it is written.

        Raises
        ------
        TimeoutError
            If the run is not over after `timeout` seconds.
        FlowerError
            If the SuperLink is gone.
        """
        deadline = time.monotonic() + timeout
        path = self.home / f"run-{run_id}.log"
        self._follow(run_id, path, deadline, on_line)
        while not (status := self.status(run_id))[0].startswith("finished"):
            if time.monotonic() >= deadline:
                self.stop(run_id)
                raise TimeoutError(
                    f"run {run_id}: {status[0]} after {timeout:g} s, so it was stopped; the end "
                    f"of its log: {log_text(path)[-2000:]}"
                )
            time.sleep(1.0)
        return FlowerRun(run_id, *status, log_text(path))

    def status(self, run_id: str) -> tuple[str, str]:
        """Return a run's status and its details."""
        answer = self._flwr_json("ls", CONNECTION, "--run-id", run_id, "--format", "json")
        run = answer["runs"][0]
        return str(run["status"]), str(run.get("status-details") or "").replace("N/A", "")

    def stop(self, run_id: str) -> None:
        """Stop a run; one that is over already is left alone."""
        self._flwr("stop", run_id, CONNECTION)

    def _submit(
        self, app: Path, config: Mapping[str, Value], resources: Mapping[str, Value]
    ) -> str:
        arguments = [
            "run", str(app.absolute()), CONNECTION, "--format", "json",
            "--federation-config", toml_lines(resources).replace("\n", " ").strip(),
        ]  # fmt: skip
        path = self._scratch / f"run-config-{secrets.token_hex(4)}.toml"
        path.write_text(toml_lines(config), encoding="utf-8")
        if config:
            arguments += ["--run-config", str(path)]
        return str(self._flwr_json(*arguments)["run-id"])

    def _follow(
        self, run_id: str, path: Path, deadline: float, on_line: Callable[[str], None] | None
    ) -> None:
        """Copy the log of a run to a file until the run ends or the deadline comes."""
        lines = LineReader(path, on_line)
        with path.open("wb") as file:
            # One streaming command costs next to nothing; each `flwr ls` costs two seconds.
            stream = self._spawn(["flwr", "log", run_id, CONNECTION, "--stream"], file)
            try:
                while stream.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.2)
                    lines.pass_on()
            finally:
                end_child(stream)
        lines.pass_on()
