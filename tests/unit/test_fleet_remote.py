"""A fleet whose server no `fleet up` runs: its commands work on what answers, or say what to do."""

from __future__ import annotations

import http.server
import json
import os
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import deploy.fleet.command
import deploy.fleet.remote
from deploy.cli import main
from deploy.fleet.description import Fleet
from deploy.fleet.device_map import device_map, header_of
from deploy.fleet.fleet_file import read_fleet
from deploy.fleet.identities import make_identities
from deploy.fleet.specs import Specs
from deploy.fleet.status import fleet_lock, read_state
from deploy.fleet.superlink_nodes import known_nodes, public_key
from deploy.flower.commands import FlowerClient, FlowerError, FlowerRun
from deploy.flower.processes import free_port
from strategies.base.options import ConfigError


class Health(http.server.BaseHTTPRequestHandler):
    """Answers as a SuperLink does that is asked whether it is ready."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Flower(FlowerClient):
    """Stands for Flower's command line on a server with two devices."""

    nodes: Mapping[str, str]
    unregistered: list[str]

    def flwr(self, *arguments: str) -> tuple[int, str]:
        assert arguments[:2] == ("supernode", "unregister")
        known = arguments[2] not in self.unregistered
        self.unregistered.append(arguments[2])
        return (0, "unregistered") if known else (1, "Not found")

    def flwr_json(self, *arguments: str) -> dict[str, Any]:
        if arguments[1] == "register":
            assert arguments[4:6] == ("--name", Path(arguments[2]).stem)
            return {"node-id": "77"}
        assert arguments[:2] == ("supernode", "ls")
        assert "https" not in (self.home / "config.toml").read_text()
        listed = [
            {"node-id": number, "status": status, "offline-at": "2026-01-02T03:04:05Z"}
            for number, status in self.nodes.items()
        ]
        return {"nodes": listed}

    def submit(self, *arguments: Any, **options: Any) -> str:
        return "4711"

    def wait(self, run_id: str, **options: Any) -> FlowerRun:
        assert options["may_return"]()
        if "12" not in self.nodes:
            raise FlowerError("the SuperLink is gone")
        return FlowerRun(run_id, "finished:completed", "", "")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    content = {
        "name": "clinic", "directory": str(tmp_path / "clinic"), "server": {"port": free_port()},
        "devices": [{"client-id": i, "data-dir": "/data"} for i in range(2)],
        "presets": {"local": {"method": "local"}},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def fleet(file: Path) -> Fleet:
    fleet = read_fleet(file)
    make_identities(fleet)
    return fleet


@pytest.fixture
def served(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Something with the fleet's certificate answers, and devices 0 and 1 are registered."""
    server = http.server.HTTPServer(("127.0.0.1", fleet.server.port), Health)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(fleet.files.certificate, fleet.files.certificate_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    database = Specs(fleet, {}).database
    database.parent.mkdir(parents=True)
    numbers = {public_key(fleet, fleet.device(0)): "11", public_key(fleet, fleet.device(1)): "12"}
    database.with_suffix(".nodes.json").write_text(json.dumps(numbers))
    assert known_nodes(database) == numbers
    monkeypatch.setattr(
        deploy.fleet.remote, "flower_client", lambda of: Flower(of.files.of("flwr"), {})
    )
    monkeypatch.setattr(Flower, "nodes", {"11": "online", "12": "online"}, raising=False)
    monkeypatch.setattr(Flower, "unregistered", [], raising=False)
    yield fleet
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_status_asks_the_superlink(
    served: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["fleet", "status", str(served.source)]
    assert main(command) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1][:3] == ["superlink", str(served.server.port), "online"]
    assert [line[:2] for line in lines[2:]] == [["client-0", "online"], ["client-1", "online"]]
    config = (served.files.of("flwr") / "config.toml").read_text()
    assert f'address = "127.0.0.1:{served.server.port}"' in config
    assert str(served.files.ca) in config
    monkeypatch.setattr(Flower, "nodes", {"11": "online", "13": "online"})
    assert main(command) == 1
    assert "client-1  " in (text := capsys.readouterr().out)
    assert "not known" in text
    monkeypatch.setattr(Flower, "nodes", {"11": "offline", "12": "registered"})
    assert main(command) == 1
    text = capsys.readouterr().out
    assert re.search("client-0 +offline +2026-01-02T03:04:05Z", text)
    assert re.search("client-1 +registered +never", text)


def test_status_shows_what_devices_said_when_they_last_registered(
    served: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = served.files.of("superexec") / "wildflower"
    head = "client,model,machine\n"
    for number, rows in enumerate(
        ("0,cnn1,old\n1,cnn2,'=1\n", '0,cnn5,"wildflower 0.9.0, 2.0 GB"\n', "1,cnn3,\n", "\x00")
    ):
        table = runs / f"run{number}" / "clients.csv"
        table.parent.mkdir(parents=True)
        table.write_text(head + rows)
        os.utime(table, (number, number))
    assert main(["fleet", "status", str(served.source)]) == 0
    text = capsys.readouterr().out
    assert re.search("client-0 +cnn5 +wildflower 0.9.0, 2.0 GB", text)
    assert re.search("client-1 +cnn2 +'=1", text)  # a simulation's, later, says nothing of it


def test_a_revoked_device_is_out_until_it_gets_a_new_key(
    served: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    device, source = served.device(1), str(served.source)
    key = served.files.key(device)
    old = header_of(key.with_suffix(".pub"))
    assert f'"{old}" "client-1";' in device_map(served).read_text()
    assert main(["fleet", "revoke", source, "1"]) == 0
    assert Flower.unregistered == ["12"]
    assert "client-1 is revoked" in capsys.readouterr().out
    assert not key.exists()
    assert f'"{old}" "revoked client-1";' in device_map(served).read_text()
    # No other command lets it in again.
    make_identities(served)
    assert not key.exists()
    assert main(["fleet", "status", source]) == 0
    assert re.search("client-1 +revoked", capsys.readouterr().out)
    assert main(["fleet", "run", source]) == 2
    error = capsys.readouterr().err
    assert "min-clients = 2: expected at most 1, because client-1 is revoked" in error
    # A second call does no harm, and goes on where a first one was cut off.
    assert main(["fleet", "revoke", source, "1"]) == 0
    assert main(["fleet", "add", source, "1"]) == 0
    new = header_of(key.with_suffix(".pub"))
    assert new != old
    text = device_map(served).read_text()
    assert f'"{new}" "client-1";' in text
    assert f'"{old}" "revoked client-1";' in text
    assert known_nodes(Specs(served, {}).database)[public_key(served, device)] == "77"
    capsys.readouterr()


def test_a_device_that_the_file_does_not_name_any_more_can_be_removed(
    served: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(served.source.read_text())
    content["devices"] = content["devices"][:1]
    served.source.write_text(yaml.safe_dump(content))
    assert main(["fleet", "remove", str(served.source), "1"]) == 0
    assert Flower.unregistered == ["12"]
    assert capsys.readouterr().out.endswith("for ever\n")
    for wrong, message in (("9", "has no key of it"), ("x", "expected that of a device")):
        assert main(["fleet", "revoke", str(served.source), wrong]) == 2
        assert message in capsys.readouterr().err
    assert main(["fleet", "add", str(served.source), "1"]) == 2  # to be described first
    assert "client-id = 1: no device of" in capsys.readouterr().err


def test_a_key_that_was_registered_by_hand_is_named_with_what_to_do(
    served: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    database = Specs(served, {}).database
    database.with_suffix(".nodes.json").write_text("{}")
    assert main(["fleet", "revoke", str(served.source), "0"]) == 1
    assert "`flwr supernode unregister NUMBER private`" in capsys.readouterr().err
    assert '"revoked client-0"' in device_map(served).read_text()


def test_a_run_goes_to_the_superlink(
    served: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["fleet", "run", str(served.source)]
    assert main(command) == 0
    assert "run 4711: finished:completed" in capsys.readouterr().out
    monkeypatch.setattr(Flower, "nodes", {})
    assert main(command) == 1
    assert capsys.readouterr().err == "wildflower fleet: the SuperLink is gone\n"


def test_what_others_have_started_is_ended_by_them(
    served: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "down", str(served.source)]) == 1
    assert "`systemctl stop 'wildflower-clinic-*'` or `docker compose down`" in (
        capsys.readouterr().err
    )


def test_a_server_that_is_not_there_or_only_starts(fleet: Fleet) -> None:
    with pytest.raises(ConfigError, match=r"does not run; `wildflower fleet up .* or the units"):
        read_state(fleet)
    with fleet_lock(fleet), pytest.raises(ConfigError, match="is being started; try again soon"):
        read_state(fleet)


def test_another_authority_is_not_this_fleet(served: Fleet, tmp_path: Path) -> None:
    other = read_fleet(served.source)
    for path in (other.files.ca, other.files.ca_key):
        path.rename(path.with_suffix(".old"))
    for path in (other.files.certificate, other.files.certificate_key):
        path.unlink()
    make_identities(other)
    with pytest.raises(ConfigError, match="does not run"):
        read_state(other)


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        (["wildflower: run fedre-1 in /home/of/runs/fedre-1", "round 1/3"],
         """-c "resume='fedre-1'" goes on with it"""),
        (['{"level": "info", "text": "wildflower: run my.run in /runs/my.run"}'],
         """-c "resume='my.run'" goes on with it"""),
        (["INFO : Start `flwr-serverapp` process"], "there is nothing to resume"),
    ],
)  # fmt: skip
def test_a_run_that_is_stopped_says_how_to_go_on_with_it_by_its_name(
    served: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    lines: list[str], advice: str,
) -> None:  # fmt: skip
    stopped: list[str] = []

    def interrupted(self: Flower, run_id: str, **options: Any) -> FlowerRun:
        for line in lines:
            options["on_line"](line)
        raise KeyboardInterrupt

    monkeypatch.setattr(Flower, "wait", interrupted)
    monkeypatch.setattr(Flower, "stop", lambda self, run_id: stopped.append(run_id))
    assert main(["fleet", "run", str(served.source)]) == 130
    assert stopped == ["4711"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("run 4711: stopped; ")
    assert last.endswith(advice)
