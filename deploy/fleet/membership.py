"""Taking devices into a running fleet and out of it, by client id."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from deploy.fleet.description import Device, Fleet
from deploy.fleet.device import behind_proxy
from deploy.fleet.device_map import write_device_map
from deploy.fleet.identities import Identities, make_device_key
from deploy.fleet.remote import connected_client
from deploy.fleet.revoked import is_revoked, old_public_keys, put_aside
from deploy.fleet.specs import Specs
from deploy.fleet.status import read_state
from deploy.fleet.superlink_nodes import Registry, key_of, known_nodes
from deploy.flower.commands import CONNECTION, FlowerError
from deploy.flower.processes import send_signal
from strategies.base.options import ConfigError

GONE = ("not found", "already unregistered", "already been unregistered")
"""What Flower says of a node that was unregistered before."""


def add_device(fleet: Fleet, device: Device) -> Identities:
    """Make a device's key, unless it has one, and register it with the running SuperLink.

    A device that was revoked gets a new key, because Flower takes an old one never again.

    Raises
    ------
    ConfigError
        If the fleet does not run or has no keys.
    FlowerError
        If the SuperLink refuses the key.
    """
    running = _running(fleet)
    made = Identities()
    make_device_key(fleet, device, made)
    registry = Registry(fleet, Specs(fleet, {}).database, connected_client(running))
    registry.register(device)
    write_device_map(fleet)
    return made


def revoke_device(fleet: Fleet, device: Device) -> None:
    """Put a device out of a running fleet, at once and for ever as far as its key goes.

    Raises
    ------
    ConfigError
        If the fleet does not run, or knows no such device.
    FlowerError
        If the SuperLink was not told; a second call goes on from there.
    """
    running = _running(fleet)
    public = fleet.files.key(device).with_suffix(".pub")
    if public.is_file():
        # First, so that whoever notices the end of the device's process finds the reason.
        public = put_aside(fleet, device)
    else:
        aside = [path for name, path in old_public_keys(fleet) if name == device.name]
        if not aside:
            raise ConfigError(f"client-id = {device.client_id}: {fleet.source} has no key of it")
        public = aside[-1]
    write_device_map(fleet)
    node = known_nodes(Specs(fleet, {}).database).get(key_of(public), "")
    if not node:
        raise FlowerError(
            f"{device.name}: its key was registered by hand or never, so Flower's number of it "
            f"is not known; the proxy refuses it from now on, and `flwr supernode ls {CONNECTION}` "
            f"and `flwr supernode unregister NUMBER {CONNECTION}` do the rest"
        )
    code, text = connected_client(running).flwr("supernode", "unregister", node, CONNECTION)
    if code != 0 and not any(words in text.lower() for words in GONE):
        raise FlowerError(f"{device.name} (node {node}): {' '.join(text.split())}")


def revoked_devices(fleet: Fleet) -> list[str]:
    """Return the names of the fleet file's devices that are out of the fleet."""
    return [device.name for device in fleet.devices if is_revoked(fleet, device)]


def reload_proxy(fleet: Fleet) -> str:
    """Let the fleet's proxy read its files anew; return what was done, for the user."""
    note = fleet.files.of("proxy") / "nginx.pid"
    process = _nginx(note)
    if process is None and not behind_proxy(fleet):
        return ""
    if process is None:
        return (
            f"no proxy runs here ({note}); tell one that runs elsewhere to read its files anew: in "
            "containers, `docker compose kill -s HUP proxy`"
        )
    send_signal(process, signal.SIGHUP)
    return "the proxy reads its files anew; calls under way are finished"


def _nginx(note: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(int(note.read_text(encoding="ascii")))
        return process if process.name() == "nginx" else None
    except (OSError, ValueError, psutil.Error):
        return None


def _running(fleet: Fleet) -> Fleet:
    running = read_state(fleet).fleet
    if not running.secure:
        raise ConfigError(f"{fleet.source}: runs with --insecure, and so without keys")
    return running
