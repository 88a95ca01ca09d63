"""`wildflower fleet`: start a fleet on this machine, run on it, look at it, describe a device."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import signal
import sys
import time
from pathlib import Path

from deploy.examples import shown_examples
from deploy.fleet import member_commands, renewal
from deploy.fleet.description import HEARTBEAT_LIMIT, Files, Fleet, Tls, is_loopback
from deploy.fleet.device import PLACE, server_unit, shell_command, systemd_unit
from deploy.fleet.fleet_file import read_fleet
from deploy.fleet.identities import make_identities
from deploy.fleet.local import CHECKOUT, LocalFleet
from deploy.fleet.membership import revoked_devices
from deploy.fleet.registrations import last_registrations
from deploy.fleet.remote import connected_client, device_states
from deploy.fleet.renewal_units import renewal_units
from deploy.fleet.status import ONLINE, State, health, is_running, read_state, wait_for_end
from deploy.fleet.status_table import status_table
from deploy.fleet.supervisor import REVOKED, RUNNING, View
from deploy.flower.commands import FlowerError
from deploy.flower.processes import send_signal, terminate_as_interrupt
from deploy.run import parse_assignments, with_code_dir
from server_app.console import say
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config

DAY = 86_400.0
END_SECONDS = 60.0
RUN_NAME = re.compile(r"\bwildflower: run (\S+) in /")
"""How a run says its name, as text and as JSON."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

EXAMPLES = {
    "up": "wildflower fleet up deploy/fleet.yaml",
    "run": "wildflower fleet run deploy/fleet.yaml fedre -c 'num-rounds=5'",
    "status": "wildflower fleet status deploy/fleet.yaml",
    "down": "wildflower fleet down deploy/fleet.yaml",
    "keys": "wildflower fleet keys deploy/fleet.yaml",
    "renew": "wildflower fleet renew deploy/fleet.yaml",
    "device": "wildflower fleet device deploy/fleet.yaml 0",
    "add": "wildflower fleet add deploy/fleet.yaml 1",
    "revoke": "wildflower fleet revoke deploy/fleet.yaml 1",
    "remove": "wildflower fleet remove deploy/fleet.yaml 1",
}
"""A command line for each sub-command; its help ends with it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands and their arguments."""
    commands = parser.add_subparsers(dest="fleet_command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        example = shown_examples(EXAMPLES[name])
        sub = commands.add_parser(name, help=text, description=text, **example)
        sub.add_argument("file", type=Path, help="the fleet, a YAML file; deploy/fleet.yaml is one")
        return sub

    up = command("up", "start a fleet's processes on this machine and keep them running")
    up.add_argument(
        "--insecure", action="store_true",
        help="without TLS and keys, on this machine only; for debugging",
    )  # fmt: skip
    up.add_argument(
        "--server-only", action="store_true", help="the server's processes; devices are elsewhere"
    )
    run = command("run", "run the app on a fleet that is up; exit code 0 only if it completed")
    run.add_argument("preset", nargs="?", help="a preset of the file")
    run.add_argument(
        "-c", "--run-config", action="append", default=[], metavar="'key=value ...'",
        help="as for flwr run, for example -c \"method='fedproto' num-rounds=3\", or a TOML file "
        "of keys; may be repeated, what comes later wins",
    )  # fmt: skip
    run.add_argument(
        "--app", type=Path, metavar="DIR", help="the Flower app (default: where this program is)"
    )
    run.add_argument(
        "--timeout", type=float, default=DAY, metavar="S", help="stop the run after S seconds"
    )
    command("status", "tell how a fleet's processes are; exit code 0 if all are well")
    command("down", "end a fleet that was started elsewhere")
    command("keys", "make a fleet's certificates and keys; what there is already is kept")
    renew = command("renew", "renew the server's certificate if it ends soon, and put it to use")
    renew.add_argument("--now", action="store_true", help="also if it is valid for long")
    device = command("device", "print what to run on one device")
    device.add_argument("client_id", metavar="CLIENT-ID", help="of the device, or: server")
    for name, text in (
        ("add", "take a device of the file into a running fleet: make its key and register it"),
        ("revoke", "put a device out of a running fleet at once; its key is refused for ever"),
        ("remove", "as revoke, for a device that the file is not to name any more"),
    ):
        member = command(name, text)
        member.add_argument("client_id", metavar="CLIENT-ID", help="of the device")
    device.add_argument("--systemd", action="store_true", help="a systemd unit; else one command")


def execute(options: argparse.Namespace) -> int:
    """Run one sub-command; returns its exit code."""
    actions = {
        "up": _up, "run": _run, "status": _status, "down": _down, "keys": _keys, "device": _device,
        "add": member_commands.add, "revoke": member_commands.revoke,
        "remove": member_commands.remove, "renew": renewal.renew,
    }  # fmt: skip
    fleet = read_fleet(options.file)
    try:
        return actions[options.fleet_command](fleet, options)
    except FlowerError as error:
        print(f"wildflower fleet: {error}", file=sys.stderr)
        return 1


def _up(fleet: Fleet, options: argparse.Namespace) -> int:
    listens_on = fleet.server.listens_on
    if options.insecure and not is_loopback(listens_on):
        raise ConfigError(
            f"{fleet.source}: server.listen = {listens_on!r}: with --insecure expected this "
            "machine only"
        )
    if options.insecure:
        _warn("--insecure: no TLS, no node keys; any process on this machine can join and listen")
    elif not is_loopback(listens_on):
        _warn(
            f"the SuperLink listens on {listens_on}. Flower has no login: whoever reaches port "
            f"{fleet.server.port} can start code on all devices. Put a proxy before it "
            "(`python -m deploy.fleet.proxy`) or a firewall"
        )
    fleet = dataclasses.replace(fleet, secure=not options.insecure)
    clients = () if options.server_only else None
    begin = time.monotonic()
    try:
        with terminate_as_interrupt(), LocalFleet(fleet, clients=clients) as running:
            late = running.wait_online()
            say(status_table(State(running.fleet, None, tuple(running.processes.values())), {}))
            for name in late:
                _warn(f"{name} is not online yet; see {running.processes[name].log}")
            say(f"fleet {fleet.name}: up after {time.monotonic() - begin:.0f} s in "
                f"{fleet.directory}; Ctrl-C ends it")  # fmt: skip
            say(f"next: wildflower fleet run {fleet.source} {' | '.join(fleet.presets)}")
            return _keep(running)
    except KeyboardInterrupt:
        say(f"fleet {fleet.name}: all its processes have ended")
        return 0


def _keep(running: LocalFleet) -> int:
    """Say which devices come online, until Ctrl-C or until something makes going on impossible."""
    online = {(p.name, p.pid) for p in running.processes.values() if _is_online(running, p)}
    while running.broken is None:
        for process in running.processes.values():
            if (process.name, process.pid) not in online and _is_online(running, process):
                online.add((process.name, process.pid))
                say(f"{process.name} is online")
        time.sleep(0.5)
    raise FlowerError(f"fleet {running.fleet.name}: {running.broken}")


def _is_online(running: LocalFleet, process: View) -> bool:
    return health(running.fleet, process) == ONLINE


def _run(fleet: Fleet, options: argparse.Namespace) -> int:
    app = (options.app or CHECKOUT).expanduser().absolute()
    if not (app / "pyproject.toml").is_file():
        raise ConfigError(
            f"--app = {str(app)!r}: there is no Flower app (no pyproject.toml); name the checkout "
            "of Wildflower"
        )
    config = {
        "min-clients": len(fleet.devices), **fleet.presets[_preset(fleet, options.preset)],
        **parse_assignments(options.run_config),
    }  # fmt: skip
    if out := revoked_devices(fleet):
        expected = len(fleet.devices) - len(out)
        if int(config["min-clients"]) > expected:
            raise ConfigError(
                f"min-clients = {config['min-clients']}: expected at most {expected}, because "
                f"{', '.join(out)} is revoked; `-c min-clients={expected}`, or take it out of "
                f"{fleet.source}"
            )
    parse_run_config(config)
    state = read_state(fleet)
    client = connected_client(state.fleet)
    listener = _Listener()
    by_others = not state.processes  # systemd, for one, starts again what ends
    with terminate_as_interrupt():
        run_id = client.submit(app, with_code_dir(config))
        say(f"run {run_id} is submitted; Ctrl-C stops it")
        try:
            run = client.wait(
                run_id, timeout=options.timeout, on_line=listener, patience=HEARTBEAT_LIMIT,
                may_return=lambda: by_others or is_running(fleet),
            )  # fmt: skip
        except KeyboardInterrupt:
            client.stop(run_id)
            say(f"run {run_id}: stopped; {listener.resumption}")
            return INTERRUPTED
        except TimeoutError as error:
            raise FlowerError(str(error)) from error
        except FlowerError as error:
            if by_others or is_running(fleet):
                raise
            raise FlowerError(
                f"run {run_id}: fleet {fleet.name} has ended; the run's directory has what it did; "
                f"{listener.resumption}"
            ) from error
    say(f"run {run_id}: {run.status}{f', {run.details}' if run.details else ''}")
    return 0 if run.completed else 1


class _Listener:
    """Says what a run says, and notes the name it goes by."""

    def __init__(self) -> None:
        self.name = ""

    def __call__(self, line: str) -> None:
        found = RUN_NAME.search(line)
        self.name = found[1] if found else self.name
        say(line)

    @property
    def resumption(self) -> str:
        """How to go on with the run."""
        if not self.name:
            return "it had not begun, so there is nothing to resume"
        return f"-c \"resume='{self.name}'\" goes on with it"


def _preset(fleet: Fleet, name: str | None) -> str:
    known = ", ".join(fleet.presets) or "none: the file has no presets"
    if name is None and len(fleet.presets) == 1:
        return next(iter(fleet.presets))
    if name is None or name not in fleet.presets:
        raise ConfigError(f"{fleet.source}: preset = {name!r}: expected one of {known}")
    return name


def _status(fleet: Fleet, options: argparse.Namespace) -> int:
    state = read_state(fleet)
    here = {process.name for process in state.processes}
    elsewhere = device_states(state.fleet, [d for d in fleet.devices if d.name not in here])
    say(status_table(state, elsewhere, last_registrations(fleet)))
    well = [health(state.fleet, p) in (ONLINE, RUNNING, REVOKED) for p in state.processes]
    fine = {ONLINE, REVOKED}
    return 0 if all(well) and {known.status for known in elsewhere.values()} <= fine else 1


def _down(fleet: Fleet, options: argparse.Namespace) -> int:
    state = read_state(fleet)
    if not state.processes:
        raise FlowerError(
            f"fleet {fleet.name}: its server is run by systemd or containers; `systemctl stop "
            f"'wildflower-{fleet.name}-*'` or `docker compose down` ends it"
        )
    if state.parent is None:
        raise FlowerError(f"fleet {fleet.name}: its parent process is not known; end it there")
    if state.parent.pid != os.getpid():
        send_signal(state.parent, signal.SIGTERM)
    if not wait_for_end(fleet, END_SECONDS):
        raise FlowerError(f"fleet {fleet.name}: still runs after {END_SECONDS:g} s")
    say(f"fleet {fleet.name}: ended")
    return 0


def _keys(fleet: Fleet, options: argparse.Namespace) -> int:
    found = make_identities(fleet)
    for verb, paths in (("made", found.made), ("kept", found.kept)):
        for path in paths:
            say(f"{verb}  {path}")
    for warning in found.warnings:
        _warn(warning)
    return 0


def _device(fleet: Fleet, options: argparse.Namespace) -> int:
    if options.client_id == "server":
        for name, text in {**server_unit(fleet), **renewal_units(fleet)}.items():
            say(f"# {name}\n{text}")
        return 0
    if not options.client_id.isdigit():
        raise ConfigError(
            f"client-id = {options.client_id!r}: expected that of a device of {fleet.source}, "
            "or: server"
        )
    device = fleet.device(int(options.client_id))
    there = Files(PLACE / fleet.name, Tls())
    for here, target in (
        (fleet.files.ca, there.ca), (fleet.files.key(device), there.key(device))
    ):  # fmt: skip
        made = "" if here.exists() else f"; `wildflower fleet keys {fleet.source}` makes it"
        print(f"# copy {here} to {target} on the device (mode 0600){made}", file=sys.stderr)
    say(systemd_unit(fleet, device) if options.systemd else shell_command(fleet, device))
    return 0


def _warn(text: str) -> None:
    print(f"wildflower fleet: WARNING: {text}", file=sys.stderr, flush=True)
