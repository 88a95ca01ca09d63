"""Who is who in a fleet: its certificate authority, the server's certificate, the devices' keys.

Everything is made once and then kept: a second call makes what is missing and touches nothing
else. What has expired or does not fit any more is said with the remedy; it is never replaced
silently, because devices elsewhere trust it. Private keys can be read by their owner only, and lie
in directories that only their owner can enter.
"""

from __future__ import annotations

import dataclasses
import datetime
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from deploy.fleet.certificates import (
    authority_certificate,
    general_name,
    names_of,
    server_certificate,
    server_names,
)
from deploy.fleet.description import Device, Fleet
from deploy.fleet.device_map import write_device_map
from deploy.fleet.private_files import prepare_directory, refuse_readable_by_others, write_private
from deploy.fleet.revoked import is_revoked
from strategies.base.options import ConfigError

WARN_DAYS = 30
"""A certificate that ends sooner is mentioned."""

SECRET_BYTES = 32


@dataclasses.dataclass
class Identities:
    """What was found and made.

    Attributes
    ----------
    made, kept : list of Path
        New files, and those that were there.
    warnings : list of str
        What will need attention soon.
    """

    made: list[Path] = dataclasses.field(default_factory=list)
    kept: list[Path] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


def make_identities(fleet: Fleet, *, now: datetime.datetime | None = None) -> Identities:
    """Make what a fleet lacks in certificates, keys and secrets, and check what it has.

    Parameters
    ----------
    fleet : Fleet
        Names the files, the server's names and the devices.
    now : datetime, optional
        The time to count validity from, with its time zone; the present unless given.

    Raises
    ------
    ConfigError
        For a file that is expired, unreadable, readable by others, or does not fit the fleet any
        more, with what to do.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    found, files = Identities(), fleet.files
    prepare_directory(fleet.directory)
    if fleet.tls.own:
        _check_own(fleet, now, found)
    else:
        ca_key = _key(files.ca_key, files.ca, found)
        ca = _authority(fleet, ca_key, now, found)
        _server_certificate(fleet, ca, ca_key, now, found)
    for device in fleet.devices:
        if not is_revoked(fleet, device):
            make_device_key(fleet, device, found)
    if _present(files.secret, found):
        refuse_readable_by_others(files.secret)
    else:
        _write(files.secret, secrets.token_bytes(SECRET_BYTES), found)
    write_device_map(fleet)
    return found


def make_device_key(fleet: Fleet, device: Device, found: Identities) -> None:
    """Make a device's key and its public half, or check those that there are."""
    path = fleet.files.key(device)
    key = _key(path, None, found, serialization.PrivateFormat.OpenSSH)
    _public_key(path.with_suffix(".pub"), key, found)


def _authority(
    fleet: Fleet, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, found: Identities
) -> x509.Certificate:
    path = fleet.files.ca
    if _present(path, found):
        ca = _read_certificate(path, now, found)
        if ca.public_key() != key.public_key():
            raise ConfigError(f"{path}: does not belong to {fleet.files.ca_key}; move both away")
        return ca
    ca = authority_certificate(fleet, key, now)
    _write(path, ca.public_bytes(serialization.Encoding.PEM), found, mode=0o644)
    return ca


def _server_certificate(
    fleet: Fleet, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime, found: Identities,
) -> None:  # fmt: skip
    files, names = fleet.files, server_names(fleet)
    key = _key(files.certificate_key, files.certificate, found)
    if _present(files.certificate, found):
        certificate = _read_certificate(files.certificate, now, found)
        _check_fit(files.certificate, certificate, ca, key, names)
        return
    server = server_certificate(fleet, ca, ca_key, key.public_key(), now)
    _write(files.certificate, server.public_bytes(serialization.Encoding.PEM), found, mode=0o644)


def _check_fit(
    path: Path, certificate: x509.Certificate, ca: x509.Certificate,
    key: ec.EllipticCurvePrivateKey, names: tuple[str, ...],
) -> None:  # fmt: skip
    """Refuse a server certificate of another authority, another key, or without a name needed."""
    remedy = f"move it away and `wildflower fleet keys` makes a new one ({path})"
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ConfigError(f"{path.name}: was not issued by ca.crt beside it; {remedy}") from error
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"{path.name}: does not belong to server.key beside it; {remedy}")
    known = names_of(certificate)
    missing = [name for name in names if general_name(name) not in known]
    if missing:
        raise ConfigError(f"{path.name}: is not valid for {', '.join(missing)}; {remedy}")


def _check_own(fleet: Fleet, now: datetime.datetime, found: Identities) -> None:
    """Check certificates that were brought along."""
    for path in (fleet.files.ca, fleet.files.certificate):
        certificate = _read_certificate(path, now, found)
        found.kept.append(path)
    server = fleet.server
    here = server.local_endpoint.rpartition(":")[0].strip("[]")
    for name, whose in ((server.address, "devices"), (here, "processes on this machine")):
        accepted = {general_name(name), x509.DNSName("*." + name.partition(".")[2])}
        if not accepted & names_of(certificate):
            raise ConfigError(
                f"{path}: is not valid for {name}, by which {whose} reach the SuperLink"
            )
    read_key(fleet.files.certificate_key)
    found.kept.append(fleet.files.certificate_key)


def _read_certificate(path: Path, now: datetime.datetime, found: Identities) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a PEM certificate: {error}") from error
    end = certificate.not_valid_after_utc
    if now > end:
        raise ConfigError(
            f"{path}: this certificate expired on {end:%Y-%m-%d}; move it away and `wildflower "
            "fleet keys` makes a new one (a new ca.crt has to go to all devices)"
        )
    if end - now < datetime.timedelta(days=WARN_DAYS):
        found.warnings.append(f"{path}: this certificate expires on {end:%Y-%m-%d}")
    return certificate


def _key(
    path: Path, certificate: Path | None, found: Identities,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> ec.EllipticCurvePrivateKey:  # fmt: skip
    """Read a private key, or make one; `certificate` is what a lost key would leave orphaned."""
    if _present(path, found):
        refuse_readable_by_others(path)
        return read_own_key(path)
    if certificate is not None and certificate.exists():
        raise ConfigError(
            f"{path}: the private key of {certificate} is missing; put it back, or move the "
            "certificate away and `wildflower fleet keys` makes both anew"
        )
    made = ec.generate_private_key(ec.SECP384R1())
    text = made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    _write(path, text, found)
    return made


def read_key(path: Path) -> PrivateKeyTypes:
    """Read a private key in PEM or OpenSSH's format."""
    try:
        text = path.read_bytes()
        if b"BEGIN OPENSSH" in text:
            return serialization.load_ssh_private_key(text, password=None)
        return serialization.load_pem_private_key(text, password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: cannot be read as a private key: {error}") from error


def read_own_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key of the kind that is made here."""
    key = read_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: expected an elliptic curve key (NIST P-384)")
    return key


def _public_key(path: Path, key: ec.EllipticCurvePrivateKey, found: Identities) -> None:
    text = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    if not _present(path, found):
        _write(path, text + b"\n", found, mode=0o644)
    elif path.read_bytes().split()[:2] != text.split()[:2]:
        raise ConfigError(f"{path}: is not the public key of {path.with_suffix('')}; move it away")


def _present(path: Path, found: Identities) -> bool:
    if path.is_file():
        found.kept.append(path)
        return True
    return False


def _write(path: Path, content: bytes, found: Identities, mode: int = 0o600) -> None:
    write_private(path, content, mode)
    found.made.append(path)
