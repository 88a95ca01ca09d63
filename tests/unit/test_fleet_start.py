"""Starting a fleet: what is checked before, how processes are started, what others see of them."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from deploy.fleet.description import Device, Fleet, Restarts, Server, Tls
from deploy.fleet.identities import make_identities
from deploy.fleet.log_files import LOG_BYTES, put_logs_aside
from deploy.fleet.preflight import check_device, usable_port
from deploy.fleet.specs import MARK, PROCESS_MARK, Specs, fleet_mark, flower_client
from deploy.fleet.status import (
    fleet_lock,
    forget_state,
    health,
    is_running,
    read_state,
    wait_for_end,
    write_state,
)
from deploy.fleet.superlink_nodes import Registry
from deploy.fleet.supervisor import HELD, RUNNING, View
from deploy.flower.commands import FlowerClient, FlowerError
from deploy.flower.processes import free_port
from strategies.base.options import ConfigError


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(
        name="test",
        directory=tmp_path / "fleet",
        server=Server(port=4711),
        tls=Tls(),
        restarts=Restarts(),
        devices=(
            Device(client_id=0, partition_id=0, num_partitions=2, threads=3),
            Device(client_id=1, partition_id=1, num_partitions=2),
        ),
        presets={},
        source=tmp_path / "fleet.yaml",
    )


def argument(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_every_process_has_tls_keys_and_a_home_of_its_own(fleet: Fleet) -> None:
    specs = Specs(fleet, {"EXTRA": "1"})
    nodes = [specs.supernode(device, 5000 + device.client_id) for device in fleet.devices]
    everything = [specs.superlink(), specs.superexec(), *nodes]
    assert len({spec.environment["FLWR_HOME"] for spec in everything}) == 4
    assert len({spec.log for spec in everything}) == len({spec.mark for spec in everything}) == 4
    for spec in everything:
        assert "--insecure" not in spec.command
        assert spec.environment["EXTRA"] == "1"
        assert spec.environment["FLWR_TELEMETRY_ENABLED"] == "0"
        assert spec.environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert spec.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
        assert spec.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] == "0.5"
        assert f"{MARK}={spec.environment[MARK]}" == specs.mark
        assert f"{PROCESS_MARK}={spec.environment[PROCESS_MARK]}" == spec.mark
        assert Path(spec.environment["FLWR_HOME"]).is_relative_to(fleet.directory)
    link = specs.superlink().command
    assert argument(link, "--isolation") == "process"
    assert argument(link, "--database") == str(specs.database)
    assert argument(link, "--superexec-auth-secret-file") == str(fleet.files.secret)
    assert "--enable-supernode-auth" in link
    node = nodes[0].command
    assert argument(node, "--superlink") == "127.0.0.1:4711"
    assert argument(node, "--auth-supernode-private-key") == str(fleet.files.key(fleet.devices[0]))
    config = parse_config_args([argument(node, "--node-config")])
    assert config["state-dir"] == str(fleet.directory / "processes" / "client-0" / "state")
    assert nodes[0].environment["OMP_NUM_THREADS"] == "3"


def test_marks_tell_fleets_starts_and_devices_apart(fleet: Fleet) -> None:
    """A mark is looked for as a part of an environment: none may begin with another."""
    other = dataclasses.replace(fleet, directory=fleet.directory.with_name("fleet2"))
    many = dataclasses.replace(fleet, devices=tuple(Device(client_id=i) for i in (1, 11)))
    first, second = Specs(many, {}), Specs(many, {})
    assert first.mark.startswith(fleet_mark(fleet.directory))
    assert not Specs(other, {}).mark.startswith(fleet_mark(fleet.directory))
    assert first.mark != second.mark
    marks = [first.supernode(device, 1).mark for device in many.devices]
    assert not marks[1].startswith(marks[0])


def test_insecure_is_said_to_every_process_and_has_its_own_database(fleet: Fleet) -> None:
    specs = Specs(dataclasses.replace(fleet, secure=False), {})
    for spec in (specs.superlink(), specs.superexec(), specs.supernode(fleet.devices[0], 1)):
        assert "--insecure" in spec.command
        assert not [part for part in spec.command if "ssl" in part or "auth" in part]
    assert specs.database != Specs(fleet, {}).database


class Answers(FlowerClient):
    """Stands for Flower's command line: remembers what was asked, and answers."""

    def __init__(self, home: Path, *answers: Any) -> None:
        super().__init__(home, {})
        self.asked: list[tuple[str, ...]] = []
        self.answers = list(answers)

    def flwr_json(self, *arguments: str) -> dict[str, Any]:
        self.asked.append(arguments)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def stop(self, run_id: str) -> None:
        self.asked.append(("stop", run_id))


def test_a_key_is_registered_once_as_long_as_the_database_lives(fleet: Fleet) -> None:
    make_identities(fleet)
    database = fleet.directory / "superlink.db"
    client = Answers(fleet.directory, {"node-id": "17"}, FlowerError("[code: 23] already in use."))
    registry = Registry(fleet, database, client)
    for device in (*fleet.devices, *fleet.devices):
        registry.register(device)
    assert [asked[:2] for asked in client.asked] == [("supernode", "register")] * 2
    assert client.asked[0][2] == str(fleet.files.key(fleet.devices[0])) + ".pub"
    assert "client-0" in client.asked[0]
    database.touch()
    silent = Answers(fleet.directory)
    Registry(fleet, database, silent).register(fleet.devices[0])
    assert silent.asked == []
    database.unlink()
    again = Answers(fleet.directory, {"node-id": "18"})
    Registry(fleet, database, again).register(fleet.devices[0])
    assert len(again.asked) == 1


def test_a_refused_key_is_named(fleet: Fleet) -> None:
    make_identities(fleet)
    client = Answers(fleet.directory, FlowerError("flwr supernode failed: no"))
    with pytest.raises(FlowerError, match=r"client-1: flwr supernode failed: no"):
        Registry(fleet, fleet.directory / "db", client).register(fleet.devices[1])


def test_runs_of_an_earlier_start_are_stopped(fleet: Fleet) -> None:
    fleet.directory.mkdir()
    runs = [{"run-id": 1, "status": "finished:failed"}, {"run-id": 2, "status": "running"}]
    database = fleet.directory / "db"
    assert Registry(fleet, database, Answers(fleet.directory)).stop_dead_runs() == []
    database.touch()
    client = Answers(fleet.directory, {"runs": runs})
    assert Registry(fleet, database, client).stop_dead_runs() == ["2"]
    assert client.asked[1:] == [("stop", "2")]


def test_others_see_a_fleet_only_while_it_runs(fleet: Fleet) -> None:
    fleet.directory.mkdir()
    log = fleet.directory / "client-0.log"
    log.write_text("SuperNode ID: 1\n=== again\n")
    view = View("client-0", RUNNING, os.getpid(), 5000, 0, str(log), log_start=0)
    chosen = dataclasses.replace(fleet, server=Server(port=free_port()), secure=False)
    with fleet_lock(fleet):
        with pytest.raises(ConfigError, match="is being started"):
            read_state(fleet)
        write_state(chosen, {"client-0": view})
        state = read_state(fleet)
        assert is_running(fleet)
        assert not wait_for_end(fleet, 0.2)
    assert (state.fleet, state.processes) == (chosen, (view,))
    assert state.parent is not None
    assert state.parent.pid == os.getpid()
    assert wait_for_end(fleet, 0.2)
    with pytest.raises(ConfigError, match=r"fleet\.yaml: fleet test does not run; `wildflower"):
        read_state(fleet)
    forget_state(fleet)
    forget_state(fleet)
    assert health(fleet, view) == "online"
    assert health(fleet, dataclasses.replace(view, log_start=17)) == "starting"
    assert health(fleet, dataclasses.replace(view, state=HELD)) == "held"
    assert health(chosen, dataclasses.replace(view, name="superlink")) == "starting"


def test_a_taken_port_is_named(fleet: Fleet) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"fleet\.yaml: server\.port = {port}: cannot"):
            usable_port(dataclasses.replace(fleet, server=Server(port=port)))
    assert usable_port(dataclasses.replace(fleet, server=Server(port=port))) == port
    assert usable_port(dataclasses.replace(fleet, server=Server(port=0))) > 0


def test_a_device_that_cannot_work_here_is_named(fleet: Fleet, tmp_path: Path) -> None:
    check_device(Device(client_id=1, data_dir=str(tmp_path), device="cpu"), fleet)
    with pytest.raises(ConfigError, match=r"client 1: data-dir = '/nowhere': there is no such"):
        check_device(Device(client_id=1, data_dir="/nowhere"), fleet)
    with pytest.raises(ConfigError, match=r"client 2: device = 'cuda:99': this machine has"):
        check_device(Device(client_id=2, partition_id=0, device="cuda:99"), fleet)


def test_long_logs_are_put_aside(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    put_logs_aside(logs)
    (logs / "short.log").write_text("short")
    with (logs / "long.log").open("wb") as file:
        file.truncate(LOG_BYTES + 1)
    put_logs_aside(logs)
    assert sorted(path.name for path in logs.iterdir()) == ["long.log.previous", "short.log"]


def test_flowers_commands_find_the_fleet(fleet: Fleet) -> None:
    client = flower_client(fleet)
    client.connect("127.0.0.1:4711", fleet.files.ca)
    text = (client.home / "config.toml").read_text()
    assert 'address = "127.0.0.1:4711"' in text
    assert f"root-certificates = {json.dumps(str(fleet.files.ca))}" in text
    assert "insecure" not in text
    client.connect("127.0.0.1:4711")
    assert "insecure = true" in (client.home / "config.toml").read_text()
    assert client.environment["FLWR_HOME"] == str(client.home)
