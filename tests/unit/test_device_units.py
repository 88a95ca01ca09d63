"""What a device runs: commands as Flower's own parsers read them, units as systemd reads them."""

from __future__ import annotations

import configparser
import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args
from flwr.supercore.cli.flower_superexec import _parse_args as superexec_parser
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as superlink_parser
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as supernode_parser

from client_app.node import NODE_KEYS
from deploy.fleet.description import HEARTBEAT_LIMIT, Device, Fleet, Restarts, Server, Tls
from deploy.fleet.device import (
    NODE_RESTART_SECONDS,
    device_command,
    device_environment,
    main,
    server_unit,
    shell_command,
    superexec_command,
    superlink_command,
    systemd_unit,
)
from strategies.base.options import ConfigError

AWKWARD = "/data/a b'c$HOME 100%;`x` é"
"""A path with what shells and systemd give a meaning."""


def make_fleet(**changes: Any) -> Fleet:
    devices = (
        Device(client_id=7, model="cnn1", data_dir=AWKWARD, device="cuda:0", threads=4),
        Device(client_id=2, partition_id=1, num_partitions=2, state_dir="/srv/state of 2"),
    )
    fleet = Fleet(
        name="clinic",
        directory=Path("/var/lib/wildflower/clinic"),
        server=Server(address="192.0.2.10", listen="127.0.0.1", allow_remote=True),
        tls=Tls(),
        restarts=Restarts(),
        devices=devices,
        presets={"fedre": {"method": "fedre", "output-dir": "/srv/results"}},
        source=Path("fleet.yaml"),
    )
    return dataclasses.replace(fleet, **changes)


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def parsed(text: str) -> configparser.ConfigParser:
    """Read a unit's lines; a repeated key, except Environment, is an error."""
    variables: list[str] = []
    rest = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        variables.append(value) if key == "Environment" else rest.append(line)
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string("\n".join(rest))
    parser["Service"]["Environment"] = " ".join(variables)
    return parser


def words(text: str, command: bool = False) -> list[str]:
    """Split a value as systemd.syntax(7) says: quotes, backslashes, doubled % and $."""
    found = [word.replace("%%", "%") for word in shlex.split(text)]
    return [word.replace("$$", "$") for word in found] if command else found


def variables(text: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in words(parsed(text)["Service"]["Environment"]))
    return {key: value for key, _, value in pairs}


def test_the_supernode_reads_the_command_as_it_is_meant(fleet: Fleet) -> None:
    command = device_command(fleet, fleet.device(7))
    assert command[0] == "flower-supernode"
    arguments = supernode_parser().parse_args(command[1:])
    assert arguments.superlink == "192.0.2.10:8000"
    assert arguments.root_certificates == "/var/lib/wildflower/clinic/tls/ca.crt"
    assert arguments.auth_supernode_private_key == "/var/lib/wildflower/clinic/keys/client-7"
    assert not arguments.insecure
    assert arguments.host == "127.0.0.1"  # its own API is for its own processes
    assert arguments.max_retries is arguments.max_wait_time is None  # patient without an end
    config = parse_config_args([arguments.node_config])
    assert config == {
        "client-id": 7, "data-dir": AWKWARD, "model": "cnn1", "device": "cuda:0", "threads": 4,
        "state-dir": "/var/lib/wildflower/clinic/processes/client-7/state",
    }  # fmt: skip
    assert set(config) <= set(NODE_KEYS)


def test_a_device_may_name_its_own_place_for_private_state(fleet: Fleet) -> None:
    command = device_command(fleet, fleet.device(2))
    config = parse_config_args([supernode_parser().parse_args(command[1:]).node_config])
    assert config["state-dir"] == "/srv/state of 2"
    assert (config["partition-id"], config["num-partitions"]) == (1, 2)


def test_devices_on_one_machine_do_not_share_a_port(fleet: Fleet) -> None:
    ports = [
        supernode_parser().parse_args(device_command(fleet, d)[1:]).port for d in fleet.devices
    ]
    assert len(set(ports)) == 2


def test_the_fleet_may_lie_elsewhere_on_a_device(fleet: Fleet) -> None:
    """Also with certificates of one's own, whose paths are the server's."""
    own = dataclasses.replace(fleet, tls=Tls(ca="/etc/ca", certificate="/etc/c", key="/etc/k"))
    command = device_command(own, own.device(7), Path("/opt/fleet"))
    arguments = supernode_parser().parse_args(command[1:])
    assert arguments.root_certificates == "/opt/fleet/tls/ca.crt"
    assert arguments.auth_supernode_private_key == "/opt/fleet/keys/client-7"
    home = device_environment(own, own.device(7), Path("/opt/fleet"))["FLWR_HOME"]
    assert home == "/opt/fleet/processes/client-7/flwr"


def test_a_shell_passes_on_exactly_the_command(fleet: Fleet, tmp_path: Path) -> None:
    echo = tmp_path / "flower-supernode"
    echo.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    echo.chmod(0o700)
    line = shell_command(fleet, fleet.device(7))
    done = subprocess.run(
        ["sh", "-c", line], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    arguments, environment = json.loads(done.stdout)
    assert arguments == device_command(fleet, fleet.device(7))[1:]
    assert device_environment(fleet, fleet.device(7)).items() <= environment.items()


def test_the_environment_keeps_flower_quiet_and_apart(fleet: Fleet) -> None:
    first, second = (device_environment(fleet, device) for device in fleet.devices)
    assert first["FLWR_HOME"] != second["FLWR_HOME"]  # else they unpack an app over each other
    wanted = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    assert wanted.items() <= first.items()


def test_the_server_needs_no_more_than_its_parsers_know(fleet: Fleet) -> None:
    superlink = superlink_parser().parse_args(superlink_command(fleet)[1:])
    assert (superlink.host, superlink.port) == ("127.0.0.1", 8000)
    assert superlink.enable_supernode_auth
    assert not superlink.insecure
    assert superlink.isolation == "process"
    assert superlink.database == "/var/lib/wildflower/clinic/processes/superlink/superlink.db"
    superexec = superexec_parser().parse_args(superexec_command(fleet)[1:])
    assert superexec.runtime_api_address == "127.0.0.1:8000"
    assert superexec.superexec_auth_secret_file == superlink.superexec_auth_secret_file
    assert superexec.root_certificates == superlink.ssl_ca_certfile


def test_a_unit_runs_the_devices_command(fleet: Fleet) -> None:
    for device in fleet.devices:
        text = systemd_unit(fleet, device, environment=Path("/opt/w"))
        program, *arguments = words(parsed(text)["Service"]["ExecStart"], command=True)
        assert program == "/opt/w/bin/flower-supernode"
        assert arguments == device_command(fleet, device)[1:]
        found = variables(text)
        assert device_environment(fleet, device).items() <= found.items()
        assert found["PATH"].startswith("/opt/w/bin:")  # the SuperNode starts helpers by name


def test_a_restarted_node_is_retried_until_flower_takes_it_back(fleet: Fleet) -> None:
    """For up to a minute after a crash it is refused, which must not be the end of the unit."""
    unit = parsed(systemd_unit(fleet, fleet.device(7)))
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    pause = float(unit["Service"]["RestartSec"])
    assert pause == NODE_RESTART_SECONDS
    assert HEARTBEAT_LIMIT / 10 < pause < HEARTBEAT_LIMIT


def test_a_superlink_is_back_long_before_runs_are_given_up(fleet: Fleet) -> None:
    unit = parsed(server_unit(fleet)["wildflower-clinic-superlink.service"])
    assert unit["Service"]["Restart"] == "always"
    assert float(unit["Service"]["RestartSec"]) < HEARTBEAT_LIMIT / 10


def test_a_service_writes_in_its_own_places_only(fleet: Fleet) -> None:
    service = parsed(systemd_unit(fleet, fleet.device(2)))["Service"]
    home = "/var/lib/wildflower/clinic/processes/client-2"
    assert service["ProtectSystem"] == "strict"
    assert words(service["ReadWritePaths"]) == [home, "/srv/state of 2"]
    assert service["StateDirectory"] == home.removeprefix("/var/lib/")
    assert service["WorkingDirectory"] == home
    assert variables(systemd_unit(fleet, fleet.device(2)))["HOME"] == home
    assert service["User"] == "wildflower"
    assert service["NoNewPrivileges"] == "true"
    assert service["CapabilityBoundingSet"] == ""
    assert service["KillMode"] == "mixed"


def test_what_holds_too_much_memory_ends_and_not_the_machine(fleet: Fleet) -> None:
    """An app alone: the process that has started it goes on and says that it ended."""
    units = {
        name.split("-")[-1].partition(".")[0]: text for name, text in server_unit(fleet).items()
    }
    units["device"] = systemd_unit(fleet, fleet.devices[0])
    for name, text in units.items():
        (limit,) = re.findall(r"^MemoryMax=(\d+)%$", text, flags=re.MULTILINE)
        assert 5 <= int(limit) <= 90, name
        policy = "continue" if name in ("superexec", "device") else "stop"
        assert f"\nOOMPolicy={policy}\n" in text, name


def test_a_superlink_that_is_restarted_is_back_before_a_run_gives_up(fleet: Fleet) -> None:
    for name, text in server_unit(fleet).items():
        service = parsed(text)["Service"]
        away = float(service["TimeoutStopSec"]) + float(service["RestartSec"])
        assert away == (7 if "superlink" in name else 32), name


def test_data_is_waited_for(fleet: Fleet) -> None:
    unit = parsed(systemd_unit(fleet, fleet.device(7)))["Unit"]
    assert AWKWARD in words(unit["RequiresMountsFor"])


def test_options_that_would_hide_a_gpu_or_forbid_compiled_code_are_absent(fleet: Fleet) -> None:
    service = parsed(systemd_unit(fleet, fleet.device(7)))["Service"]
    harmful = {"MemoryDenyWriteExecute", "PrivateDevices", "ProtectClock", "DevicePolicy"}
    assert not harmful & set(service)


def test_a_directory_outside_of_systemds_is_not_made_by_it(fleet: Fleet) -> None:
    service = parsed(systemd_unit(fleet, fleet.device(7), Path("/opt/fleet")))["Service"]
    assert "StateDirectory" not in service
    assert words(service["ReadWritePaths"]) == ["/opt/fleet/processes/client-7"]


def test_server_apps_may_write_results(fleet: Fleet) -> None:
    units = server_unit(fleet)
    results = {
        name: "/srv/results" in words(parsed(text)["Service"]["ReadWritePaths"])
        for name, text in units.items()
    }
    assert [name for name, writes in results.items() if writes] == [
        "wildflower-clinic-superexec.service"
    ]


def test_there_is_a_proxy_only_before_a_superlink_that_others_cannot_reach(fleet: Fleet) -> None:
    name = "wildflower-clinic-proxy.service"
    assert name in server_unit(fleet)
    command = words(parsed(server_unit(fleet)[name])["Service"]["ExecStart"], command=True)
    assert command[0] == "/usr/sbin/nginx"
    open_server = Server(address="192.0.2.10", allow_remote=True)
    assert len(server_unit(make_fleet(server=open_server))) == 2
    local = Server(address="127.0.0.1")
    assert len(server_unit(make_fleet(server=local))) == 2


def test_low_ports_are_the_only_privilege(fleet: Fleet) -> None:
    server = dataclasses.replace(fleet.server, port=443)
    units = server_unit(make_fleet(server=server))
    for name, text in units.items():
        service = parsed(text)["Service"]
        wanted = "" if "superexec" in name else "CAP_NET_BIND_SERVICE"
        assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == wanted


def all_units(fleet: Fleet) -> dict[str, str]:
    environment = Path(sys.executable).parents[1]
    units = server_unit(fleet, environment=environment)
    for device in fleet.devices:
        units[f"{device.name}.service"] = systemd_unit(fleet, device, environment=environment)
    return units


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_to_complain_about(fleet: Fleet, tmp_path: Path) -> None:
    """It names unknown keys, values and programs, and leaves the exit status at 0 for some."""
    for name, text in all_units(fleet).items():
        # nginx need not be installed where tests run; every other program is looked for.
        (tmp_path / name).write_text(text.replace("/usr/sbin/nginx", shutil.which("true") or ""))
    done = verify(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    broken = next(tmp_path.glob("client-2.service"))
    broken.write_text(broken.read_text().replace("KillMode=mixed", "KillMode=some"))
    assert "kill mode" in verify(tmp_path).stderr


def verify(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, directory.glob("*.service"))],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_rates_the_exposure_as_low(fleet: Fleet, tmp_path: Path) -> None:
    """Its scale ends at 10; services without any confinement have 9.6."""
    for name, text in all_units(fleet).items():
        path = tmp_path / name
        path.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "security", "--no-pager", "--offline=true", str(path)],
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if "unrecognized option" in done.stderr:
            pytest.skip("this systemd does not rate units offline")
        level = re.search(r"exposure level for .*: ([\d.]+)", done.stdout)
        assert level, done.stdout + done.stderr
        assert float(level[1]) < 4.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server": Server(port=0)}, r"server\.port = 0"),
        ({"secure": False}, "without TLS and keys"),
        ({"devices": (Device(client_id=7, data_dir="~/data"),)}, "home of its own"),
        ({"devices": (Device(client_id=7, data_dir="/a\x07b"),)}, "cannot carry"),
    ],
)
def test_what_cannot_work_elsewhere_is_refused(change: dict[str, Any], message: str) -> None:
    fleet = make_fleet(**change)
    with pytest.raises(ConfigError, match=message):
        systemd_unit(fleet, fleet.devices[0])


FILE = """\
name: clinic
directory: {directory}
server: {{address: 192.0.2.10, listen: 127.0.0.1, allow-remote: true}}
devices: [{{client-id: 3, data-dir: /data}}]
"""


def test_units_can_be_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE.format(directory=tmp_path / "fleet"))
    assert main([str(path), "--client-id", "3"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# wildflower-clinic-client-3.service\n[Unit]\n")
    units = tmp_path / "units"
    units.mkdir()
    assert main([str(path), "--write", str(units)]) == 0
    names = ("proxy.service", "renew.service", "renew.timer", "superexec.service")
    assert sorted(path.name for path in units.iterdir()) == [
        f"wildflower-clinic-{name}" for name in (*names, "superlink.service")
    ]
    assert main([str(path), "--client-id", "4"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
