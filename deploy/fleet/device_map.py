"""What the proxy has to know of devices: whose public key a call names.

A SuperNode names its key in the header `flwr-public-key` of every call: the PEM text in base64. The
proxy compares that with a file of lines `"KEY" client-N;`, a `map` of nginx, and lets no other key
through. It is no proof of anything, which the SuperLink's look at the signature is; it spares the
SuperLink the bodies of strangers, which it would read first.
"""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from deploy.fleet.description import Fleet
from deploy.fleet.private_files import write_private
from deploy.fleet.revoked import old_public_keys
from strategies.base.options import ConfigError


def device_map(fleet: Fleet) -> Path:
    """Return where the file lies: a directory of its own, so that a container can mount it."""
    return fleet.files.of("proxy") / "devices.map"


def write_device_map(fleet: Fleet) -> Path:
    """Write the file anew from the public keys that there are.

    Raises
    ------
    ConfigError
        For a public key that cannot be read.
    """
    lines = ["# Written by wildflower fleet: which key is whose."]
    for device in fleet.devices:
        path = fleet.files.key(device).with_suffix(".pub")
        if path.is_file():
            lines.append(f'"{header_of(path)}" "{device.name}";')
    for name, path in old_public_keys(fleet):
        lines.append(f'"{header_of(path)}" "revoked {name}";')
    path = device_map(fleet)
    write_private(path, ("\n".join(lines) + "\n").encode())
    return path


def header_of(path: Path) -> str:
    """Return how a SuperNode names the key of a public key file in OpenSSH's format."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a public key: {error}") from error
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(pem).decode("ascii")
