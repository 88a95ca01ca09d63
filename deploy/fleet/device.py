"""What runs on one machine of a fleet: a device's command, and systemd units for all processes.

Every machine has the same layout below one directory (`deploy.fleet.description.Files`), of which a
device holds only its part: `tls/ca.crt`, `keys/client-N`, and `processes/client-N`, which is
FLWR_HOME, working directory and private state in one.

    python -m deploy.fleet.device FLEET.yaml                # the units of the server, in turn
    python -m deploy.fleet.device FLEET.yaml --client-id 0  # the unit of a device
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from deploy.fleet.description import Device, Files, Fleet, Tls, is_loopback
from deploy.fleet.fleet_file import read_fleet
from deploy.fleet.renewal_units import renewal_units
from deploy.fleet.superlink_program import PROGRAM as SUPERLINK_PROGRAM
from deploy.fleet.units import ENVIRONMENT, STATE, STOP_SECONDS, USER, unit_text
from strategies.base.options import ConfigError

PLACE = STATE / "wildflower"
"""Below it a device's directory lies, named like the fleet."""

NODE_RESTART_SECONDS = 15.0
"""Pause before a device's restart.

Flower refuses a node that it still believes online, for up to
`deploy.fleet.description.HEARTBEAT_LIMIT` seconds. Retries at this pace, without an end, get
through without haste.
"""

STOP = {"superlink": 5.0}
"""Seconds before a unit is killed, if not `STOP_SECONDS`.

By itself the SuperLink waits for its open connections longer than a minute, which is how long a run
waits for it to be back. What it must not lose is in its database.
"""

APP_MEMORY = "75%"
MEMORY = {"superlink": "50%", "superexec": APP_MEMORY, "proxy": "10%"}
"""How much of its machine's memory a unit may hold; a device's is `APP_MEMORY`."""

FIRST_PORT = 9094
POLL_SECONDS = "0.5"
"""How often a SuperExec asks for work. Every message waits for it, with Flower's default up to 1 s;
asking more often costs a device per cents of a core for as long as it is up."""
FLWR_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL_SECONDS,
}


def device_command(fleet: Fleet, device: Device, directory: Path | None = None) -> list[str]:
    """Return the command that connects a device, for that machine.

    It needs `device_environment` and, on its path, the environment's commands. `shlex.join` makes
    a line for a shell of it.

    Parameters
    ----------
    fleet, device
        From the fleet file.
    directory : Path, optional
        The fleet's directory on the device; /var/lib/wildflower/NAME unless given.

    Raises
    ------
    ConfigError
        If the fleet's server cannot be reached from elsewhere as it is described.
    """
    if fleet.server.port == 0:
        raise ConfigError(
            f"server.port = 0 in {fleet.source}: devices on other machines need a fixed port"
        )
    if not fleet.secure:
        raise ConfigError(f"{fleet.source}: without TLS and keys a fleet stays on one machine")
    files = _device_files(fleet, directory)
    return [
        *device.supernode,
        "--superlink", fleet.server.endpoint,
        "--root-certificates", str(files.ca),
        "--auth-supernode-private-key", str(files.key(device)),
        # Its own, so that several devices of a fleet may share a machine.
        "--port", str(FIRST_PORT + fleet.devices.index(device)),
        "--node-config", device.node_config(str(files.of(device.name) / "state")),
    ]  # fmt: skip


def device_environment(
    fleet: Fleet, device: Device, directory: Path | None = None
) -> dict[str, str]:
    """Return the environment variables that a device's command needs; see `device_command`."""
    return _settings(_device_files(fleet, directory).of(device.name))


def shell_command(fleet: Fleet, device: Device, directory: Path | None = None) -> str:
    """Return one line for a shell: `device_environment` and `device_command`, quoted."""
    variables = device_environment(fleet, device, directory)
    assignments = (f"{key}={value}" for key, value in variables.items())
    return shlex.join(["env", *assignments, *device_command(fleet, device, directory)])


def systemd_unit(
    fleet: Fleet,
    device: Device,
    directory: Path | None = None,
    *,
    environment: Path = ENVIRONMENT,
    user: str = USER,
) -> str:
    """Return the unit for a device: its SuperNode, started again whatever ends it.

    Parameters
    ----------
    fleet, device, directory
        As in `device_command`.
    environment : Path
        The virtual environment on the device.
    user : str
        Who runs it.
    """
    places = {
        "data-dir": device.data_dir,
        "state-dir": device.state_dir,
        "allowed-apps": device.allowed_apps,
        "trusted-entities": device.trusted_entities,
    }
    for key, place in places.items():
        if place.startswith("~"):
            raise ConfigError(
                f"{key} = {place!r} of client {device.client_id}: a service has a home of its own; "
                "expected an absolute path"
            )
    home = _device_files(fleet, directory).of(device.name)
    return unit_text(
        f"Wildflower fleet {fleet.name}, {device.name}",
        device_command(fleet, device, directory),
        home,
        device_environment(fleet, device, directory),
        environment=environment,
        user=user,
        restart_seconds=NODE_RESTART_SECONDS,
        writable=[device.state_dir] if device.state_dir else [],
        needed=[device.data_dir] if device.data_dir else [],
        memory=APP_MEMORY,
        starts_apps=True,
    )


def superlink_command(fleet: Fleet) -> list[str]:
    """Return the command of a fleet's SuperLink, which survives restarts in the middle of a run."""
    files, server = fleet.files, fleet.server
    return [
        SUPERLINK_PROGRAM, "--host", server.listens_on, "--port", str(server.port),
        "--database", str(files.of("superlink") / "superlink.db"),
        "--enable-supernode-auth",
        "--ssl-ca-certfile", str(files.ca),
        "--ssl-certfile", str(files.certificate),
        "--ssl-keyfile", str(files.certificate_key),
        "--isolation", "process",
        "--superexec-auth-secret-file", str(files.secret),
    ]  # fmt: skip


def superexec_command(fleet: Fleet) -> list[str]:
    """Return the command of the SuperExec that starts a fleet's ServerApps."""
    return [
        "flower-superexec", "--runtime-api-address", fleet.server.local_endpoint,
        "--root-certificates", str(fleet.files.ca),
        "--superexec-auth-secret-file", str(fleet.files.secret),
    ]  # fmt: skip


def server_unit(
    fleet: Fleet, *, environment: Path = ENVIRONMENT, user: str = USER
) -> dict[str, str]:
    """Return the units of a fleet's server: their text by file name.

    The SuperExec is a process of its own, so that a restart of the SuperLink of less than a minute
    does not end a run. The proxy is there if devices cannot reach the SuperLink directly.
    """
    if fleet.server.port == 0 or not fleet.secure:
        raise ConfigError(f"server.port = 0 in {fleet.source}: a server has a fixed port, and TLS")
    commands = {"superlink": superlink_command(fleet), "superexec": superexec_command(fleet)}
    if behind_proxy(fleet):
        home = fleet.files.of("proxy")
        # -e: else nginx first looks for the log that it was built with.
        commands["proxy"] = [
            "/usr/sbin/nginx", "-e", "stderr", "-p", str(home), "-c", str(home / "nginx.conf")
        ]  # fmt: skip
    outputs = {str(preset.get("output-dir", "")) for preset in fleet.presets.values()}
    units = {}
    for name, command in commands.items():
        units[f"wildflower-{fleet.name}-{name}.service"] = unit_text(
            f"Wildflower fleet {fleet.name}, {name}",
            command,
            fleet.files.of(name),
            _settings(fleet.files.of(name)),
            environment=environment,
            user=user,
            writable=sorted(o for o in outputs if o[:1] == "/") if name == "superexec" else [],
            low_port=name != "superexec" and 0 < fleet.server.port < 1024,
            memory=MEMORY[name],
            stop_seconds=STOP.get(name, STOP_SECONDS),
            starts_apps=name == "superexec",
        )
    return units


def behind_proxy(fleet: Fleet) -> bool:
    """Return whether devices elsewhere need a proxy: the SuperLink hears this machine only."""
    return is_loopback(fleet.server.listens_on) and not is_loopback(fleet.server.address)


def _device_files(fleet: Fleet, directory: Path | None) -> Files:
    """Return where files lie on a device. The authority has one place, whoever made it."""
    return Files(directory or PLACE / fleet.name, Tls())


def _settings(home: Path) -> dict[str, str]:
    return {"FLWR_HOME": str(home / "flwr"), **FLWR_SETTINGS}


def main(arguments: list[str] | None = None) -> int:
    """Print systemd units; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m deploy.fleet.device", description=main.__doc__)
    parser.add_argument("file", type=Path, help="a fleet file")
    parser.add_argument("--client-id", type=int, help="of a device; the server unless given")
    parser.add_argument("--write", type=Path, help="an existing directory to write the units to")
    options = parser.parse_args(arguments)
    try:
        fleet = read_fleet(options.file)
        if options.client_id is None:
            units = {**server_unit(fleet), **renewal_units(fleet)}
        else:
            device = fleet.device(options.client_id)
            units = {f"wildflower-{fleet.name}-{device.name}.service": systemd_unit(fleet, device)}
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    for name, text in units.items():
        if options.write is None:
            print(f"# {name}\n{text}")
        else:
            (options.write / name).write_text(text, encoding="utf-8")
            print(options.write / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
