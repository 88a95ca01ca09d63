"""Who is who in a fleet: its certificate authority, the server's certificate, the devices' keys.

Everything is made once and then kept: a second call makes what is missing and touches nothing
else. What has expired or does not fit any more is said with the remedy; it is never replaced
silently, because devices elsewhere trust it. Private keys can be read by their owner only, and lie
in directories that only their owner can enter.
"""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.fleet.description import Device, Fleet
from deploy.fleet.device_map import write_device_map
from deploy.fleet.private_files import prepare_directory, refuse_readable_by_others, write_private
from deploy.fleet.revoked import is_revoked
from strategies.base.options import ConfigError

CA_DAYS = 3650
"""For how long an authority made here is valid. Devices hold a copy of its certificate."""

WARN_DAYS = 30
"""A certificate that ends sooner is mentioned."""

THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Names that every server certificate is valid for: Flower's own processes use them."""

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


def server_names(fleet: Fleet) -> tuple[str, ...]:
    """Return every host name and address that the server's certificate must be valid for."""
    server = fleet.server
    hosts = (*THIS_MACHINE, server.address, server.listens_on, *server.names)
    return tuple(dict.fromkeys(host for host in hosts if host not in ("0.0.0.0", "::")))


def _authority(
    fleet: Fleet, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, found: Identities
) -> x509.Certificate:
    path = fleet.files.ca
    if _present(path, found):
        ca = _read_certificate(path, now, found)
        if ca.public_key() != key.public_key():
            raise ConfigError(f"{path}: does not belong to {fleet.files.ca_key}; move both away")
        return ca
    name = _name(f"Wildflower fleet {fleet.name}")
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    ca = (
        _builder(name, name, key.public_key(), key.public_key(), now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
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
    server = (
        _builder(_name(fleet.server.address), ca.subject, key.public_key(), ca_key.public_key(),
                 now, fleet.tls.days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), False)
        .sign(ca_key, hashes.SHA384())
    )  # fmt: skip
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
    known = _names(certificate)
    missing = [name for name in names if _general_name(name) not in known]
    if missing:
        raise ConfigError(f"{path.name}: is not valid for {', '.join(missing)}; {remedy}")


def _names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    """Return the host names and addresses that a certificate is valid for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return set(names.value)


def _check_own(fleet: Fleet, now: datetime.datetime, found: Identities) -> None:
    """Check certificates that were brought along."""
    for path in (fleet.files.ca, fleet.files.certificate):
        certificate = _read_certificate(path, now, found)
        found.kept.append(path)
    server = fleet.server
    here = server.local_endpoint.rpartition(":")[0].strip("[]")
    for name, whose in ((server.address, "devices"), (here, "processes on this machine")):
        accepted = {_general_name(name), x509.DNSName("*." + name.partition(".")[2])}
        if not accepted & _names(certificate):
            raise ConfigError(
                f"{path}: is not valid for {name}, by which {whose} reach the SuperLink"
            )
    _read_key(fleet.files.certificate_key)
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
        key = _read_key(path)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{path}: expected an elliptic curve key (NIST P-384)")
        return key
    if certificate is not None and certificate.exists():
        raise ConfigError(
            f"{path}: the private key of {certificate} is missing; put it back, or move the "
            "certificate away and `wildflower fleet keys` makes both anew"
        )
    made = ec.generate_private_key(ec.SECP384R1())
    text = made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    _write(path, text, found)
    return made


def _read_key(path: Path) -> PrivateKeyTypes:
    """Read a private key in PEM or OpenSSH's format."""
    try:
        text = path.read_bytes()
        if b"BEGIN OPENSSH" in text:
            return serialization.load_ssh_private_key(text, password=None)
        return serialization.load_pem_private_key(text, password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: cannot be read as a private key: {error}") from error


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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int,
) -> x509.CertificateBuilder:  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # devices' clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )


def _key_usage(**used: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: used.get(name, False) for name in names})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])  # X.509's limit


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
