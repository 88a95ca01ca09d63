"""A device that reaches its SuperLink through nginx, and what else does not get through."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http.client
import re
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.fleet.description import Device, Fleet
from deploy.fleet.device import device_command, device_environment
from deploy.fleet.local import LocalFleet
from deploy.fleet.proxy import fleet_proxy
from deploy.flower.commands import CONNECTION, FlowerClient, flower_environment
from deploy.flower.processes import all_processes, executable, free_port
from deploy.flower.text import log_text
from tests.proxy_support import OUTSIDE, Behind, make_fleet, needs_nginx, running_nginx

pytestmark = [pytest.mark.e2e, needs_nginx]

SECONDS = 120.0
"""How long anything may take here, many times what it needs."""

PROJECT = """
[project]
name = "echo"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "echo_app:server"
clientapp = "echo_app:client"
[tool.flwr.app.config]
min-clients = 1
result = ""
"""

APP = '''
"""One message to one client, larger than Flower's pieces of 5 MiB, and the answer."""
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    deadline = time.monotonic() + 60
    while not (nodes := list(grid.get_node_ids())) and time.monotonic() < deadline:
        time.sleep(0.2)
    sent = np.arange(12 * 2**20, dtype=np.uint8)
    content = RecordDict({"arrays": ArrayRecord([sent])})
    ids = list(grid.push_messages([Message(content, nodes[0], "query")]))
    replies = []
    while not replies and time.monotonic() < deadline:
        time.sleep(0.2)
        replies = list(grid.pull_messages(ids))
    back = replies[0].content["arrays"].to_numpy_ndarrays()[0]
    right = np.array_equal(back, 255 - sent)
    Path(context.run_config["result"]).write_text("right" if right else "wrong")

@client.query()
def query(message, context):
    arrays = message.content["arrays"].to_numpy_ndarrays()
    return Message(RecordDict({"arrays": ArrayRecord([255 - arrays[0]])}), reply_to=message)
'''


@dataclasses.dataclass
class Setting:
    """A SuperLink, nginx before it, and a SuperNode that knows nginx only."""

    running: LocalFleet
    fleet: Fleet
    supernode: subprocess.Popen[bytes]
    log: Path
    app: Path
    outside: FlowerClient
    """Flower's commands from where a device is."""


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    directory = tmp_path_factory.mktemp("proxied")
    devices = (Device(client_id=3, data_dir="/data"),)
    fleet = make_fleet(directory / "fleet", free_port(), devices)
    with (
        LocalFleet(fleet, clients=()) as running,
        running_nginx(fleet_proxy(fleet), directory / "nginx"),
        supernode(fleet, device_command(fleet, devices[0], fleet.directory), directory) as node,
    ):
        app = directory / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(PROJECT)
        (app / "echo_app.py").write_text(APP)
        home = directory / "outside"
        outside = FlowerClient(home, flower_environment(home, {}))
        outside.connect(fleet.server.endpoint, fleet.files.ca)
        yield Setting(running, fleet, node, directory / "supernode.log", app, outside)


@contextlib.contextmanager
def supernode(
    fleet: Fleet, command: list[str], directory: Path, name: str = "supernode"
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a SuperNode as it would run on its own machine."""
    environment = device_environment(fleet, fleet.devices[0], fleet.directory)
    command[command.index("--port") + 1] = str(free_port())
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [executable(command[0]), *command[1:]], stdout=log, stderr=subprocess.STDOUT,
            cwd=directory, env=flower_environment(Path(environment["FLWR_HOME"]), environment),
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for child, (_, session) in all_processes().items():
            if session == process.pid:
                child.send_signal(signal.SIGKILL)
        process.wait(10)


def resident(pid: int) -> float:
    """Return what a process holds in memory, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1000


def stalled(behind: Behind, mebibytes: int) -> http.client.HTTPSConnection:
    """Send that much of a call that says it is larger, as far as it is taken."""
    kind = {"content-type": "application/protobuf"}  # else the SuperLink does not read it
    connection = behind.begin(kind, (mebibytes + 1) * 2**20)
    with contextlib.suppress(OSError):  # refused in the middle
        for _ in range(mebibytes):
            connection.send(bytes(2**20))
    return connection


def test_the_superlink_does_not_grow_by_calls_of_strangers(setting: Setting) -> None:
    """Nine that stall after 59 MiB cost it 550 MB where a proxy passes bodies on as they come."""
    behind = Behind(setting.fleet)
    pid = setting.running.processes["superlink"].pid
    assert pid
    before = resident(pid)
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        connections = list(pool.map(lambda _: stalled(behind, 59), range(9)))
    time.sleep(1)
    grown = resident(pid) - before
    for connection in connections:
        connection.close()
    assert grown < 50, f"{grown} MB"


def post(fleet: Fleet, host: str, path: str) -> int:
    trust = ssl.create_default_context(cafile=str(fleet.files.ca))
    connection = http.client.HTTPSConnection(host, fleet.server.port, timeout=10, context=trust)
    try:
        connection.request("POST", path, b"", {"content-type": "application/x-protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_supernode_answers_a_run_through_the_proxy(setting: Setting, tmp_path: Path) -> None:
    """With its key checked by the SuperLink, and 12 MB in both directions."""
    result = tmp_path / "result"
    run_id = setting.running.submit({"result": str(result)}, setting.app)
    run = setting.running.wait(run_id, timeout=SECONDS)
    assert run.completed, run.log + log_text(setting.log)
    assert result.read_text() == "right"
    assert setting.supernode.poll() is None


def test_devices_cannot_use_flowers_commands(setting: Setting) -> None:
    for command in (
        ["run", str(setting.app), CONNECTION],
        ["supernode", "ls", CONNECTION],
    ):
        code, text = setting.outside.flwr(*command)
        assert code == 1
        assert "404" in text
    # The same commands work from the server itself; the refused run is not there.
    home = setting.fleet.files.of("flwr")
    inside = FlowerClient(home, flower_environment(home, {}))
    runs = inside.flwr_json("ls", CONNECTION, "--format", "json")["runs"]
    assert len(runs) <= 1  # that of the test before, if it ran


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs", "/v1/control/list-nodes", "/v1/runtime/get-nodes",
        "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "/openapi.json",
    ],
)  # fmt: skip
def test_the_other_apis_are_there_but_not_through_the_proxy(setting: Setting, path: str) -> None:
    assert post(setting.fleet, OUTSIDE, path) == 404
    if "/../" not in path and "%" not in path:
        assert post(setting.fleet, "127.0.0.1", path) != 404


def test_a_supernode_without_a_key_ends_instead_of_hanging(
    setting: Setting, tmp_path: Path
) -> None:
    """A proxy that answered 403 would leave it hanging with a traceback."""
    command = device_command(setting.fleet, setting.fleet.devices[0], setting.fleet.directory)
    at = command.index("--auth-supernode-private-key")
    del command[at : at + 2]
    started = time.monotonic()
    with supernode(setting.fleet, command, tmp_path, "keyless") as node:
        assert node.wait(SECONDS) == 1
    assert "404" in log_text(tmp_path / "keyless.log")
    assert time.monotonic() - started < SECONDS
