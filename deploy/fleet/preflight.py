"""What is looked at before a fleet starts on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

from deploy.fleet.description import Device, Fleet
from deploy.flower.processes import free_port
from strategies.base.options import ConfigError


def check_device(device: Device, fleet: Fleet) -> None:
    """Refuse a device that cannot work on this machine."""
    import torch

    where = f"{fleet.source}: client {device.client_id}:"
    places = ("data-dir", device.data_dir), ("public-dir", device.public_dir)
    for key, place in (*places, ("code-dir", device.code_dir)):
        # A folder, or for sentences one file.
        if place and not Path(place).expanduser().exists():
            raise ConfigError(f"{where} {key} = {place!r}: there is no such folder here")
    if device.device.startswith("cuda"):
        count, number = torch.cuda.device_count(), int(device.device.partition(":")[2] or 0)
        if number >= count:
            raise ConfigError(
                f"{where} device = {device.device!r}: this machine has {count} CUDA devices; "
                "expected auto, cpu or an existing cuda:N"
            )


def usable_port(fleet: Fleet) -> int:
    """Return the port to listen on, or raise `ConfigError` if it is taken."""
    server = fleet.server
    if server.port == 0:
        return free_port()
    host = server.listens_on
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, server.port))
        except OSError as error:
            raise ConfigError(
                f"{fleet.source}: server.port = {server.port}: cannot listen on {host} "
                f"({error.strerror}); expected a port that nothing else uses, or 0 for any"
            ) from error
    return server.port
