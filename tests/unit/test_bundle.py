"""What `flwr run` sends to every device: the app's code, and no key, wherever keys lie."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from deploy.fleet.description import Device, Fleet, Restarts, Server, Tls
from deploy.fleet.identities import make_identities

ROOT = Path(__file__).parents[2]
SENT = ("client_app", "data", "models", "server_app", "strategies")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A checkout with little code, in whose places fleets keep their keys, against all advice."""
    app = tmp_path / "app"
    for folder in SENT:
        (app / folder).mkdir(parents=True)
        (app / folder / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, app / name)
    for place in (app, app / "server_app", app / "deploy"):
        directory = place / "fleet"
        directory.mkdir(parents=True)
        fleet = Fleet(
            name="test", directory=directory, server=Server(), tls=Tls(), restarts=Restarts(),
            devices=(Device(client_id=0, data_dir="/data"),), presets={}, source=app / "fleet.yaml",
        )  # fmt: skip
        make_identities(fleet)
        key = fleet.files.key(fleet.devices[0])
        for name in ("key.json", "key.toml", "key.md"):  # kinds that Flower would take
            shutil.copy(key, directory / name)
    return app


def test_no_key_enters_the_bundle(app: Path) -> None:
    keys = [path for path in app.rglob("*") if path.is_file() and is_private(path.read_bytes())]
    assert len(keys) == 3 * (3 + 3)
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        names = bundle.namelist()
        assert not any(is_private(bundle.read(name)) for name in names)
    assert "server_app/__init__.py" in names
    assert not any("fleet" in name for name in names)


def test_the_bundle_is_the_app_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT))) as bundle:
        names = set(bundle.namelist())
        assert not any(is_private(bundle.read(name)) for name in names)
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders - {".info"} == set(SENT)
    assert {"pyproject.toml", "README.md", "LICENSE", "client_app/app.py"} <= names


def is_private(content: bytes) -> bool:
    return b"PRIVATE KEY-----" in content and b"BEGIN" in content
