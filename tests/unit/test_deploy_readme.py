"""deploy/README.md: its commands exist, its files are the code's, its fleet can be read."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from client_app.node import NODE_KEYS
from deploy.fleet import command as fleet_command
from deploy.fleet import device as device_module
from deploy.fleet import proxy as proxy_module
from deploy.fleet.description import Files, Fleet, Tls
from deploy.fleet.device import behind_proxy, server_unit, systemd_unit
from deploy.fleet.fleet_file import read_fleet
from deploy.fleet.proxy import (
    ADDRESS_CALLS,
    ADDRESS_RATE,
    BODY_MIB,
    DEVICE_CALLS,
    FLEET_CALLS,
    fleet_proxy,
)
from deploy.fleet.renewal_units import renewal_units

DEPLOY = Path(__file__).parents[2] / "deploy"
README = (DEPLOY / "README.md").read_text(encoding="utf-8")
PROSE = " ".join(README.split())  # wherever its lines break
FLEET_FILE = "/etc/wildflower/clinic.yaml"
ONE_MACHINE = "deploy/fleet.yaml"
LINES = [
    line.removeprefix("as_wildflower ")
    for block in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
]


def commands(program: str) -> list[list[str]]:
    """Return the arguments of every command that runs a program, without redirections."""
    found = []
    for line in LINES:
        words = shlex.split(line.partition(" > ")[0], comments=True)
        while words and re.fullmatch(r"\w+=\S*", words[0]):
            del words[0]
        if words and Path(words[0]).name == program:
            found.append(words[1:])
    assert found, program
    return found


@pytest.fixture(scope="module")
def fleet_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    path = tmp_path_factory.mktemp("etc") / "clinic.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def fleet(fleet_file: Path) -> Fleet:
    return read_fleet(fleet_file)


def test_the_fleet_is_two_unlike_devices_behind_a_proxy(fleet: Fleet) -> None:
    assert len({device.model for device in fleet.devices}) == 2
    assert behind_proxy(fleet)
    assert "listen 192.0.2.10:8000 ssl;" in fleet_proxy(fleet)
    for device in fleet.devices:
        systemd_unit(fleet, device)


def test_the_command_line_knows_what_is_used(fleet: Fleet) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    fleet_command.add_arguments(parser)
    used = set()
    for arguments in commands("wildflower"):
        assert arguments[0] == "fleet"
        options = parser.parse_args(arguments[1:])
        used.add(options.fleet_command)
        described = fleet
        if str(options.file) == ONE_MACHINE:
            described = read_fleet(DEPLOY.parent / ONE_MACHINE)
        else:
            assert str(options.file) == FLEET_FILE
        if options.fleet_command == "run":
            assert options.preset in described.presets
    assert used == {"keys", "up", "device", "run", "status", "add", "revoke", "remove", "renew"}


def test_modules_print_and_write_what_is_said(
    fleet_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []
    for _, module, *arguments in commands("python"):
        places = {FLEET_FILE: str(fleet_file)}
        if "--write" in arguments:
            places[arguments[arguments.index("--write") + 1]] = str(tmp_path)
        module_main = {
            "deploy.fleet.proxy": proxy_module.main,
            "deploy.fleet.device": device_module.main,
        }
        assert module_main[module]([places.get(word, word) for word in arguments]) == 0
        ran.append(module)
    assert ran == ["deploy.fleet.proxy", "deploy.fleet.device", "deploy.fleet.device"]
    assert "location = /health" in capsys.readouterr().out
    written = {path.stem for path in tmp_path.glob("*.service")}
    for arguments in commands("systemctl"):
        names = {word for word in arguments if re.fullmatch(r"wildflower-[\w-]+", word)}
        assert names <= written
    assert len(written) == 5


def test_units_are_named_as_systemd_will_know_them(fleet: Fleet) -> None:
    named = set(re.findall(r"(wildflower-clinic-[a-z]+)(?![\w*-])", README))
    units = {**server_unit(fleet), **renewal_units(fleet)}
    assert named == {Path(name).stem for name in units}


def test_flowers_command_line_knows_what_is_used() -> None:
    from flwr.cli.app import app

    for arguments in commands("flwr"):
        command, rest, context = get_command(app), list(arguments), None
        while hasattr(command, "commands") and rest:
            name = rest.pop(0)
            assert name in command.commands, arguments
            command = command.commands[name]
        context = command.make_context("flwr", rest)  # refuses unknown options
        assert context.params


def test_files_named_are_where_the_code_puts_them(fleet: Fleet) -> None:
    place = "/var/lib/wildflower/clinic"
    assert str(fleet.directory) == place
    files = Files(fleet.directory, Tls())
    known = {
        str(path)
        for path in (
            files.ca, files.certificate, files.certificate_key, files.ca_key, files.secret,
            files.of("superlink") / "superlink.db", files.of("proxy"), files.of("superexec"),
            files.of("superexec") / "wildflower", files.of("proxy") / "nginx.conf",
            files.of("flwr"), files.of("flwr") / "config.toml", files.of("client-1"),
            fleet.directory, fleet.directory / "keys" / "client-2.pub",
        )
    }  # fmt: skip
    named = set(re.findall(rf"{place}[\w./-]*[\w]", README))
    assert len(named) > 6
    assert named <= known
    table = README.partition("## Where state is kept")[2].partition("On a device")[0]
    for name in re.findall(r"`([\w./-]+\.(?:key|crt|secret|db|toml))`", table):
        assert f"{place}/{name}" in known


def test_compose_is_told_what_it_asks_for() -> None:
    text = (DEPLOY / "compose.yaml").read_text() + (DEPLOY / "compose.cuda.yaml").read_text()
    asked = set(re.findall(r"\$\{(\w+)", text))
    named = set(re.findall(r"WILDFLOWER_[A-Z_]+", README))
    assert named == asked
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for arguments in commands("docker"):
        assert arguments[0] == "compose"
        for file in (arguments[i + 1] for i, word in enumerate(arguments) if word == "-f"):
            assert (DEPLOY / file).is_file()
        action = next(word for word in arguments[1:] if word in ("up", "ps"))
        rest = arguments[arguments.index(action) + 1 :]
        assert {word for word in rest if not word.startswith("-")} <= set(services)


def test_the_containers_directories_are_those_that_compose_mounts() -> None:
    made = {
        path.replace("$WILDFLOWER_FLEET", "${WILDFLOWER_FLEET:?}")
        for line in LINES
        for path in re.findall(r"\$WILDFLOWER_FLEET/[\w/.-]+", line)
    }
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    mounted = {
        volume.removesuffix(":ro").rpartition(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if "WILDFLOWER_FLEET" in volume
    }
    secrets = {s["file"] for s in compose["secrets"].values() if "/processes/" in s["file"]}
    assert made == mounted | secrets


def test_a_database_in_use_is_copied_whole(tmp_path: Path) -> None:
    """The backup's own command, while another connection holds unwritten pages."""
    import sqlite3

    line = next(line for line in LINES if line.startswith("python3 -c"))
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    words = shlex.split(line)
    words[3:] = [str(source), str(target)]
    live = sqlite3.connect(source)
    live.execute("pragma journal_mode = wal")
    live.execute("create table t (x)")
    live.executemany("insert into t values (?)", [(i,) for i in range(1000)])
    live.commit()
    live.execute("insert into t values (-1)")  # not committed
    subprocess.run(words, check=True, timeout=60)
    live.rollback()
    live.close()
    (count,) = sqlite3.connect(target).execute("select count(*) from t").fetchone()
    assert count == 1000


def test_numbers_in_the_text_are_the_codes() -> None:
    words = {10: "ten"}
    assert f"passes on the {words[len(FLEET_CALLS)]} calls" in PROSE
    assert f"more than {BODY_MIB} MiB" in PROSE
    limits = (
        f"{DEVICE_CALLS} calls at a time, an address {ADDRESS_CALLS}, and {ADDRESS_RATE} a second"
    )
    assert limits in PROSE
    assert f"{device_module.NODE_RESTART_SECONDS:.0f} s on a device" in PROSE
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    assert f"more than {SYSTEM_TIME_TOLERANCE} s ahead" in PROSE
    assert TIMESTAMP_TOLERANCE == 5 * 60  # "five minutes behind"


def test_every_node_key_is_explained() -> None:
    table = README.split("| node-config key", 1)[1].split("\n\n", 1)[0]
    named = {key for row in table.splitlines() for key in re.findall(r"[a-z-]+", row.split("|")[1])}
    assert set(NODE_KEYS) <= named


def test_no_address_of_a_registry_is_named() -> None:
    urls = re.findall(r"https?://([\w.-]+)", README)
    assert set(urls) <= {"192.0.2.10"}
