"""Running nginx as the proxy, and a server behind it that notes what reaches it."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

from deploy.fleet.description import Device, Fleet, Restarts, Server, Tls
from deploy.fleet.device_map import header_of

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
OUTSIDE = "127.0.0.2"
"""Plays the address by which devices reach the server."""

needs_nginx = pytest.mark.skipif(
    NGINX is None or not sys.platform.startswith("linux"),
    reason="needs nginx (apt-get install nginx-light) and Linux's whole 127.0.0.0/8",
)


DEVICES = (Device(client_id=3, data_dir="/data"), Device(client_id=4, data_dir="/data"))


def make_fleet(
    directory: Path, port: int, devices: tuple[Device, ...] = DEVICES, **server: object
) -> Fleet:
    return Fleet(
        name="proxied",
        directory=directory,
        server=Server(**{"address": OUTSIDE, "listen": "127.0.0.1", "port": port, **server}),
        tls=Tls(),
        restarts=Restarts(),
        devices=devices,
        presets={},
        source=directory / "fleet.yaml",
    )


def as_myself() -> list[str]:
    """Return arguments without which nginx, started by root, works as a user with fewer rights.

    On a server it is not started by root, and here only root can enter the tests' directories.
    """
    return ["-g", "user root;"] if os.geteuid() == 0 else []


@contextlib.contextmanager
def running_nginx(config: str, prefix: Path) -> Iterator[Path]:
    """Run nginx in the foreground with its own prefix; give its log."""
    assert NGINX
    prefix.mkdir(parents=True, exist_ok=True)
    (prefix / "nginx.conf").write_text(config)
    log = prefix / "log"
    with log.open("wb") as file:
        nginx = subprocess.Popen(
            [NGINX, *as_myself(), "-e", "stderr", "-p", str(prefix), "-c", "nginx.conf"],
            stderr=file,
        )
    try:
        host, port = re.findall(r"listen (.*):(\d+) ssl", config)[0]
        deadline = time.monotonic() + 10
        while True:
            assert nginx.poll() is None, log.read_text()
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                break
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield log
    finally:
        nginx.terminate()
        nginx.wait(10)


@dataclasses.dataclass
class Behind:
    """A server in place of the SuperLink, and what reached it."""

    fleet: Fleet
    requests: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    headers: list[dict[str, str]] = dataclasses.field(default_factory=list)
    body_started: threading.Event = dataclasses.field(default_factory=threading.Event)
    body_bytes: int = 0

    def key(self, number: int = 0) -> dict[str, str]:
        """Return the header in which a device names its key."""
        path = self.fleet.files.key(self.fleet.devices[number]).with_suffix(".pub")
        if not path.exists():
            return {}  # revoked
        return {FLEET_HTTP_PUBLIC_KEY_HEADER: header_of(path)}

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> int:
        """Send a request to the proxy as it is spelt, with a device's key; return the status."""
        connection = self.connect()
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for key, value in {**self.key(), **(headers or {})}.items():
                connection.putheader(key, value)
            connection.putheader("Content-Length", str(len(body)))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
                connection.endheaders(body)
            return connection.getresponse().status
        finally:
            connection.close()

    def begin(
        self, headers: dict[str, str], length: int, sent: bytes = b"x"
    ) -> http.client.HTTPSConnection:
        """Begin a call with a body, of which only a part is sent so far."""
        connection = self.connect()
        connection.putrequest("POST", "/v1/fleet/push-object")
        for key, value in {**headers, "Content-Length": str(length)}.items():
            connection.putheader(key, value)
        connection.endheaders(sent)
        return connection

    def connect(self) -> http.client.HTTPSConnection:
        trust = ssl.create_default_context(cafile=str(self.fleet.files.ca))
        return http.client.HTTPSConnection(
            OUTSIDE, self.fleet.server.port, timeout=10, context=trust
        )


def make_handler(behind: Behind) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            left = int(self.headers.get("content-length", 0))
            while left:
                data = self.rfile.read1(min(left, 65536))
                left -= len(data)
                behind.body_bytes += len(data)
                behind.body_started.set()
            behind.requests.append((self.command, self.path))
            behind.headers.append({k.lower(): v for k, v in self.headers.items()})
            self.send_response(403 if self.path.endswith("get-run") else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    return Handler


@contextlib.contextmanager
def server_behind(fleet: Fleet) -> Iterator[Behind]:
    behind = Behind(fleet)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", fleet.server.port), make_handler(behind))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(fleet.files.certificate, fleet.files.certificate_key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield behind
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
