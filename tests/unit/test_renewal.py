"""Renewing the server's certificate: when, with what, and that what runs comes to use it."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from deploy.fleet import renewal
from deploy.fleet.description import Device, Fleet, Restarts, Server, Tls
from deploy.fleet.identities import make_identities
from deploy.fleet.renewal import renew
from deploy.fleet.renewal_units import renewal_units
from deploy.fleet.specs import Specs
from deploy.fleet.supervisor import Spec, Supervisor
from deploy.flower.commands import FlowerError
from deploy.flower.processes import end_family, free_port
from strategies.base.options import ConfigError

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
SUPERLINK = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
with socket.create_server(("127.0.0.1", int(sys.argv[3]))) as server:
    while True:
        try:
            context.wrap_socket(server.accept()[0], server_side=True).close()
        except OSError:
            pass
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(
        name="test",
        directory=tmp_path / "fleet",
        server=Server(port=free_port()),
        tls=Tls(),
        restarts=Restarts(first_pause=0.1),
        devices=(Device(client_id=0, partition_id=0),),
        presets={},
        source=tmp_path / "fleet.yaml",
    )


def options(*, now: bool = False) -> argparse.Namespace:
    return argparse.Namespace(now=now)


def end(fleet: Fleet) -> datetime.datetime:
    text = fleet.files.certificate.read_bytes()
    return x509.load_pem_x509_certificate(text).not_valid_after_utc


@pytest.mark.parametrize("days", [29, -10])
def test_what_ends_soon_or_has_ended_is_renewed_and_devices_notice_nothing(
    fleet: Fleet, days: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make_identities(fleet, now=NOW - (365 - days) * DAY)
    files = fleet.files
    others = (files.ca, files.ca_key, files.certificate_key, files.key(fleet.devices[0]))
    before = [path.read_bytes() for path in others]
    assert renew(fleet, options()) == 0
    assert [path.read_bytes() for path in others] == before
    assert end(fleet) > NOW + 364 * DAY
    assert files.certificate.stat().st_mode & 0o777 == 0o644
    assert make_identities(fleet).warnings == []  # names, authority and key fit as ever
    assert "no SuperLink of this fleet runs here" in capsys.readouterr().out


def test_what_is_valid_for_long_is_left_unless_asked(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    make_identities(fleet, now=NOW - 300 * DAY)
    first = end(fleet)
    assert renew(fleet, options()) == 0
    assert end(fleet) == first
    assert "--now renews it all the same" in capsys.readouterr().out
    assert renew(fleet, options(now=True)) == 0
    assert end(fleet) > first


def test_nothing_outlives_its_authority(fleet: Fleet) -> None:
    make_identities(fleet, now=NOW - 3600 * DAY)
    assert renew(fleet, options()) == 0
    ca = x509.load_pem_x509_certificate(fleet.files.ca.read_bytes())
    assert end(fleet) == ca.not_valid_after_utc
    old = dataclasses.replace(fleet, directory=fleet.directory.with_name("old"))
    make_identities(old, now=NOW - 3630 * DAY)
    with pytest.raises(ConfigError, match=r"the authority itself ends on .* has to go to all dev"):
        renew(old, options(now=True))


def test_what_is_missing_is_named(fleet: Fleet) -> None:
    with pytest.raises(ConfigError, match=r"server.crt: cannot be read .* `wildflower fleet keys`"):
        renew(fleet, options())


@pytest.fixture
def supervised(fleet: Fleet, tmp_path: Path) -> Iterator[Supervisor]:
    """Something that reads its certificate when it starts, and is kept running."""
    make_identities(fleet, now=NOW - 360 * DAY)
    script, files = tmp_path / renewal.PROGRAMS[0], fleet.files
    script.write_text(SUPERLINK)
    database = str(Specs(fleet, {}).database)
    program = [Path(sys.executable).name, str(script), str(files.certificate)]
    rest = [str(files.certificate_key), str(fleet.server.port), "--database", database]
    name, value = f"WILDFLOWER_TEST={tmp_path.name}-{time.time_ns()}".split("=")
    supervisor = Supervisor(fleet.restarts, lambda line: None)
    supervisor.add(
        Spec("superlink", (*program, *rest), tmp_path / "superlink", {**os.environ, name: value},
             tmp_path / "superlink.log", f"{name}={value}")
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while renewal._served(fleet) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield supervisor
    supervisor.close()
    end_family(f"{name}={value}", set())
    supervisor.reap()


def test_a_superlink_is_started_again_and_shows_the_new_one(
    fleet: Fleet, supervised: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    before = supervised.views()["superlink"].pid
    assert renew(fleet, options()) == 0
    assert "was started again and uses it" in capsys.readouterr().out
    after = supervised.views()["superlink"]
    assert (after.pid != before, after.restarts) == (True, 1)
    shown = renewal._served(fleet)
    assert shown is not None
    assert shown.not_valid_after_utc == end(fleet) > NOW + 364 * DAY
    assert renew(fleet, options()) == 0
    assert "the SuperLink uses it already" in capsys.readouterr().out
    assert supervised.views()["superlink"].pid == after.pid


def test_a_superlink_that_nothing_starts_again_is_said(
    fleet: Fleet, supervised: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised.close()
    monkeypatch.setattr(renewal, "RESTART_SECONDS", 1.0)
    with pytest.raises(FlowerError, match="nothing starts it again"):
        renew(fleet, options())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_timer(fleet: Fleet, tmp_path: Path) -> None:
    place = tmp_path / "units"
    place.mkdir()
    for name, text in renewal_units(fleet, environment=Path(sys.executable).parents[1]).items():
        (place / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, place.iterdir())],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
