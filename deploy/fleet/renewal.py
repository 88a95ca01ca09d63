"""`wildflower fleet renew`: a new certificate for the server, in use without losing a run.

The certificate is replaced, its key, the authority and the devices' keys stay: devices notice
nothing. The proxy reads it anew on SIGHUP and finishes what is under way. The SuperLink reads its
files at its start only, so it is ended and whoever keeps it running (`fleet up`, systemd) starts
it again; a run survives that, see the table of faults in deploy/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import ssl
import time
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.fleet.certificates import server_certificate
from deploy.fleet.description import Fleet
from deploy.fleet.identities import WARN_DAYS, read_key, read_own_key
from deploy.fleet.membership import reload_proxy
from deploy.fleet.private_files import write_private
from deploy.fleet.specs import SUPERLINK, Specs
from deploy.fleet.superlink_program import PROGRAM
from deploy.flower.commands import FlowerError
from deploy.flower.processes import runs_program, send_signal
from server_app.console import say
from strategies.base.options import ConfigError

RESTART_SECONDS = 50.0
"""A run waits a minute for the SuperLink."""
GRACE_SECONDS = 2.0
"""After a signal to end, Flower's SuperLink waits for its open connections, more than a minute:
longer than a run waits. What it must not lose is in its database, which survives a kill."""
PROGRAMS = (PROGRAM, "flower-superlink")
"""What a fleet's SuperLink runs, or ran when it was started by an earlier version."""


def renew(fleet: Fleet, options: argparse.Namespace) -> int:
    """Renew the certificate if it ends soon, and see to it that the newest one is in use."""
    now = datetime.datetime.now(datetime.UTC)
    if fleet.tls.own:
        say(f"{fleet.files.certificate} is your own: put the new one there, and this command lets "
            "it be used")  # fmt: skip
    else:
        _renew_file(fleet, now, at_once=options.now)
    say(_put_to_use(fleet))
    return 0


def _renew_file(fleet: Fleet, now: datetime.datetime, *, at_once: bool) -> None:
    """Write a new certificate in the place of one that ends within `WARN_DAYS`."""
    files = fleet.files
    old, ca = _certificate(files.certificate), _certificate(files.ca)
    soon = datetime.timedelta(days=WARN_DAYS)
    end, last = old.not_valid_after_utc, ca.not_valid_after_utc
    if last - now < soon:
        raise ConfigError(
            f"{files.ca}: the authority itself ends on {last:%Y-%m-%d}, and no certificate of it "
            "is valid longer; move the folder tls away, `wildflower fleet keys` makes a new one, "
            "and its ca.crt has to go to all devices"
        )
    if end - now >= soon and not at_once:
        say(f"{files.certificate} is valid until {end:%Y-%m-%d}; --now renews it all the same")
        return
    ca_key = read_key(files.ca_key)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or ca_key.public_key() != ca.public_key():
        raise ConfigError(f"{files.ca_key}: does not belong to {files.ca}")
    key = read_own_key(files.certificate_key)
    new = server_certificate(fleet, ca, ca_key, key.public_key(), now)
    write_private(files.certificate, new.public_bytes(serialization.Encoding.PEM), mode=0o644)
    say(f"{files.certificate} is renewed, valid until {new.not_valid_after_utc:%Y-%m-%d}")


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a PEM certificate ({error}); `wildflower fleet keys` makes "
            "what is missing"
        ) from error


def _put_to_use(fleet: Fleet) -> str:
    """Let proxy and SuperLink use the certificate on disk; return what was done."""
    done = [reload_proxy(fleet)]
    running = superlinks(fleet)
    if not running:
        done.append(
            "no SuperLink of this fleet runs here; in containers, `docker compose restart "
            "superlink` lets it read the certificate"
        )
    elif _served(fleet) == _certificate(fleet.files.certificate):
        done.append("the SuperLink uses it already")
    else:
        _restart(fleet, running)
        done.append("the SuperLink was started again and uses it; a run that was going on goes on")
    return "\n".join(filter(None, done))


def superlinks(fleet: Fleet) -> list[psutil.Process]:
    """Return the SuperLink of a fleet on this machine, whoever keeps it running."""
    database = str(Specs(fleet, {}).database)
    found = []
    for process in psutil.process_iter():
        try:
            ours = any(runs_program(process, program) for program in PROGRAMS)
            if ours and database in process.cmdline():
                found.append(process)
        except (psutil.Error, OSError):
            continue  # it has ended, or is somebody else's
    return found


def _restart(fleet: Fleet, running: list[psutil.Process]) -> None:
    """End the SuperLink, and wait until it is there again with the certificate on disk.

    Raises
    ------
    FlowerError
        If it is not, in time.
    """
    wanted = _certificate(fleet.files.certificate)
    deadline = time.monotonic() + RESTART_SECONDS
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            send_signal(process, number)
        _, running = psutil.wait_procs(running, GRACE_SECONDS)
    while time.monotonic() < deadline:
        if not running and _served(fleet) == wanted:
            return
        time.sleep(0.2)
    raise FlowerError(
        f"the {SUPERLINK} was ended and does not answer with the new certificate after "
        f"{RESTART_SECONDS:g} s: nothing starts it again, or its log says why it cannot; resume a "
        "run that was going on"
    )


def _served(fleet: Fleet) -> x509.Certificate | None:
    """Return the certificate that the SuperLink shows now; None if it does not answer."""
    host, _, port = fleet.server.local_endpoint.rpartition(":")
    try:
        text = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=5.0)
        return x509.load_pem_x509_certificate(text.encode())
    except (OSError, ValueError):
        return None
