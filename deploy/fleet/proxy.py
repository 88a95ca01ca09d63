"""A reverse proxy (nginx) that lets devices reach Flower's fleet API and nothing else.

Flower 1.42 serves three APIs on the SuperLink's one port. The control API has no login: whoever
reaches it can start code on every device, read logs and stop runs. So the SuperLink listens on
127.0.0.1, and devices come through this proxy, which passes on the calls of a SuperNode and
answers everything else with 404.

    python -m deploy.fleet.proxy FLEET.yaml > nginx.conf        # for a server of one's own
    python -m deploy.fleet.proxy --compose > deploy/nginx.conf  # the file that compose.yaml mounts
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import re
import sys
from pathlib import Path

from deploy.fleet.description import Fleet, host_port
from deploy.fleet.device_map import device_map
from deploy.fleet.fleet_file import read_fleet
from deploy.fleet.nginx_template import TEMPLATE
from strategies.base.options import ConfigError

FLEET_CALLS = (
    "activate-node", "confirm-message-received", "deactivate-node", "get-fab", "get-run",
    "pull-messages", "pull-object", "push-messages", "push-object", "send-node-heartbeat",
)  # fmt: skip
"""Calls below /v1/fleet/ of a SuperNode that has a key; a test compares them with Flower's own.

`register-node` and `unregister-node` are left out: only a SuperNode without a key uses them.
"""

BODY_MIB = 6
"""Largest request in MiB. Flower cuts arrays into 5 MiB and sends other records, which are small
in all methods here, whole.

There has to be a limit: the SuperLink reads a request into memory before it looks at the key.
"""

NODE_NOT_ACTIVATED = 2004
"""Flower's own code for a device whose key the SuperLink does not accept."""

DEVICE_CALLS = 6
"""Calls at a time of one device. A SuperNode has four at most: two pieces of arrays (Flower's
`FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES`), a heartbeat and a question."""

ADDRESS_CALLS = 64
"""Calls at a time from one address, behind which many devices may be."""

ADDRESS_RATE, ADDRESS_BURST = 100, 300
"""Calls a second from one address, and how many beyond them wait instead of being refused.

One device alone asks once in three seconds while it has no work. The longest wait, burst / rate
seconds, stays far below the 30 s after which a SuperNode gives up.
"""

_PLAIN = re.compile(r"[^\s\"'\\{};$#]+( [^\s\"'\\{};$#]+)*")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def nginx_config(
    *,
    listen: str,
    superlink: str,
    superlink_name: str,
    ca: str,
    certificate: str,
    key: str,
    devices: str,
    resolver: str = "",
    body_mib: int = BODY_MIB,
) -> str:
    """Return a complete configuration file for nginx 1.22 or newer.

    Parameters
    ----------
    listen : str
        `IP:port` for devices.
    superlink : str
        `host:port` of the SuperLink.
    superlink_name : str
        Host name in the SuperLink's certificate. Not an IP address: nginx does not look for those.
    ca : str
        PEM file of the authority that signed the SuperLink's certificate.
    certificate, key : str
        PEM files that the proxy shows devices; the SuperLink's own will do.
    devices : str
        File that says whose keys there are; see `deploy.fleet.device_map`.
    resolver : str
        IP address of a name server; needed if the SuperLink is given by a host name.
    body_mib : int
        Largest request in MiB.

    Raises
    ------
    ConfigError
        If a value cannot stand in the file, or nginx could not use it.
    """
    values = {
        "listen": listen, "superlink": superlink, "superlink_name": superlink_name, "ca": ca,
        "certificate": certificate, "key": key, "devices": devices,
    }  # fmt: skip
    for name, value in values.items():
        if not _PLAIN.fullmatch(value):
            raise ConfigError(f"{name} = {value!r}: nginx's configuration cannot carry this text")
    if _is_ip(superlink_name) or not _NAME.fullmatch(superlink_name):
        raise ConfigError(
            f"superlink_name = {superlink_name!r}: expected a host name that the SuperLink's "
            "certificate is valid for (nginx compares no IP addresses)"
        )
    host = superlink.rpartition(":")[0].strip("[]")
    if not _is_ip(host) and not _is_ip(resolver):
        raise ConfigError(
            f"superlink = {superlink!r}: expected an IP address and a port, or a host name "
            f"together with a resolver, the IP address of a name server (now {resolver!r})"
        )
    values["resolver"] = f"resolver {resolver} valid=10s;" if resolver else "# no resolver needed"
    values |= {"calls": "|".join(FLEET_CALLS), "body_mib": str(body_mib)}
    numbers = {
        "device_calls": DEVICE_CALLS, "address_calls": ADDRESS_CALLS,
        "address_rate": ADDRESS_RATE, "address_burst": ADDRESS_BURST,
    }  # fmt: skip
    values |= {name: str(number) for name, number in numbers.items()}
    values |= {
        "refused_start": _flower_error("Failed to activate SuperNode."),
        "refused_call": _flower_error("Invalid SuperNode authentication."),
    }
    return re.sub("@([a-z_]+)@", lambda match: values[match[1]], TEMPLATE)


def _flower_error(text: str) -> str:
    """Return the body of an answer from which a SuperNode takes what it shows."""
    reason = "The proxy says: this key is $refusal."
    return json.dumps({"code": NODE_NOT_ACTIVATED, "detail": text, "extra": reason})


def compose_proxy() -> str:
    """Return deploy/nginx.conf, which deploy/compose.yaml mounts."""
    return nginx_config(
        listen="0.0.0.0:8443",
        superlink="superlink:8000",
        superlink_name="superlink",
        ca="/run/secrets/ca.crt",
        certificate="/run/secrets/server.crt",
        key="/run/secrets/server.key",
        devices="/etc/wildflower/devices.map",
        resolver="127.0.0.11",  # Docker's own
    )


def fleet_proxy(fleet: Fleet, listen: str = "") -> str:
    """Return nginx's configuration for a fleet.

    Parameters
    ----------
    fleet : Fleet
        Its SuperLink listens on this machine only (`server.listen: 127.0.0.1`).
    listen : str
        IP address for devices. `server.address` unless given, which must then be an IP address.
        Not 0.0.0.0: the SuperLink has the same port on 127.0.0.1.

    Raises
    ------
    ConfigError
        If the fleet's SuperLink can be reached past the proxy, or has no fixed port.
    """
    server, files = fleet.server, fleet.files
    listen = listen or server.address
    if not ipaddress.ip_address(server.listens_on).is_loopback:
        raise ConfigError(
            f"server.listen = {server.listens_on!r} in {fleet.source}: behind a proxy, expected "
            "127.0.0.1; otherwise devices reach the control API past it"
        )
    if not _is_ip(listen) or ipaddress.ip_address(listen).is_unspecified:
        raise ConfigError(
            f"listen = {listen!r}: expected the IP address of a network interface of the server"
        )
    if listen == server.listens_on or server.port == 0:
        raise ConfigError(
            f"server.address = {server.address!r} and server.port = {server.port} in "
            f"{fleet.source}: expected the address of a network interface, and a fixed port"
        )
    return nginx_config(
        listen=host_port(listen, server.port),
        superlink=server.local_endpoint,
        superlink_name=_certified_name(fleet),
        ca=str(files.ca),
        certificate=str(files.certificate),
        key=str(files.certificate_key),
        devices=str(device_map(fleet)),
    )


def _certified_name(fleet: Fleet) -> str:
    """Return a host name for which the server's certificate is valid."""
    if not fleet.tls.own:
        return "localhost"  # in every certificate made here
    for name in (fleet.server.address, *fleet.server.names):
        if not _is_ip(name):
            return name
    raise ConfigError(
        f"server.names in {fleet.source}: name a host name that {fleet.tls.certificate} is valid "
        "for; nginx does not compare IP addresses"
    )


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Print a configuration; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m deploy.fleet.proxy", description=main.__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a fleet file")
    parser.add_argument("--listen", default="", help="IP address for devices")
    parser.add_argument("--compose", action="store_true", help="for deploy/compose.yaml")
    options = parser.parse_args(arguments)
    if options.compose == (options.file is not None):
        parser.error("give a fleet file or --compose")
    try:
        if options.compose:
            text = compose_proxy()
        else:
            text = fleet_proxy(read_fleet(options.file), options.listen)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
