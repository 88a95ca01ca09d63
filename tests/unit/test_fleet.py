"""The fleet file: what it says, and that every mistake is one line that names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.common.config import parse_config_args

from deploy.fleet.description import Fleet, is_loopback
from deploy.fleet.fleet_file import read_fleet
from strategies.base.options import ConfigError

EXAMPLE = Path(__file__).parents[2] / "deploy" / "fleet.yaml"

Change = Callable[[dict[str, Any]], object]


def content() -> dict[str, Any]:
    return {
        "name": "two",
        "directory": "/somewhere/two",
        "server": {"port": 9000},
        "devices": [
            {"client-id": 3, "model": "cnn1", "device": "cpu", "partition-id": 0},
            {"client-id": 7, "data-dir": "/data/site 7", "device": "cuda:0", "threads": 4},
        ],
        "settings": {"num-rounds": 4, "fedproto": {"prototype-weight": 2.0}},
        "presets": {"short": {"method": "fedproto", "num-rounds": 1}, "plain": {}},
    }


def read(tmp_path: Path, change: Change = lambda top: None) -> Fleet:
    top = content()
    change(top)
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(top))
    return read_fleet(path)


def test_the_example_is_three_devices_with_three_architectures() -> None:
    fleet = read_fleet(EXAMPLE)
    assert len({device.model for device in fleet.devices}) == 3
    assert [(d.partition_id, d.num_partitions) for d in fleet.devices] == [(0, 3), (1, 3), (2, 3)]
    assert {"fedre", "fedproto"} <= set(fleet.presets)
    assert fleet.presets["fedre"]["min-clients"] == 3
    assert fleet.secure
    assert is_loopback(fleet.server.listens_on)


def test_what_the_file_says(tmp_path: Path) -> None:
    fleet = read(tmp_path)
    assert fleet.server.endpoint == fleet.server.local_endpoint == "127.0.0.1:9000"
    assert fleet.presets == {
        "short": {
            "min-clients": 2, "method": "fedproto", "num-rounds": 1,
            "fedproto.prototype-weight": 2.0,
        },
        "plain": {"min-clients": 2, "num-rounds": 4, "fedproto.prototype-weight": 2.0},
    }  # fmt: skip
    assert fleet.device(7).name == "client-7"
    assert fleet.device(7).num_partitions is None
    assert fleet.files.key(fleet.device(7)) == Path("/somewhere/two/keys/client-7")
    with pytest.raises(ConfigError, match=r"client-id = 5: .*; it has 3, 7"):
        fleet.device(5)


def test_flower_reads_the_node_config_as_it_was_meant(tmp_path: Path) -> None:
    first, second = read(tmp_path).devices
    assert parse_config_args([first.node_config("/state/3")]) == {
        "client-id": 3, "partition-id": 0, "num-partitions": 2, "model": "cnn1",
        "device": "cpu", "threads": 1, "state-dir": "/state/3",
    }  # fmt: skip
    second = dataclasses.replace(second, state_dir="/own")
    assert parse_config_args([second.node_config("/state/7")]) == {
        "client-id": 7, "data-dir": "/data/site 7", "device": "cuda:0", "threads": 4,
        "state-dir": "/own",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("server", "listens_on", "local"),
    [
        ({"address": "localhost"}, "127.0.0.1", "127.0.0.1:9000"),
        ({"address": "::1"}, "::1", "[::1]:9000"),
        ({"address": "fleet.example.org", "allow-remote": True}, "0.0.0.0", "127.0.0.1:9000"),
        (
            {"address": "fleet.example.org", "allow-remote": True, "listen": "127.0.0.1"},
            "127.0.0.1",
            "127.0.0.1:9000",
        ),
        ({"listen": "10.0.0.5", "allow-remote": True}, "10.0.0.5", "10.0.0.5:9000"),
    ],
)
def test_where_the_superlink_listens(
    tmp_path: Path, server: dict[str, Any], listens_on: str, local: str
) -> None:
    fleet = read(tmp_path, lambda top: top["server"].update(server))
    assert fleet.server.listens_on == listens_on
    assert fleet.server.local_endpoint == local


def drop(key: str) -> Change:
    return lambda top: top.pop(key)


def put(*path: Any) -> Change:
    """Set the value at a path of keys and indices."""

    def change(top: dict[str, Any]) -> None:
        *above, last, value = path
        place: Any = top
        for step in above:
            place = place[step]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("sever", {}), "sever: unknown configuration key; did you mean server?"),
        (drop("name"), "name = None: expected a name of letters"),
        (put("name", "a/b"), "name = 'a/b': expected"),
        (put("server", "port", 70000), "server.port = 70000: expected an integer"),
        (put("server", "prot", 1), "server.prot: unknown configuration key; did you mean"),
        (put("server", "address", "http://a:1"), "server.address = 'http://a:1': expected a"),
        (put("server", "address", "10.0.0.1"), "'10.0.0.1': expected this machine only"),
        (put("server", "listen", "0.0.0.0"), "server.listen = '0.0.0.0': expected this mach"),
        (put("server", "listen", "localhost"), "server.listen = 'localhost': expected an IP"),
        (put("server", "names", "a"), "server.names = 'a': expected a list"),
        (put("tls", {"key": "server.key"}), "tls.ca = '': expected all three"),
        (put("tls", {"days": 0}), "tls.days = 0: expected an integer of at least 1"),
        (put("restarts", {"within": "long"}), "restarts.within = 'long': expected a number"),
        (put("devices", []), "devices = []: expected a list of at least one"),
        (drop("devices"), "devices = None: expected a list"),
        (put("devices", 0, 5), "devices[0] = 5: expected a mapping"),
        (put("devices", 1, "client-id", 3), "devices[1].client-id = 3: expected a number that"),
        (put("devices", 1, "client-id", "7"), "devices[1].client-id = '7': expected an integ"),
        (put("devices", 0, {"partition-id": 0}), "devices[0].client-id: missing"),
        (put("devices", 0, "model", "cnn11"), "devices[0].model = 'cnn11': "),
        (put("devices", 0, "modle", "cnn1"), "devices[0].modle: unknown configuration key; did"),
        (put("devices", 0, "device", "gpu"), "devices[0].device = 'gpu': expected auto, cpu"),
        (put("devices", 0, "threads", 0), "devices[0].threads = 0: expected an integer of"),
        (put("devices", 0, "data-dir", "/data"), "client 3 has both data-dir and partition-id"),
        (put("devices", 1, {"client-id": 7}), "devices[1]: client 7 has no data"),
        (put("devices", 1, "data-dir", "data"), "devices[1].data-dir = 'data': expected an abs"),
        (put("devices", 1, "data-dir", '/a"b'), "data-dir = '/a\"b': Flower's node-config cannot"),
        (put("devices", 0, "partition-id", 2), "partition-id = 2: expected an integer below"),
        (put("devices", 0, "dataset", "digit"), "devices[0].dataset = 'digit': expected one"),
        (
            put("devices", 1, {"client-id": 7, "partition-id": 0}),
            "devices[1].partition-id = 0: expected a number that no other device has; client 3",
        ),
        (put("num-partitions", "2"), "num-partitions = '2': expected an integer"),
        (put("settings", "rounds", 3), "settings: rounds: unknown configuration key; did you me"),
        (put("presets", "short", "lr", "fast"), "presets.short: lr = 'fast': expected"),
        (put("presets", "short", "method", "fed"), "presets.short: method = 'fed': expected"),
        (put("directory", "here"), "directory = 'here': expected an absolute path"),
        (put("directory", str(EXAMPLE.parent / "x")), "expected a place outside"),
    ],
)
def test_a_mistake_is_one_line_with_file_key_and_value(
    tmp_path: Path, change: Change, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, change)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'fleet.yaml'}: ")
    assert said in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [", "cannot be read as a fleet file"),
        ("name: a\nname: b\n", "line 2: 'name' is given twice"),
        ("", "the file = None: expected a mapping"),
        ("3: x\n", "expected a mapping of names"),
    ],
)
def test_what_is_no_fleet_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_fleet(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read"):
        read_fleet(tmp_path / "missing.yaml")


def test_own_certificates_lie_beside_the_fleet_file(tmp_path: Path) -> None:
    own = {"ca": "ca.crt", "certificate": "/etc/server.crt", "key": "server.key"}
    fleet = read(tmp_path, put("tls", own))
    assert fleet.files.ca == tmp_path / "ca.crt"
    assert fleet.files.certificate == Path("/etc/server.crt")
    assert fleet.files.certificate_key == tmp_path / "server.key"


@pytest.mark.parametrize("name", ["cifar10", "hf:uoft-cs/cifar10@main"])
def test_a_device_of_a_shared_data_set_may_say_where_it_lies(tmp_path: Path, name: str) -> None:
    fleet = read(
        tmp_path,
        lambda top: top["devices"][0].update({"dataset": name, "data-dir": "/data/cifar"}),
    )
    assert fleet.devices[0].num_partitions == 2
    assert f'dataset="{name}"' in fleet.devices[0].node_config("")


def test_only_the_named_kinds_of_address_are_this_machine() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"))


def test_a_device_may_have_a_task_of_its_own(tmp_path: Path) -> None:
    def with_task(task: str, place: str = "/data/public") -> Change:
        return lambda top: top["devices"][1].update({"task": task, "public-dir": place})

    device = read(tmp_path, with_task("multilabel@voc")).devices[1]
    told = parse_config_args([device.node_config("/state")])
    assert (told["task"], told["public-dir"]) == ("multilabel@voc", "/data/public")
    with pytest.raises(ConfigError, match=r"devices\[1\].task = 'multilable@voc': .*multilabel"):
        read(tmp_path, with_task("multilable@voc"))
    with pytest.raises(ConfigError, match=r"devices\[1\].public-dir = 'public': .*absolute"):
        read(tmp_path, with_task("multilabel@voc", "public"))
