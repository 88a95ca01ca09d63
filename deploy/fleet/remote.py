"""What a SuperLink says of devices that are not processes of this machine's `fleet up`.

Their machines run them by systemd, in containers or by hand, and perhaps the server too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.fleet.description import Device, Fleet
from deploy.fleet.revoked import is_revoked
from deploy.fleet.specs import Specs, flower_client
from deploy.fleet.superlink_nodes import known_nodes, public_key
from deploy.fleet.supervisor import REVOKED
from deploy.flower.commands import CONNECTION, FlowerClient

UNKNOWN = "not known"
"""Of a device whose key was registered by hand, or not yet."""


def connected_client(fleet: Fleet) -> FlowerClient:
    """Return what runs Flower's commands on a fleet's SuperLink, whoever has started that."""
    client = flower_client(fleet)
    client.connect(fleet.server.local_endpoint, fleet.files.ca if fleet.secure else None)
    return client


@dataclasses.dataclass(frozen=True)
class Known:
    """What a SuperLink says of a device.

    Attributes
    ----------
    status : str
        online, offline or registered; or that it is revoked or not known.
    seen : str
        When it was last there, as the SuperLink writes times; "now", or "never".
    """

    status: str
    seen: str = ""


def device_states(fleet: Fleet, devices: Sequence[Device]) -> dict[str, Known]:
    """Return what the SuperLink knows of devices, by name.

    Flower believes a device online for up to `deploy.fleet.description.HEARTBEAT_LIMIT` after a
    crash. It knows devices by numbers, which were noted when their keys were registered by `fleet
    up`.
    """
    if not devices:
        return {}
    answer = connected_client(fleet).flwr_json("supernode", "ls", CONNECTION, "--format", "json")
    known = {str(node["node-id"]): _known(node) for node in answer["nodes"]}
    numbers = known_nodes(Specs(fleet, {}).database)
    return {
        device.name: Known(REVOKED)
        if is_revoked(fleet, device)
        else known.get(numbers.get(public_key(fleet, device), ""), Known(UNKNOWN))
        for device in devices
    }


def _known(node: Mapping[str, Any]) -> Known:
    """Read one node of `flwr supernode ls`."""
    status = str(node["status"])
    seen = {"online": "now", "registered": "never"}.get(status) or str(node.get("offline-at", ""))
    return Known(status, seen)
