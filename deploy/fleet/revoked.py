"""Which devices are out of a fleet: their public keys are put aside, in `keys/revoked`.

The SuperLink never takes a key again that was unregistered: a device that comes back gets a new
one.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from deploy.fleet.description import Device, Fleet


def place(fleet: Fleet) -> Path:
    """Return the directory of the keys that are not valid any more."""
    return fleet.directory / "keys" / "revoked"


def old_public_keys(fleet: Fleet) -> list[tuple[str, Path]]:
    """Return names of devices and public keys that were put aside, the oldest first."""
    return [(path.name.partition(".")[0], path) for path in sorted(place(fleet).glob("*.pub"))]


def is_revoked(fleet: Fleet, device: Device) -> bool:
    """Return whether a device has no key any more, because that was revoked."""
    aside = any(name == device.name for name, _ in old_public_keys(fleet))
    return aside and not fleet.files.key(device).exists()


def put_aside(fleet: Fleet, device: Device) -> Path:
    """Put a device's public key aside and forget its private one; return where the first is now."""
    now = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%f}"
    place(fleet).mkdir(mode=0o700, parents=True, exist_ok=True)
    key = fleet.files.key(device)
    public = key.with_suffix(".pub").rename(place(fleet) / f"{device.name}.{now}.pub")
    key.unlink(missing_ok=True)
    return public
