"""`wildflower fleet add`, `revoke`, `remove`: devices by client id, while the fleet runs."""

from __future__ import annotations

import argparse

from deploy.fleet.description import Device, Fleet
from deploy.fleet.membership import add_device, reload_proxy, revoke_device
from server_app.console import say
from strategies.base.options import ConfigError


def add(fleet: Fleet, options: argparse.Namespace) -> int:
    """Take a device of the fleet file into the running fleet; it takes part from the next round."""
    device = fleet.device(client_id(options, fleet))
    for path in add_device(fleet, device).made:
        say(f"made  {path}")
    _say_if_any(reload_proxy(fleet))
    say(f"{device.name} is registered; give its machine {fleet.files.key(device)} and start there "
        f"what `wildflower fleet device {fleet.source} {device.client_id}` prints")  # fmt: skip
    return 0


def revoke(fleet: Fleet, options: argparse.Namespace) -> int:
    """Put a device out of the running fleet."""
    device = _put_out(fleet, options)
    say(f"{device.name} is revoked: its key is refused from now on, for ever; `wildflower fleet "
        f"add {fleet.source} {device.client_id}` would let it in with a new one")  # fmt: skip
    return 0


def remove(fleet: Fleet, options: argparse.Namespace) -> int:
    """Put a device out of the running fleet, and say what is left of it here."""
    device = _put_out(fleet, options)
    known = any(device.client_id == other.client_id for other in fleet.devices)
    left = f"; take it out of {fleet.source}" if known else ""
    say(f"{device.name} is removed: its key is refused from now on, for ever{left}")
    return 0


def client_id(options: argparse.Namespace, fleet: Fleet) -> int:
    """Return the client id of a command line.

    Raises
    ------
    ConfigError
        If it is no number.
    """
    if not options.client_id.isdecimal():
        raise ConfigError(
            f"client-id = {options.client_id!r}: expected that of a device of {fleet.source}"
        )
    return int(options.client_id)


def _put_out(fleet: Fleet, options: argparse.Namespace) -> Device:
    """Let the key of the device that a command names be refused from now on."""
    device = _named(fleet, options)
    revoke_device(fleet, device)
    _say_if_any(reload_proxy(fleet))
    return device


def _named(fleet: Fleet, options: argparse.Namespace) -> Device:
    """Return the device meant, which may have been taken out of the file already."""
    number = client_id(options, fleet)
    known = [device for device in fleet.devices if device.client_id == number]
    return known[0] if known else Device(client_id=number)


def _say_if_any(text: str) -> None:
    if text:
        say(text)
