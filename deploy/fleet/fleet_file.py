"""Reading a fleet file: checked as a whole; the first mistake ends in one line."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from data import DataError
from data.spec import EXPECTED_DATASET, is_dataset
from data.tasks import parse_task
from deploy.fleet.description import Device, Fleet, Restarts, Server, Tls, is_loopback
from deploy.yaml_files import read_yaml
from models import ModelError, model_info
from models.own_code import searching
from strategies.base.options import ConfigError, parse_options, unknown_key
from strategies.base.parsing import default_run_config, parse_run_config
from strategies.base.run_config import DEVICE, NAME

KEYS = (
    "name", "directory", "server", "tls", "restarts", "num-partitions", "devices", "settings",
    "presets",
)  # fmt: skip
"""Top-level keys of a fleet file."""

FOLDERS = ("data-dir", "state-dir", "public-dir", "code-dir")
"""Keys of a device that name a folder on it."""

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
PLACES = "~/wildflower/fleets"
"""Below it a fleet has its directory unless the file names another."""

T = TypeVar("T")


def read_fleet(path: Path) -> Fleet:
    """Read and check a fleet file.

    Raises
    ------
    ConfigError
        One line that names file, key, value and what is expected.
    """
    content = read_yaml(path, "a fleet file")
    try:
        return make_fleet(content, path)
    except (ConfigError, ModelError) as error:
        raise ConfigError(f"{path}: {error}") from error


def make_fleet(content: object, source: Path) -> Fleet:
    """Check the content of a fleet file; see `read_fleet`."""
    top = _mapping(content, "the file")
    for key in top:
        if key not in KEYS:
            raise unknown_key(key, dict.fromkeys(KEYS))
    name = top.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"name = {name!r}: expected a name of letters, digits, '.', '_', '-'")
    devices = _devices(top)
    return Fleet(
        name=name,
        directory=_directory(top.get("directory", f"{PLACES}/{name}")),
        server=_server(top.get("server", {})),
        tls=_tls(top.get("tls", {}), source),
        restarts=_options(Restarts, top.get("restarts", {}), "restarts"),
        devices=devices,
        presets=_presets(top, len(devices)),
        source=source,
    )


def _server(value: object) -> Server:
    values = _mapping(value, "server")
    names = _list(values.pop("names", []), "server.names")
    server = _options(Server, values, "server")
    for key, hosts in (("address", [server.address]), ("names", names)):
        for host in hosts:
            if not isinstance(host, str) or not (HOST.fullmatch(host) or _is_ip(host)):
                raise ConfigError(
                    f"server.{key} = {host!r}: expected a host name or an IP address, without "
                    "a port"
                )
    if server.listen and not _is_ip(server.listen):
        raise ConfigError(f"server.listen = {server.listen!r}: expected an IP address")
    for key, host in (("address", server.address), ("listen", server.listens_on)):
        if not is_loopback(host) and not server.allow_remote:
            raise ConfigError(
                f"server.{key} = {host!r}: expected this machine only (127.0.0.1, localhost or "
                "::1) unless the file says allow-remote: true under server"
            )
    return dataclasses.replace(server, names=tuple(names))


def _tls(value: object, source: Path) -> Tls:
    tls = _options(Tls, value, "tls")
    files = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    missing = [key for key, file in files.items() if not file]
    if len(missing) == len(files):
        return tls
    if missing:
        raise ConfigError(
            f"tls.{missing[0]} = '': expected all three of ca, certificate and key, or none"
        )
    # Relative to the fleet file, wherever the command is started.
    base = source.expanduser().absolute().parent
    found = {key: str(base / Path(file).expanduser()) for key, file in files.items()}
    return Tls(days=tls.days, **found)


def _devices(top: Mapping[str, Any]) -> tuple[Device, ...]:
    items = _list(top.get("devices"), "devices")
    if not items:
        raise ConfigError("devices = []: expected a list of at least one device")
    count = top.get("num-partitions", len(items))
    if type(count) is not int or count < 1:
        raise ConfigError(f"num-partitions = {count!r}: expected an integer of at least 1")
    devices = tuple(_device(item, f"devices[{i}]", count) for i, item in enumerate(items))
    _refuse_twins(devices)
    return devices


def _device(value: object, where: str, partitions: int) -> Device:
    values = _mapping(value, where)
    if "client-id" not in values:
        raise ConfigError(f"{where}.client-id: missing; expected an integer of at least 0")
    device = _options(Device, values, where)
    for key in (*FOLDERS, "allowed-apps", "trusted-entities"):
        folder = str(values.get(key, ""))
        if folder and not Path(folder).expanduser().is_absolute():
            raise ConfigError(
                f"{where}.{key} = {folder!r}: expected an absolute path, or one that starts with ~"
            )
    if not DEVICE.fullmatch(device.device):
        raise ConfigError(f"{where}.device = {device.device!r}: expected auto, cpu, cuda or cuda:N")
    if device.task:
        try:
            parse_task(device.task)
        except DataError as error:
            raise ConfigError(f"{where}.task = {device.task!r}: {error}") from error
    if device.dataset and not is_dataset(device.dataset):
        raise ConfigError(f"{where}.dataset = {device.dataset!r}: expected {EXPECTED_DATASET}")
    # A user's own `module:factory` can be looked up only on the device.
    if device.model and ":" not in device.model:
        try:
            model_info(device.model)
        except ModelError as error:
            raise ConfigError(f"{where}.model = {device.model!r}: {error}") from error
    device = dataclasses.replace(device, num_partitions=_shares(device, where, partitions))
    device.node_config("")  # refuses what node-config cannot carry
    return device


def _shares(device: Device, where: str, partitions: int) -> int | None:
    """Return of how many shares the device has one, or None if it has data of its own."""
    if device.partition_id is None:
        if not device.data_dir:
            raise ConfigError(
                f"{where}: client {device.client_id} has no data; expected either data-dir "
                "(a folder on the device) or partition-id"
            )
        return None
    if device.data_dir and device.dataset in ("", "imagefolder"):
        raise ConfigError(
            f"{where}: client {device.client_id} has both data-dir and partition-id; expected "
            "one of them (with `dataset`, data-dir says where the shared data set lies)"
        )
    if device.partition_id >= partitions:
        raise ConfigError(
            f"{where}.partition-id = {device.partition_id}: expected an integer below "
            f"num-partitions = {partitions}"
        )
    return partitions


def _refuse_twins(devices: Iterable[Device]) -> None:
    seen: dict[tuple[str, object], Device] = {}
    for number, device in enumerate(devices):
        unique = {"client-id": device.client_id}
        if device.partition_id is not None:
            unique["partition-id"] = device.partition_id
        for key, value in unique.items():
            if (key, value) in seen:
                raise ConfigError(
                    f"devices[{number}].{key} = {value}: expected a number that no other "
                    f"device has; client {seen[key, value].client_id} has it"
                )
            seen[key, value] = device


def _presets(top: Mapping[str, Any], clients: int) -> dict[str, dict[str, Any]]:
    shared = _settings(top.get("settings"), "settings")
    presets = _mapping(top.get("presets") or {}, "presets")
    complete = {}
    for name, values in presets.items():
        own = _settings(values, f"presets.{name}")
        config = {"min-clients": clients, **shared, **own}
        try:
            with searching(str(config.get("code-dir", ""))):
                parse_run_config(config)
        except ConfigError as error:
            raise ConfigError(f"presets.{name}: {error}") from error
        complete[name] = config
    return complete


def _settings(value: object, where: str) -> dict[str, Any]:
    """Return run-config keys and values; a nested mapping gives dotted keys."""
    flat: dict[str, Any] = {}
    for key, item in _mapping(value or {}, where).items():
        if isinstance(item, dict):
            flat |= {f"{key}.{k}": v for k, v in _mapping(item, f"{where}.{key}").items()}
        else:
            flat[key] = item
    known = default_run_config()
    for key in flat:
        if key not in known:
            raise ConfigError(f"{where}: {unknown_key(key, known)}")
    return flat


def _directory(value: object) -> Path:
    path = Path(value).expanduser() if isinstance(value, str) and value else None
    if path is None or not path.is_absolute():
        raise ConfigError(
            f"directory = {value!r}: expected an absolute path, or one that starts with ~"
        )
    checkout = Path(__file__).absolute().parents[2]
    if (checkout / "pyproject.toml").is_file() and path.resolve().is_relative_to(checkout):
        raise ConfigError(
            f"directory = {value!r}: expected a place outside {checkout}, because private keys "
            "go there"
        )
    return path


def _options(cls: type[T], value: object, where: str) -> T:
    prefix = where + "."
    values = {prefix + key: item for key, item in _mapping(value, where).items()}
    return parse_options(cls, values, prefix)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{where} = {value!r}: expected a mapping of names to values")
    return dict(value)


def _list(value: object, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{key} = {value!r}: expected a list")
    return value
