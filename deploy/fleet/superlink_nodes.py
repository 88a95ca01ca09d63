"""What a SuperLink has to know before devices connect: their keys, and which runs are dead."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from deploy.fleet.description import Device, Fleet
from deploy.flower.commands import CONNECTION, FlowerClient, FlowerError
from server_app.records.run_directory import write_atomically

IN_USE = "already in use"
"""What Flower says to a key that is registered, or was once."""


def known_nodes(database: Path) -> dict[str, str]:
    """Return Flower's numbers of devices by their public keys, as `Registry` has noted them."""
    path = _beside(database)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def public_key(fleet: Fleet, device: Device) -> str:
    """Return a device's public key, without its kind and comment."""
    return key_of(fleet.files.key(device).with_suffix(".pub"))


def key_of(path: Path) -> str:
    """Return what a public key file holds, without the key's kind and comment."""
    return path.read_text(encoding="utf-8").split()[1]


def _beside(database: Path) -> Path:
    return database.with_suffix(".nodes.json")


class Registry:
    """The devices whose keys a SuperLink knows, so that each is registered once only.

    Flower does not say which node has which key, so the answers are kept beside the database.

    Parameters
    ----------
    fleet : Fleet
        Names the keys.
    database : Path
        The SuperLink's. Without it nothing is registered.
    client : FlowerClient
        Talks to the SuperLink.
    """

    def __init__(self, fleet: Fleet, database: Path, client: FlowerClient) -> None:
        self.fleet = fleet
        self.client = client
        self.path = _beside(database)
        self._lock = threading.Lock()
        self.had_database = database.exists()
        if not self.had_database:
            self.path.unlink(missing_ok=True)
        self.nodes = known_nodes(database)

    def register(self, device: Device) -> None:
        """Register a device's key unless that was done before; safe to call from several threads.

        Raises
        ------
        FlowerError
            If the SuperLink refuses it.
        """
        path = self.fleet.files.key(device).with_suffix(".pub")
        key = public_key(self.fleet, device)
        if key in self.nodes:
            return
        try:
            answer = self.client.flwr_json(
                "supernode", "register", str(path), CONNECTION, "--name", device.name,
                "--format", "json",
            )  # fmt: skip
            node = str(answer["node-id"])
        except FlowerError as error:
            if IN_USE not in str(error):
                raise FlowerError(f"{device.name}: {error}") from error
            node = ""  # registered by hand, or before the answer could be kept
        with self._lock:
            self.nodes[key] = node
            write_atomically(self.path, json.dumps(self.nodes, indent=1))

    def stop_dead_runs(self) -> list[str]:
        """Stop the runs that an earlier start of the fleet left unfinished; return their ids.

        Their ServerApps have ended with that start, but devices would still work for them until
        Flower notices, up to a minute later.
        """
        if not self.had_database:
            return []
        runs = self.client.flwr_json("ls", CONNECTION, "--format", "json")["runs"]
        dead = [str(run["run-id"]) for run in runs if not run["status"].startswith("finished")]
        for run_id in dead:
            self.client.stop(run_id)
        return dead
