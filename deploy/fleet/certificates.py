"""The certificates of a fleet: its authority's and its server's, as they are written."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.fleet.description import Fleet

CA_DAYS = 3650
"""For how long an authority made here is valid. Devices hold a copy of its certificate."""

THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Names that every server certificate is valid for: Flower's own processes use them."""


def server_names(fleet: Fleet) -> tuple[str, ...]:
    """Return every host name and address that the server's certificate must be valid for."""
    server = fleet.server
    hosts = (*THIS_MACHINE, server.address, server.listens_on, *server.names)
    return tuple(dict.fromkeys(host for host in hosts if host not in ("0.0.0.0", "::")))


def authority_certificate(
    fleet: Fleet, key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.Certificate:
    """Return a new certificate of a fleet's own authority."""
    name = _name(f"Wildflower fleet {fleet.name}")
    end = now + datetime.timedelta(days=CA_DAYS)
    return (
        _builder(name, name, key.public_key(), key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    fleet: Fleet, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey, now: datetime.datetime,
) -> x509.Certificate:  # fmt: skip
    """Return a new certificate of the server; it ends with its authority's at the latest."""
    names = x509.SubjectAlternativeName([general_name(n) for n in server_names(fleet)])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    end = min(now + datetime.timedelta(days=fleet.tls.days), ca.not_valid_after_utc)
    subject = _name(fleet.server.address)
    return (
        _builder(subject, ca.subject, key, ca_key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(names, critical=False)
        .sign(ca_key, hashes.SHA384())
    )


def names_of(certificate: x509.Certificate) -> set[x509.GeneralName]:
    """Return the host names and addresses that a certificate is valid for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return set(names.value)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey, now: datetime.datetime, end: datetime.datetime,
) -> x509.CertificateBuilder:  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # devices' clocks differ
        .not_valid_after(end)
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


def general_name(host: str) -> x509.GeneralName:
    """Return a host name or an IP address as a certificate has it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
