"""The proxy: what nginx, run for real before a server that notes requests, lets through."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import inspect
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore.error import FlowerError

from deploy.fleet.description import Tls
from deploy.fleet.device_map import write_device_map
from deploy.fleet.identities import make_identities
from deploy.fleet.membership import reload_proxy
from deploy.fleet.proxy import (
    ADDRESS_BURST,
    ADDRESS_CALLS,
    ADDRESS_RATE,
    BODY_MIB,
    DEVICE_CALLS,
    FLEET_CALLS,
    compose_proxy,
    fleet_proxy,
    main,
    nginx_config,
)
from deploy.fleet.revoked import put_aside
from deploy.flower.processes import free_port
from strategies.base.options import ConfigError
from tests.proxy_support import (
    NGINX,
    OUTSIDE,
    Behind,
    as_myself,
    make_fleet,
    needs_nginx,
    running_nginx,
    server_behind,
)

COMMITTED = Path(__file__).parents[2] / "deploy" / "nginx.conf"


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    directory = tmp_path_factory.mktemp("fleet")
    fleet = make_fleet(directory, free_port())
    make_identities(fleet)
    with server_behind(fleet) as server, running_nginx(fleet_proxy(fleet), directory / "nginx"):
        yield server


def test_the_committed_file_is_what_the_module_renders(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--compose"]) == 0
    assert capsys.readouterr().out == compose_proxy() == COMMITTED.read_text()


def test_the_calls_are_those_of_flowers_supernode() -> None:
    from flwr.superlink.routers.fleet.router import router
    from flwr.supernode import fleet_http_client

    source = inspect.getsource(fleet_http_client)
    used = set(re.findall(r'path="/v1/fleet/([^"]+)"', source))
    assert used - {"register-node", "unregister-node"} == set(FLEET_CALLS)
    served = {(m, r.path) for r in router.routes for m in r.methods}
    assert {("POST", f"/v1/fleet/{call}") for call in used} == served


def test_headers_that_prove_who_a_node_is_have_names_that_nginx_passes_on() -> None:
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore import constant

    names = (
        TIMESTAMP_HEADER,
        constant.FLEET_HTTP_PUBLIC_KEY_HEADER,
        constant.FLEET_HTTP_SIGNATURE_HEADER,
    )
    for name in names:  # it drops names with an underscore, for example
        assert re.fullmatch("[A-Za-z0-9-]+", name)


def test_the_largest_request_has_room_for_flowers_pieces_of_arrays() -> None:
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as PIECE

    assert PIECE + 2**20 <= BODY_MIB * 2**20


@needs_nginx
@pytest.mark.parametrize("call", FLEET_CALLS)
def test_every_call_of_a_supernode_gets_through(behind: Behind, call: str) -> None:
    behind.requests.clear()
    status = behind.ask("POST", f"/v1/fleet/{call}?x=1", b"abc", {"flwr-signature": "c2ln"})
    assert status == (403 if call == "get-run" else 200)  # the SuperLink's own 403 is passed on
    assert behind.requests == [("POST", f"/v1/fleet/{call}")]
    sent = behind.headers[-1]
    assert sent["flwr-signature"] == "c2ln"
    assert sent["x-forwarded-for"] == "127.0.0.1"
    assert sent["connection"] == "close"


@needs_nginx
def test_a_device_cannot_claim_another_address(behind: Behind) -> None:
    behind.ask("POST", "/v1/fleet/get-fab", headers={"X-Forwarded-For": "10.9.9.9"})
    assert behind.headers[-1]["x-forwarded-for"] == "127.0.0.1"


@needs_nginx
@pytest.mark.parametrize("path", ["/health", "/%68ealth", "/x/../health"])
def test_health_can_be_asked(behind: Behind, path: str) -> None:
    behind.requests.clear()
    assert behind.ask("GET", path) == 200
    assert behind.requests == [("GET", "/health")]


REFUSED = [
    "/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/get-nodes", "/v1/fleet/", "/",
    "/docs", "/openapi.json", "/metrics", "/v1/fleet/register-node", "/v1/fleet/unregister-node",
    "/v1/fleet/get-fab/", "/v1/fleet/get-fab/x", "/v1/fleet/../control/list-runs", "/health/x",
    "/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/get-fab/../../control/list-runs", "/HEALTH",
    "/v1/fleet/get-fab%2f..%2f..%2fcontrol%2flist-runs", "/v1/control/list-runs%3f/../x",
    "/v1/control/list-runs%00/v1/fleet/get-fab", "/v1/control/list-runs;/../../fleet/get-fab/x",
    "/v1/fleet/get-fab%0d%0aX:%20y", "/v1/fleet/get-fab%0a", "/V1/FLEET/get-fab", "//v1/control/x",
    "/v1/fleet\\..\\control\\list-runs", "/health%0a",
]  # fmt: skip


@needs_nginx
@pytest.mark.parametrize("path", REFUSED)
def test_nothing_else_gets_through(behind: Behind, path: str) -> None:
    behind.requests.clear()
    for method in ("GET", "POST", "PUT"):
        assert behind.ask(method, path) in (400, 404)
    assert behind.requests == []


@needs_nginx
@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs/../../fleet/get-fab", "/v1/control/list-runs%3f/../../fleet/get-fab",
        "//v1//fleet/get-fab", "/v1/fleet/%67et-fab", "/v1/fleet/./get-fab#/../../control/x",
    ],
)  # fmt: skip
def test_a_spelling_of_a_call_arrives_as_the_call_itself(behind: Behind, path: str) -> None:
    behind.requests.clear()
    assert behind.ask("POST", path) == 200
    assert behind.requests == [("POST", "/v1/fleet/get-fab")]


@needs_nginx
@pytest.mark.parametrize("path", ["/v1/fleet/get-fab", "/health"])
def test_other_methods_are_refused(behind: Behind, path: str) -> None:
    behind.requests.clear()
    for method in ("PUT", "DELETE", "OPTIONS", "POST" if path == "/health" else "GET"):
        assert behind.ask(method, path) in (404, 405)
    assert behind.requests == []


@needs_nginx
def test_a_body_is_passed_on_when_it_is_whole(behind: Behind) -> None:
    """Whoever stalls in the middle of one costs the SuperLink nothing."""
    body, behind.body_bytes = bytes(5 * 2**20 + 1000), 0
    behind.body_started.clear()
    connection = behind.begin(behind.key(), len(body), body[: 5 * 2**20])
    assert not behind.body_started.wait(0.5)
    connection.send(body[5 * 2**20 :])
    assert connection.getresponse().status == 200
    connection.close()
    assert behind.body_bytes == len(body)


@needs_nginx
def test_a_body_that_is_too_large_is_refused_unread(behind: Behind) -> None:
    behind.body_started.clear()
    connection = behind.begin(behind.key(), BODY_MIB * 2**20 + 1)
    assert connection.getresponse().status == 413
    connection.close()
    assert not behind.body_started.is_set()


OTHER_KEY = "LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0K"


@needs_nginx
@pytest.mark.parametrize("headers", [{}, {"flwr-public-key": OTHER_KEY}])
def test_a_call_without_a_devices_key_is_refused_unread(
    behind: Behind, headers: dict[str, str]
) -> None:
    """At its headers: the SuperLink would read all of it before it looks at the key."""
    behind.requests.clear()
    connection = behind.begin(headers, 5 * 2**20)
    answer = connection.getresponse()
    error = FlowerError.from_json(answer.read().decode())
    connection.close()
    assert answer.status == 401  # a SuperNode ends in order
    assert error
    assert "this key is unknown" in str(error.public_details)
    assert behind.requests == []


@needs_nginx
def test_a_key_that_is_not_registered_is_refused_as_the_superlink_does_it(behind: Behind) -> None:
    connection = behind.connect()
    connection.request("POST", "/v1/fleet/activate-node", b"", {"flwr-public-key": OTHER_KEY})
    answer = connection.getresponse()
    error = FlowerError.from_json(answer.read().decode())
    connection.close()
    assert (answer.status, error and error.code) == (412, 2004)
    assert behind.ask("POST", "/refused/activate-node") == 404


@needs_nginx
def test_a_revoked_key_is_refused_as_soon_as_the_proxy_is_told(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", free_port())
    make_identities(fleet)
    prefix = fleet.files.of("proxy")
    with server_behind(fleet) as server, running_nginx(fleet_proxy(fleet), prefix):
        old = server.key()
        assert server.ask("POST", "/v1/fleet/get-fab", headers=old) == 200
        put_aside(fleet, fleet.devices[0])
        write_device_map(fleet)
        assert "reads its files anew" in reload_proxy(fleet)
        deadline = time.monotonic() + 10
        while server.ask("POST", "/v1/fleet/get-fab", headers=old) == 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        connection = server.connect()
        connection.request("POST", "/v1/fleet/activate-node", b"", old)
        answer = connection.getresponse()
        assert answer.status == 412
        assert "this key is revoked" in answer.read().decode()
        connection.close()
        assert server.ask("POST", "/v1/fleet/get-fab", headers=server.key(1)) == 200
    assert reload_proxy(fleet) == ""
    server_elsewhere = dataclasses.replace(fleet.server, address="192.0.2.10")
    behind_one = dataclasses.replace(fleet, server=server_elsewhere)
    assert "no proxy runs here" in reload_proxy(behind_one)


@needs_nginx
def test_a_device_has_a_few_calls_at_a_time(behind: Behind) -> None:
    """And what it has too many does not keep others out."""
    stalled = [behind.begin(behind.key(), 5 * 2**20) for _ in range(DEVICE_CALLS)]
    try:
        deadline = time.monotonic() + 10
        while (status := behind.ask("POST", "/v1/fleet/get-fab")) == 200:
            assert time.monotonic() < deadline
        assert status == 503
        assert behind.ask("POST", "/v1/fleet/get-fab", headers=behind.key(1)) == 200
    finally:
        for connection in stalled:
            connection.close()


@needs_nginx
def test_an_address_that_asks_too_often_is_slowed_down_and_then_refused(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", free_port())
    make_identities(fleet)
    config = fleet_proxy(fleet)
    assert config.count(f"rate={ADDRESS_RATE}r/s") == config.count(f"burst={ADDRESS_BURST};") == 1
    config = config.replace(f"rate={ADDRESS_RATE}r/s", "rate=2r/s")
    config = config.replace(f"burst={ADDRESS_BURST};", "burst=1;")
    with server_behind(fleet) as server, running_nginx(config, tmp_path / "nginx"):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(server.ask, "POST", "/v1/fleet/get-fab") for _ in range(4)]
        assert sorted(future.result() for future in asked) == [200, 200, 503, 503]


def test_limits_leave_room_for_what_a_supernode_does() -> None:
    from flwr.supercore.constant import FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS as PULLS
    from flwr.supercore.constant import FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES as PUSHES
    from flwr.supercore.retry.http_retry import _RETRYABLE_STATUS_CODES

    assert max(PULLS, PUSHES) + 2 <= DEVICE_CALLS  # a heartbeat and a question
    assert DEVICE_CALLS < ADDRESS_CALLS
    assert ADDRESS_BURST / ADDRESS_RATE < 10  # s; a SuperNode waits for 30
    assert 503 in _RETRYABLE_STATUS_CODES


@needs_nginx
def test_refusals_are_logged(behind: Behind) -> None:
    behind.ask("POST", "/v1/control/list-runs-of-others")
    log = behind.fleet.directory / "nginx" / "log"
    line = next(x for x in log.read_text().splitlines() if "list-runs-of-others" in x)
    assert "forbidden" in line
    assert "client: 127.0.0.1" in line


@needs_nginx
@pytest.mark.parametrize(("ca", "name"), [(False, True), (True, False)])
def test_the_superlink_must_prove_who_it_is(tmp_path: Path, ca: bool, name: bool) -> None:
    """Else whoever takes its port could read what devices send. It looks like an outage."""
    fleet = make_fleet(tmp_path / "fleet", free_port())
    make_identities(fleet)
    other = make_fleet(tmp_path / "other", 1)
    make_identities(other)
    config = fleet_proxy(fleet)
    if not ca:
        config = config.replace(f'trusted_certificate "{fleet.files.ca}"',
                                f'trusted_certificate "{other.files.ca}"')  # fmt: skip
    if not name:
        config = config.replace('proxy_ssl_name "localhost"', 'proxy_ssl_name "elsewhere"')
    assert config != fleet_proxy(fleet)
    with server_behind(fleet) as server, running_nginx(config, tmp_path / "nginx"):
        assert server.ask("POST", "/v1/fleet/pull-messages") == 502
        assert server.requests == []


@needs_nginx
def test_no_superlink_is_an_answer_after_which_a_supernode_tries_again(tmp_path: Path) -> None:
    from flwr.supercore.retry.http_retry import _RETRYABLE_STATUS_CODES

    fleet = make_fleet(tmp_path / "fleet", free_port())
    make_identities(fleet)
    with running_nginx(fleet_proxy(fleet), tmp_path / "nginx"):
        status = Behind(fleet).ask("POST", "/v1/fleet/pull-messages")
    assert status in _RETRYABLE_STATUS_CODES


@needs_nginx
def test_nginx_accepts_the_committed_file(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", 8000)
    make_identities(fleet)
    text = COMMITTED.read_text().replace("/run/secrets/", f"{fleet.directory}/tls/")
    text = text.replace("/etc/wildflower/", f"{fleet.files.of('proxy')}/")
    (tmp_path / "nginx.conf").write_text(text)
    assert NGINX
    check = subprocess.run(
        [NGINX, *as_myself(), "-t", "-e", "stderr", "-p", str(tmp_path), "-c", "nginx.conf"],
        check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert check.returncode == 0, check.stderr
    assert "[warn]" not in check.stderr


def values(**changes: str) -> dict[str, str]:
    return {
        "listen": "0.0.0.0:8443", "superlink": "127.0.0.1:8000", "superlink_name": "localhost",
        "ca": "/ca", "certificate": "/c", "key": "/k", "devices": "/d", **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("key", '/a"; location / { proxy_pass https://x; } #'), ("ca", "/a$uri"), ("ca", ""),
        ("certificate", "/a\nb"), ("listen", "0.0.0.0:1; x"), ("superlink_name", "127.0.0.1"),
        ("superlink_name", "::1"), ("superlink_name", "a_b"), ("superlink", "superlink:8000"),
        ("resolver", "x; y"),
    ],
)  # fmt: skip
def test_text_that_would_change_the_configuration_is_refused(key: str, value: str) -> None:
    changed = values(**{key: value})
    if key == "resolver":
        changed["superlink"] = "superlink:8000"
    with pytest.raises(ConfigError, match=r"expected|cannot carry"):
        nginx_config(**changed)


def test_a_file_with_a_space_in_its_name_is_fine() -> None:
    assert 'ssl_certificate_key "/a b/k";' in nginx_config(**values(key="/a b/k"))


@pytest.mark.parametrize(
    ("server", "listen", "message"),
    [
        ({"listen": "0.0.0.0"}, "", "control API"),
        ({"listen": ""}, OUTSIDE, "control API"),
        ({"address": "fleet.example.org"}, "", "IP address of a network interface"),
        ({}, "0.0.0.0", "IP address of a network interface"),
        ({"address": "127.0.0.1"}, "", "the address of a network interface"),
        ({"port": 0}, "", "fixed port"),
    ],
)
def test_a_fleet_that_does_not_fit_a_proxy_is_refused(
    tmp_path: Path, server: dict[str, object], listen: str, message: str
) -> None:
    if server.get("listen") == "":
        server = {**server, "address": "192.0.2.10"}
    with pytest.raises(ConfigError, match=message):
        fleet_proxy(make_fleet(tmp_path, **{"port": 8000, **server}), listen)


def test_a_name_in_the_fleet_file_needs_the_interface_told(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, 8000, address="fleet.example.org")
    config = fleet_proxy(fleet, "192.0.2.10")
    assert "listen 192.0.2.10:8000 ssl;" in config
    assert 'set $superlink "127.0.0.1:8000";' in config


def test_a_certificate_of_ones_own_is_compared_by_its_name(tmp_path: Path) -> None:
    own = Tls(ca="/ca", certificate="/c", key="/k")
    fleet = make_fleet(tmp_path, 8000, names=("10.0.0.1", "fleet.example.org"))
    config = fleet_proxy(dataclasses.replace(fleet, tls=own))
    assert 'proxy_ssl_name "fleet.example.org";' in config
    nameless = dataclasses.replace(make_fleet(tmp_path, 8000), tls=own)
    with pytest.raises(ConfigError, match=r"server\.names"):
        fleet_proxy(nameless)


def test_a_mistake_is_one_line_and_an_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("name: x\ndevices: [{client-id: 0, partition-id: 0}]\n")
    assert main([str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
