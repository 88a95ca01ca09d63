"""The processes of a fleet on one machine, as they are started there."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from deploy.fleet.description import Device, Fleet
from deploy.fleet.device import POLL_SECONDS, superexec_command, superlink_command
from deploy.fleet.revoked import is_revoked
from deploy.fleet.superlink_program import PROGRAM as SUPERLINK_PROGRAM
from deploy.fleet.supervisor import Spec
from deploy.flower.commands import FlowerClient, flower_environment

MARK = "WILDFLOWER_FLEET"
PROCESS_MARK = "WILDFLOWER_FLEET_PROCESS"
"""Environment variables by which all processes of a fleet, and of one of its parts, are found."""

SUPERLINK, SUPEREXEC, CLIENT = "superlink", "superexec", "flwr"
"""Names of the processes that are no devices, and of Flower's command line."""

LEAVE_FIRST = ("flwr-serverapp", "flower-supernode", "wildflower-supernode")
"""Programs that end before the SuperLink: a run, lest it takes the devices' end for their failure,
then the devices, so that the SuperLink knows them to be offline when they come back."""


def fleet_mark(directory: Path) -> str:
    """Return the beginning of the mark that every process of a fleet's directory carries."""
    digest = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()
    return f"{MARK}={digest[:32]}"


def flower_client(fleet: Fleet) -> FlowerClient:
    """Return what runs Flower's commands on a fleet."""
    home = fleet.files.of(CLIENT)
    name, _, value = fleet_mark(fleet.directory).partition("=")
    return FlowerClient(home, flower_environment(home, {name: value}))


class Specs:
    """How the processes of one start of a fleet are started.

    Parameters
    ----------
    fleet : Fleet
        With the port that is used.
    environment : Mapping of str to str
        Variables to add for all processes.
    """

    def __init__(self, fleet: Fleet, environment: Mapping[str, str]) -> None:
        self.fleet = fleet
        self.environment = environment
        self.mark = f"{fleet_mark(fleet.directory)}-{secrets.token_hex(8)}"

    @property
    def database(self) -> Path:
        """The SuperLink's database; without keys it is another one, with other nodes."""
        name = "superlink.db" if self.fleet.secure else "superlink-insecure.db"
        return self.fleet.files.of(SUPERLINK) / name

    def superlink(self) -> Spec:
        """Return the SuperLink's."""
        server = self.fleet.server
        command = superlink_command(self.fleet) if self.fleet.secure else [
            SUPERLINK_PROGRAM, "--insecure", "--host", server.listens_on,
            "--port", str(server.port), "--database", str(self.database),
            "--isolation", "process",
        ]  # fmt: skip
        return self._spec(SUPERLINK, command, {}, server.port)

    def superexec(self) -> Spec:
        """Return that of the SuperExec, which starts ServerApps."""
        command = superexec_command(self.fleet) if self.fleet.secure else [
            "flower-superexec", "--insecure",
            "--runtime-api-address", self.fleet.server.local_endpoint,
        ]  # fmt: skip
        return self._spec(SUPEREXEC, command, {}, None)

    def supernode(self, device: Device, port: int) -> Spec:
        """Return that of a device's SuperNode, which starts its ClientApps."""
        files = self.fleet.files
        trust = ["--insecure"] if not self.fleet.secure else [
            "--root-certificates", str(files.ca),
            "--auth-supernode-private-key", str(files.key(device)),
        ]  # fmt: skip
        command = [
            *device.supernode, "--superlink", self.fleet.server.local_endpoint, *trust,
            "--host", "127.0.0.1", "--port", str(port),
            "--node-config", device.node_config(str(files.of(device.name) / "state")),
        ]  # fmt: skip
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(device.threads))
        spec = self._spec(device.name, command, threads, port)
        return dataclasses.replace(spec, unwanted=lambda: is_revoked(self.fleet, device))

    def _spec(
        self, name: str, command: list[str], extra: Mapping[str, str], port: int | None
    ) -> Spec:
        directory = self.fleet.files.of(name)
        mark, process_mark = self.mark.partition("=")[2], f"{self.mark.partition('=')[2]}-{name}."
        environment = {
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL_SECONDS,
            **extra, **self.environment, MARK: mark, PROCESS_MARK: process_mark,
        }  # fmt: skip
        return Spec(
            name=name,
            command=tuple(command),
            directory=directory,
            environment=flower_environment(directory / "flwr", environment),
            log=self.fleet.directory / "logs" / f"{name}.log",
            mark=f"{PROCESS_MARK}={process_mark}",
            port=port,
        )
