"""The containers: what can be known of the files without an engine that runs them."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.common.config import parse_config_args
from flwr.supercore.cli.flower_superexec import _parse_args as superexec_parser
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as superlink_parser
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as supernode_parser
from packaging.requirements import Requirement

from client_app.node import NODE_KEYS
from deploy.fleet import superlink_program
from deploy.fleet.description import Device, Files, Tls
from deploy.fleet.device_map import device_map
from tests.proxy_support import make_fleet

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
FLEET = "/fleet"
FLOWER_UID = 49999


def interpolated(value: Any, environment: dict[str, str]) -> Any:
    """Put variables in as compose does; one that must be set and is not is a KeyError."""

    def put(match: re.Match[str]) -> str:
        name, kind, default = match.groups()
        if kind == "-":
            return environment.get(name) or default
        return environment[name]

    if isinstance(value, dict):
        return {key: interpolated(item, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, environment) for item in value]
    return VARIABLE.sub(put, value) if isinstance(value, str) else value


def load(name: str, **environment: str) -> dict[str, Any]:
    content = yaml.safe_load((DEPLOY / name).read_text())
    return interpolated(content, {"WILDFLOWER_FLEET": FLEET, **environment})


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return load("compose.yaml")


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return compose["services"]


def flower_version() -> str:
    return importlib.metadata.version("flwr")


def arguments(service: dict[str, Any]) -> argparse.Namespace:
    """Read a service's command with the parser of the program that its image runs."""
    image = service["image"].partition(":")[0]
    parsers = {
        "flwr/superlink": superlink_parser,
        "flwr/supernode": supernode_parser,
        "wildflower-superexec": superexec_parser,
    }
    return parsers[image]().parse_args(service["command"])


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_the_files_follow_the_compose_specification(name: str, tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema, which has the schema")
    assert follows_specification(DEPLOY / name)
    broken = tmp_path / name
    broken.write_text((DEPLOY / name).read_text().replace("services:", "servces:"))
    assert not follows_specification(broken)


def follows_specification(path: Path) -> bool:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(path)], check=False, capture_output=True, timeout=60)
    return done.returncode == 0


def test_docker_reads_the_files() -> None:
    """`config` needs no engine, but compose, which is a plugin of its own."""
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run(
            [docker, "compose", "version"], check=False, capture_output=True, timeout=60
        ).returncode
    ):
        pytest.skip("needs docker compose")
    files = ["-f", str(DEPLOY / "compose.yaml"), "-f", str(DEPLOY / "compose.cuda.yaml")]
    subprocess.run(
        [docker, "compose", *files, "config", "--quiet"],
        check=True, env={"WILDFLOWER_FLEET": FLEET, "PATH": "/usr/bin:/bin"}, timeout=60,
    )  # fmt: skip


def test_flowers_images_have_the_version_that_the_project_names(
    services: dict[str, dict[str, Any]],
) -> None:
    tags = {service["image"] for service in services.values()}
    versions = {tag.partition(":")[2] for tag in tags if not tag.startswith("nginx:")}
    assert len(versions) == 1
    version = versions.pop()
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    flwr = next(r for r in map(Requirement, project["dependencies"]) if r.name == "flwr")
    assert flwr.specifier.contains(version)
    # Flags and paths differ between minor versions; tests run with this one.
    assert version.split(".")[:2] == flower_version().split(".")[:2]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"ARG FLWR_VERSION=(\S+)", dockerfile) == [version]
    cuda = load("compose.cuda.yaml")["services"]
    assert {service["image"] for service in cuda.values()} == {
        f"wildflower-superexec:{version}-cuda"
    }


def test_flowers_programs_know_every_flag(services: dict[str, dict[str, Any]]) -> None:
    read = {name: arguments(s) for name, s in services.items() if name != "proxy"}
    assert len(read) == 6
    superlink = read["superlink"]
    assert superlink.enable_supernode_auth
    assert not superlink.insecure
    assert superlink.isolation == "process"
    assert superlink.database == "/app/state/superlink.db"
    for number in (0, 1):
        supernode = read[f"supernode-{number}"]
        assert not supernode.insecure
        assert supernode.isolation == "process"
        assert supernode.auth_supernode_private_key == f"/run/secrets/client-{number}"


def test_every_address_is_a_service_that_listens_there(
    services: dict[str, dict[str, Any]],
) -> None:
    ports = {"proxy": 8443}
    for name in ("superlink", "supernode-0", "supernode-1"):
        own = arguments(services[name])
        assert own.host == "0.0.0.0"  # Flower's default is unreachable from other containers
        ports[name] = own.port
    found = 0
    for service in services.values():
        for word in service.get("command", []):
            target = re.fullmatch(r"--(?:superlink|runtime-api-address)=(.+):(\d+)", word)
            if target:
                found += 1
                assert ports[target[1]] == int(target[2])
                assert set(service["networks"]) & set(services[target[1]]["networks"])
    assert found == 5
    conf = (DEPLOY / "nginx.conf").read_text()
    assert "listen 0.0.0.0:8443 ssl;" in conf
    assert f'set $superlink "superlink:{ports["superlink"]}";' in conf


def test_the_control_api_is_published_to_this_machine_only() -> None:
    everywhere = {"WILDFLOWER_PUBLISH": "0.0.0.0", "WILDFLOWER_PORT": "443"}
    for environment in ({}, everywhere):
        services = load("compose.yaml", **environment)["services"]
        published = {name: s["ports"] for name, s in services.items() if "ports" in s}
        assert published["superlink"] == ["127.0.0.1:8000:8000"]
        assert published["proxy"] == ["0.0.0.0:443:8443" if environment else "127.0.0.1:8443:8443"]
        assert len(published) == 2
        for service in services.values():
            assert service.get("network_mode") is None


def test_submitted_code_on_a_device_is_alone_with_its_supernode(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    members = {
        network: {name for name, s in services.items() if network in s["networks"]}
        for network in compose["networks"]
    }
    assert members["server"] == {"superlink", "superexec-server", "proxy"}
    for number in (0, 1):
        network = f"device-{number}"
        assert members[network] == {f"supernode-{number}", f"superexec-client-{number}"}
        assert compose["networks"][network] == {"internal": True}
        executor = services[f"superexec-client-{number}"]
        assert executor["networks"] == [network]
        assert executor["secrets"] == [f"client-{number}.secret"]  # above all no private key
        assert not services[f"supernode-{number}"].get("volumes")


def test_secrets_are_those_of_the_fleets_directory(compose: dict[str, Any]) -> None:
    files = Files(Path(FLEET), Tls())
    wanted = {
        "ca.crt": files.ca,
        "server.crt": files.certificate,
        "server.key": files.certificate_key,
        "superexec.secret": files.secret,
    }
    for number in (0, 1):
        device = Device(client_id=number)
        wanted[f"client-{number}"] = files.key(device)
        wanted[f"client-{number}.secret"] = files.of(device.name) / "superexec.secret"
    assert compose["secrets"] == {name: {"file": str(path)} for name, path in wanted.items()}


def test_a_service_has_exactly_the_secrets_that_it_names(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    for name, service in services.items():
        named = {
            secret
            for text in [*strings(service), *([(DEPLOY / "nginx.conf").read_text()]
                                              if name == "proxy" else [])]
            for secret in re.findall(r"/run/secrets/([\w.-]+)", text)
        }  # fmt: skip
        assert set(service["secrets"]) == named, name
    used = {secret for service in services.values() for secret in service["secrets"]}
    assert used == set(compose["secrets"])
    holders = [name for name, s in services.items() if "server.key" in s["secrets"]]
    assert holders == ["superlink", "proxy"]


def test_what_must_survive_lies_in_the_fleets_directory(
    services: dict[str, dict[str, Any]],
) -> None:
    """Where natively started processes have it too, so that a fleet can change between them."""
    files = Files(Path(FLEET), Tls())
    mounts = {name: s.get("volumes", []) for name, s in services.items()}
    state, program = mounts["superlink"]
    assert state == f"{files.of('superlink')}:/app/state"
    source, target, mode = program.split(":")
    assert services["superlink"]["entrypoint"] == ["python", target]
    assert (DEPLOY / source).samefile(superlink_program.__file__)
    assert mode == "ro"
    assert mounts["superexec-server"] == [f"{files.of('superexec')}/wildflower:/app/wildflower"]
    keys = device_map(make_fleet(Path(FLEET), 8000))
    assert f"{keys.parent}:/etc/wildflower:ro" in mounts["proxy"]
    assert 'include "/etc/wildflower/devices.map";' in (DEPLOY / "nginx.conf").read_text()
    for number in (0, 1):
        supernode = arguments(services[f"supernode-{number}"])
        node = parse_config_args([supernode.node_config])
        assert set(node) <= set(NODE_KEYS)
        assert node["client-id"] == number
        home = files.of(f"client-{number}")
        assert mounts[f"superexec-client-{number}"] == [
            f"{home / 'state'}:{node['state-dir']}",
            f"/srv/wildflower/client-{number}:{node['data-dir']}:ro",
        ]


def test_every_service_comes_back_and_is_watched(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["logging"]["options"]["max-size"], name
        assert service["mem_limit"] == ("256m" if name == "proxy" else "4g"), name
        for other in service.get("depends_on", []):
            assert other in services


def test_health_checks_are_python_that_can_be_read(services: dict[str, dict[str, Any]]) -> None:
    checked = 0
    for service in services.values():
        _, program, *rest = service["healthcheck"]["test"]
        if program == "python":
            flag, code = rest
            assert flag == "-c"
            compile(code, "healthcheck", "exec")
            checked += 1
    assert checked == 6
    for service in services.values():
        if service["image"].startswith("wildflower-superexec"):
            assert arguments(service).health_server_address == "127.0.0.1:9100"
            assert "9100" in service["healthcheck"]["test"][-1]


def test_a_health_check_fails_if_nothing_answers(services: dict[str, dict[str, Any]]) -> None:
    """Run as they are, with ports that nothing listens on here."""
    for name in ("supernode-0", "superexec-server"):
        code = re.sub(r"9094|9100", "1", services[name]["healthcheck"]["test"][-1])
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
        assert done.returncode != 0


def test_the_gpu_variant_changes_executors_of_devices_only(
    services: dict[str, dict[str, Any]],
) -> None:
    cuda = load("compose.cuda.yaml", WILDFLOWER_CUDA_INDEX="cu-index")["services"]
    assert set(cuda) == {name for name in services if name.startswith("superexec-client")}
    for service in cuda.values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert service["build"]["args"]["TORCH_INDEX"] == "cu-index"


def test_no_host_of_a_registry_is_committed() -> None:
    for name in ("compose.yaml", "compose.cuda.yaml", "Dockerfile"):
        urls = re.findall(r"https?://([\w.-]+)", (DEPLOY / name).read_text())
        assert set(urls) <= {"localhost", "127.0.0.1"}


@pytest.mark.parametrize("index", ["", "the-index"])
def test_the_image_gets_what_the_project_names_but_flower(tmp_path: Path, index: str) -> None:
    """The build's own command line, run with a pip that only notes what it is asked for."""
    text = (DEPLOY / "Dockerfile").read_text()
    run = text.partition("\nRUN ")[2].replace("\\\n", "")
    shutil.copy(DEPLOY.parent / "pyproject.toml", tmp_path)
    shutil.copy(DEPLOY / "constraints.txt", tmp_path)
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
if [ "$1" = -c ]; then exec {sys.executable} "$@"; fi
if [ "$3" = freeze ]; then echo flwr==1.42.0; exit; fi
echo "$@" >> pip.log
for word; do case "$word" in *.txt) cat "$word" >> pip.log; echo >> pip.log;; esac; done
"""
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    subprocess.run(
        ["sh", "-e", "-c", run], check=True, cwd=tmp_path, timeout=60,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TORCH_INDEX": index},
    )  # fmt: skip
    asked = [line for line in (tmp_path / "pip.log").read_text().splitlines() if line]
    option = f" --index-url {index}" if index else ""
    assert asked[0] == f"-m pip install --no-cache-dir{option} -c tested.txt -r torch.txt"
    second = asked.index("-m pip install --no-cache-dir -c keep.txt -r rest.txt")
    pinned = (DEPLOY / "constraints.txt").read_text().splitlines()
    assert asked[1:3] == [line for line in pinned if re.match("torch(vision)?==", line)]
    assert [line.partition(">")[0] for line in asked[3:second]] == ["torch", "torchvision"]
    # Flower as the image has it, everything else as it was tested.
    assert asked[second + 1] == "flwr==1.42.0"
    rest = [line for line in pinned if not line.startswith("flwr==")]
    assert asked[second + 2 : second + 2 + len(rest)] == rest
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    wanted = [n for n in project["dependencies"] if not n.startswith(("torch", "flwr["))]
    assert asked[second + 2 + len(rest) :] == wanted
    assert not list(tmp_path.glob("*.txt"))
