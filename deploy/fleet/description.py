"""What a fleet is: server, TLS, devices and run presets, and where its files lie.

`deploy.fleet.fleet_file.read_fleet` makes a `Fleet` of a YAML file; deploy/fleet.yaml shows one.
The fields declared with `option` are the keys of the file, in kebab-case.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.spec import EXPECTED_DATASET
from strategies.base.options import ConfigError, Rule, option

HEARTBEAT_LIMIT = 60.0
"""Seconds for which Flower refuses a restarted node, because it believes the old one online."""


@dataclasses.dataclass(frozen=True)
class Server:
    """Where the SuperLink is.

    Attributes
    ----------
    address : str
        Host name or IP address by which devices reach it.
    port : int
        Its only port. 0 takes a free one at every start, which suits a fleet on one machine only.
    listen : str
        IP address on which it listens. Empty: 127.0.0.1, or, if `address` is another machine's,
        all addresses. Behind a reverse proxy it stays on 127.0.0.1.
    allow_remote : bool
        Whether anything but this machine may reach it.
    names : tuple of str
        Further host names and IP addresses that its certificate is to be valid for.
    """

    address: str = option("127.0.0.1", hint="a host name or an IP address, without a port")
    port: int = option(8000, minimum=0, maximum=65535)
    listen: str = option("", hint="an IP address")
    allow_remote: bool = option(False)
    names: tuple[str, ...] = ()

    @property
    def listens_on(self) -> str:
        """The IP address on which the SuperLink listens."""
        if self.listen:
            return self.listen
        if not is_loopback(self.address):
            return "0.0.0.0"
        return "127.0.0.1" if self.address == "localhost" else self.address

    @property
    def endpoint(self) -> str:
        """`host:port` by which devices reach the SuperLink."""
        return host_port(self.address, self.port)

    @property
    def local_endpoint(self) -> str:
        """`host:port` by which processes on the SuperLink's own machine reach it."""
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return host_port(anywhere.get(self.listens_on, self.listens_on), self.port)


@dataclasses.dataclass(frozen=True)
class Tls:
    """The server's certificate: made here, or your own (all three files, or none).

    Attributes
    ----------
    days : int
        For how long a certificate made here is valid.
    ca, certificate, key : str
        PEM files of your own: the authority that clients trust, the server's certificate (with
        its chain) and its private key.
    """

    days: int = option(365, minimum=1, maximum=3650)
    ca: str = option("", hint="a file")
    certificate: str = option("", hint="a file")
    key: str = option("", hint="a file")

    @property
    def own(self) -> bool:
        """Whether the certificate is brought along instead of made here."""
        return bool(self.ca)


@dataclasses.dataclass(frozen=True)
class Restarts:
    """How often a process that ended unasked is started again.

    The pause doubles from `first_pause` to `longest_pause` seconds. The limit leaves room for the
    attempts, about seven, that Flower refuses within `HEARTBEAT_LIMIT` after a crash of a device.
    """

    at_most: int = option(20, minimum=0, maximum=1000)
    within: float = option(600.0, above=0)
    first_pause: float = option(1.0, above=0)
    longest_pause: float = option(10.0, above=0)


@dataclasses.dataclass(frozen=True)
class Device:
    """One device. The keys are those of node-config.

    Attributes
    ----------
    client_id : int
        Its identity, unique in the fleet.
    model : str
        Its architecture; empty: the run's `models` decides.
    device : str
        auto, cpu, cuda or cuda:N.
    threads : int
        Threads that compute.
    data_dir : str
        Its own data; with a partition, where the shared data set lies on it.
    partition_id, num_partitions : int or None
        Its share of a data set; None if it has data of its own.
    dataset : str
        Empty: the run's for a partition, `imagefolder` for own data.
    state_dir : str
        Where its private model is kept; empty: below the fleet's directory.
    task : str
        What it learns, such as `multilabel@voc`; empty: its entry of the run's `tasks`.
    public_dir : str
        Where the public data set lies on it; empty: the run's `data-dir`.
    code_dir : str
        Where its owner keeps own models and methods on it; empty: only installed ones are used.
    share_class_counts : bool or None
        Whether the server is told how many examples of each class it has; None: of a share of a
        data set as the run has it, of own data not.
    allow_custom_models : bool
        Whether it imports models and methods of a user's own that a run names.
    allowed_apps, trusted_entities : str
        Files on it with the hashes of the apps that it runs, and with the public keys of those
        whose apps it runs, as Flower's option of that name takes them; empty: any app.
    rate : float or None
        How much it trains of the network that all clients share, for methods that have one; None:
        the run decides.
    """

    client_id: int = dataclasses.field(metadata={"rule": Rule(kind=int, minimum=0)})
    model: str = option("", hint="the name of a model; `python -m models` lists them")
    device: str = option("auto", hint="auto, cpu, cuda or cuda:N")
    threads: int = option(1, minimum=1)
    data_dir: str = option("", hint="an absolute path, or one that starts with ~")
    partition_id: int | None = dataclasses.field(
        default=None, metadata={"rule": Rule(kind=int, minimum=0)}
    )
    dataset: str = option("", hint=EXPECTED_DATASET)
    state_dir: str = option("", hint="an absolute path, or one that starts with ~")
    task: str = option("", hint="a text: a task, such as multilabel@voc")
    public_dir: str = option("", hint="an absolute path, or one that starts with ~")
    code_dir: str = option("", hint="an absolute path, or one that starts with ~")
    share_class_counts: bool | None = dataclasses.field(
        default=None, metadata={"rule": Rule(kind=bool)}
    )
    allow_custom_models: bool = option(False)
    allowed_apps: str = option("", hint="an absolute path, or one that starts with ~")
    trusted_entities: str = option("", hint="an absolute path, or one that starts with ~")
    rate: float | None = dataclasses.field(
        default=None, metadata={"rule": Rule(kind=float, above=0, maximum=1)}
    )
    num_partitions: int | None = None

    @property
    def name(self) -> str:
        """Its name among processes, files and Flower's nodes."""
        return f"client-{self.client_id}"

    @property
    def supernode(self) -> list[str]:
        """The command of its SuperNode, with what says which apps it runs."""
        program = ["wildflower-supernode", "--allowed-apps", self.allowed_apps]
        command = program if self.allowed_apps else ["flower-supernode"]
        trusted = ["--trusted-entities", self.trusted_entities] if self.trusted_entities else []
        return [*command, *trusted]

    def node_config(self, state_dir: str) -> str:
        """Return the text for `flower-supernode --node-config`.

        Parameters
        ----------
        state_dir : str
            Where the private model is kept unless the device names a place.
        """
        values = {
            "client-id": self.client_id,
            "partition-id": self.partition_id,
            "num-partitions": self.num_partitions,
            "data-dir": self.data_dir,
            "dataset": self.dataset,
            "model": self.model,
            "device": self.device,
            "threads": self.threads,
            "state-dir": self.state_dir or state_dir,
            "task": self.task,
            "public-dir": self.public_dir,
            "code-dir": self.code_dir,
            "share-class-counts": self.share_class_counts,
            "allow-custom-models": self.allow_custom_models or None,
            "rate": self.rate,
        }
        given = {key: value for key, value in values.items() if value not in (None, "")}
        for key, value in given.items():
            if '"' in str(value) or "\n" in str(value):
                raise ConfigError(f"{key} = {value!r}: Flower's node-config cannot carry this sign")
        # A JSON text is a TOML text.
        return " ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in given.items())


@dataclasses.dataclass(frozen=True)
class Files:
    """Where a fleet's files lie: everything below one directory that only its owner can read."""

    directory: Path
    tls: Tls

    @property
    def ca(self) -> Path:
        """Certificate of the authority that clients trust."""
        return Path(self.tls.ca) if self.tls.own else self.directory / "tls" / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """Private key of the authority made here."""
        return self.directory / "tls" / "ca.key"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        own = self.tls.own
        return Path(self.tls.certificate) if own else self.directory / "tls" / "server.crt"

    @property
    def certificate_key(self) -> Path:
        """The server's private key."""
        return Path(self.tls.key) if self.tls.own else self.directory / "tls" / "server.key"

    @property
    def secret(self) -> Path:
        """What SuperLink and SuperExec share."""
        return self.directory / "superexec.secret"

    def key(self, device: Device) -> Path:
        """Return where a device's private key lies; its public key has the suffix .pub."""
        return self.directory / "keys" / device.name

    def of(self, process: str) -> Path:
        """Return the directory of a process: its FLWR_HOME, log, and, of a device, its state."""
        return self.directory / "processes" / process


@dataclasses.dataclass(frozen=True)
class Fleet:
    """A whole fleet.

    Attributes
    ----------
    name : str
        Its name.
    directory : Path
        Where everything of it lies on this machine, keys and logs included.
    server, tls, restarts
        See there.
    devices : tuple of Device
        In the order of the file.
    presets : Mapping of str to Mapping
        Run-config keys and values by the preset's name, shared settings merged in.
    source : Path
        The file that describes it.
    secure : bool
        Whether TLS and node authentication are on. Only the flag `--insecure` turns them off.
    """

    name: str
    directory: Path
    server: Server
    tls: Tls
    restarts: Restarts
    devices: tuple[Device, ...]
    presets: Mapping[str, Mapping[str, Any]]
    source: Path
    secure: bool = True

    @property
    def files(self) -> Files:
        """Where its files lie."""
        return Files(self.directory, self.tls)

    def device(self, client_id: int) -> Device:
        """Return one device by its client id, or raise `ConfigError`."""
        for device in self.devices:
            if device.client_id == client_id:
                return device
        known = ", ".join(str(device.client_id) for device in self.devices)
        raise ConfigError(f"client-id = {client_id}: no device of {self.source}; it has {known}")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, whatever its network."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_port(host: str, port: int) -> str:
    """Join host and port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
