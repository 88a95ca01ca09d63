"""Certificates and keys: who can read them, what they are valid for, and that they stay."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import os
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from deploy.fleet.certificates import server_names
from deploy.fleet.description import Device, Fleet, Restarts, Server, Tls
from deploy.fleet.device_map import device_map
from deploy.fleet.identities import make_identities
from deploy.fleet.private_files import write_private
from strategies.base.options import ConfigError

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    server = Server(address="fleet.example.org", names=("10.0.0.7",), allow_remote=True)
    return Fleet(
        name="test",
        directory=tmp_path / "fleet",
        server=server,
        tls=Tls(),
        restarts=Restarts(),
        devices=(Device(client_id=0, partition_id=0), Device(client_id=4, data_dir="/d")),
        presets={},
        source=tmp_path / "fleet.yaml",
    )


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read_what_is_private(fleet: Fleet, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_identities(fleet)
    finally:
        os.umask(before)
    files = fleet.files
    private = [files.ca_key, files.certificate_key, files.secret, *map(files.key, fleet.devices)]
    private.append(device_map(fleet))  # not secret, but who has which key is nobody's business
    assert [mode(path) for path in private] == [0o600] * 6
    folders = [fleet.directory, files.ca_key.parent, files.key(fleet.devices[0]).parent]
    assert [mode(path) for path in folders] == [0o700] * 3
    everything = {path for path in fleet.directory.rglob("*") if path.is_file()}
    public = {files.ca, files.certificate, fleet.directory / ".gitignore"}
    public |= {files.key(device).with_suffix(".pub") for device in fleet.devices}
    assert everything == public | set(private)
    assert not any(b"PRIVATE" in path.read_bytes() for path in public)
    assert len(files.secret.read_bytes()) == 32


def test_the_certificate_is_valid_for_every_name_in_use(fleet: Fleet) -> None:
    made = make_identities(fleet)
    server, ca = certificate(fleet.files.certificate), certificate(fleet.files.ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "fleet.example.org"}
    addresses = {ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "10.0.0.7")}
    assert set(names.get_values_for_type(x509.IPAddress)) == addresses
    usage = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    server.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert server.not_valid_before_utc < NOW < NOW + 364 * DAY < server.not_valid_after_utc
    assert server.not_valid_after_utc < NOW + 366 * DAY
    assert not made.warnings


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "10.0.0.7", "fleet.example.org"])
def test_a_strict_client_trusts_the_server(fleet: Fleet, name: str) -> None:
    make_identities(fleet)
    assert handshake(fleet, fleet.files.ca, name) is None


def test_a_client_refuses_another_name_or_authority(fleet: Fleet) -> None:
    make_identities(fleet)
    error = handshake(fleet, fleet.files.ca, "other.example.org")
    assert isinstance(error, ssl.SSLCertVerificationError)
    other = dataclasses.replace(fleet, directory=fleet.directory.with_name("other"))
    make_identities(other)
    assert isinstance(handshake(fleet, other.files.ca, "localhost"), ssl.SSLCertVerificationError)


def handshake(fleet: Fleet, trusted: Path, name: str) -> ssl.SSLError | None:
    """Connect to a server with the fleet's certificate; return why that failed."""
    import socket

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(fleet.files.certificate, fleet.files.certificate_key)
    client = ssl.create_default_context(cafile=str(trusted))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            context.wrap_socket(left, server_side=True).close()
        except OSError:
            left.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        client.wrap_socket(right, server_hostname=name).close()
    except ssl.SSLError as error:
        return error
    finally:
        right.close()
        thread.join(10)
    return None


def test_device_keys_are_what_flower_registers(fleet: Fleet) -> None:
    make_identities(fleet)
    numbers = set()
    for device in fleet.devices:
        path = fleet.files.key(device)
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        public = serialization.load_ssh_public_key(path.with_suffix(".pub").read_bytes())
        assert public == key.public_key()
        numbers.add(key.private_numbers().private_value)
    assert len(numbers) == 2
    if shutil.which("ssh-keygen") is None:
        return  # what Flower does with the file is tested above
    checked = subprocess.run(
        ["ssh-keygen", "-lf", str(fleet.files.key(fleet.devices[0]))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "(ECDSA)" in checked.stdout


def test_a_second_call_changes_nothing_and_makes_what_is_missing(fleet: Fleet) -> None:
    first = make_identities(fleet)
    assert len(first.made) == 9
    assert not first.kept
    before = {path: path.read_bytes() for path in first.made}
    second = make_identities(fleet)
    assert not second.made
    assert set(second.kept) == set(first.made)
    fleet.files.certificate.unlink()
    more = dataclasses.replace(fleet, devices=(*fleet.devices, Device(client_id=9, data_dir="/d")))
    third = make_identities(more)
    new = fleet.files.key(more.devices[2])
    assert set(third.made) == {fleet.files.certificate, new, new.with_suffix(".pub")}
    del before[fleet.files.certificate]
    assert all(path.read_bytes() == content for path, content in before.items())
    assert handshake(fleet, fleet.files.ca, "localhost") is None


def test_what_has_expired_is_said_and_kept(fleet: Fleet) -> None:
    make_identities(fleet)
    before = fleet.files.certificate.read_bytes()
    with pytest.raises(ConfigError, match=r"server\.crt: this certificate expired on .* move it"):
        make_identities(fleet, now=NOW + 366 * DAY)
    assert fleet.files.certificate.read_bytes() == before
    with pytest.raises(ConfigError, match=r"ca\.crt: this certificate expired on"):
        make_identities(fleet, now=NOW + 3651 * DAY)
    soon = make_identities(fleet, now=NOW + 340 * DAY)
    assert [text.split(": ")[1][:29] for text in soon.warnings] == ["this certificate expires on 2"]


def test_a_certificate_that_does_not_fit_is_refused(fleet: Fleet) -> None:
    make_identities(fleet)
    moved = dataclasses.replace(fleet, server=Server(address="new.org", allow_remote=True))
    with pytest.raises(ConfigError, match=r"server\.crt: is not valid for new\.org; move it away"):
        make_identities(moved)
    other = dataclasses.replace(fleet, directory=fleet.directory.with_name("other"))
    make_identities(other)
    fleet.files.certificate.write_bytes(other.files.certificate.read_bytes())
    with pytest.raises(ConfigError, match=r"server\.crt: was not issued by ca\.crt beside it"):
        make_identities(fleet)


def test_a_lost_key_is_not_replaced_behind_its_certificate(fleet: Fleet) -> None:
    make_identities(fleet)
    fleet.files.ca_key.unlink()
    with pytest.raises(ConfigError, match=r"ca\.key: the private key of .*ca\.crt is missing"):
        make_identities(fleet)
    assert not fleet.files.ca_key.exists()


def test_a_key_that_others_can_read_is_refused(fleet: Fleet) -> None:
    make_identities(fleet)
    path = fleet.files.key(fleet.devices[1])
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"client-4: mode 0640 lets others .* \(chmod 600 "):
        make_identities(fleet)


@pytest.mark.parametrize("name", ["tls/server.crt", "tls/ca.key", "keys/client-0"])
def test_a_file_that_is_something_else_is_named(fleet: Fleet, name: str) -> None:
    make_identities(fleet)
    path = fleet.directory / name
    path.write_text("something else")
    with pytest.raises(ConfigError, match=f"{path}: cannot be read as a") as caught:
        make_identities(fleet)
    assert "\n" not in str(caught.value)


def test_own_certificates_are_used_and_no_authority_is_made(fleet: Fleet) -> None:
    make_identities(fleet)
    files = fleet.files
    tls = Tls(ca=str(files.ca), certificate=str(files.certificate), key=str(files.certificate_key))
    own = dataclasses.replace(fleet, directory=fleet.directory.with_name("own"), tls=tls)
    made = make_identities(own)
    assert not (own.directory / "tls").exists()
    assert set(made.kept) == {files.ca, files.certificate, files.certificate_key}
    for server in (Server(address="elsewhere.org", allow_remote=True), Server(listen="127.0.0.2")):
        other = dataclasses.replace(own, server=server)
        with pytest.raises(ConfigError, match=r"crt: is not valid for (els.*|127.0.0.2), by"):
            make_identities(other)
    missing = dataclasses.replace(own, tls=dataclasses.replace(tls, ca="/nowhere/ca.crt"))
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.crt: cannot be read"):
        make_identities(missing)


def test_the_names_leave_out_wildcards(fleet: Fleet) -> None:
    assert fleet.server.listens_on == "0.0.0.0"
    assert server_names(fleet) == (
        "localhost", "127.0.0.1", "::1", "fleet.example.org", "10.0.0.7"
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """Else the proxy, which is another user, could not read what `fleet add` has written."""
    os.chown(tmp_path, 49999, 49999)
    write_private(tmp_path / "devices.map", b"x")
    assert (tmp_path / "devices.map").stat().st_uid == 49999
    assert mode(tmp_path / "devices.map") == 0o600
