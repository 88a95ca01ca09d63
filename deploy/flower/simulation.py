"""A private local Flower: one simulating SuperLink, `flwr run`s on it, and nothing left behind.

    with FlowerSimulation() as flower:
        run = flower.run(app, {"method": "fedre"}, clients=10, timeout=600)
        print(run.status, run.log)

Every process started here carries a mark in its environment, by which `close` finds them all,
Ray's included, even those whose parent is gone. Only the standard library is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.flower.commands import FlowerError, FlowerRun
from deploy.flower.superlink import PrivateSuperLink
from deploy.flower.text import Value

__all__ = ["FlowerError", "FlowerRun", "FlowerSimulation"]


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
        return self.submit(app, config, resources)
