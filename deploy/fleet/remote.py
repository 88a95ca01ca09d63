"""What a SuperLink says of devices that are not processes of this machine's `fleet up`.

Their machines run them by systemd, in containers or by hand, and perhaps the server too.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.fleet.description import Device, Fleet
from deploy.fleet.specs import Specs, flower_client
from deploy.fleet.superlink_nodes import known_nodes, public_key
from deploy.flower.commands import CONNECTION, FlowerClient

UNKNOWN = "not known"
"""Of a device whose key was registered by hand, or not yet."""


def connected_client(fleet: Fleet) -> FlowerClient:
    """Return what runs Flower's commands on a fleet's SuperLink, whoever has started that."""
    client = flower_client(fleet)
    client.connect(fleet.server.local_endpoint, fleet.files.ca if fleet.secure else None)
    return client


def device_states(fleet: Fleet, devices: Sequence[Device]) -> dict[str, str]:
    """Return what the SuperLink calls devices, by name: online, offline or registered.

    Flower believes a device online for up to `deploy.fleet.description.HEARTBEAT_LIMIT` after a
    crash. It knows devices by numbers, which were noted when their keys were registered by `fleet
    up`.
    """
    if not devices:
        return {}
    answer = connected_client(fleet).flwr_json("supernode", "ls", CONNECTION, "--format", "json")
    status = {str(node["node-id"]): str(node["status"]) for node in answer["nodes"]}
    numbers = known_nodes(Specs(fleet, {}).database)
    return {
        device.name: status.get(numbers.get(public_key(fleet, device), ""), UNKNOWN)
        for device in devices
    }
