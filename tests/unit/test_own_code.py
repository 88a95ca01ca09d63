"""A user's own files: found without PYTHONPATH, and never in the way of our packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app
from client_app.machine import machine_text
from deploy.compare.plan import make_plan
from deploy.run import with_code_dir
from models import InputShape, ModelError, build_model, model_info
from models.own_code import OwnCodeError, load_own, refusing, searching
from models.package_names import NAMES
from server_app.own_names import unnamed_by
from server_app.rounds.method_server import MethodServer
from strategies.base.messages import CLIENT_INFO
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from tests.support import OWN_MODEL, make_hostile, run_federation
from tests.unit.test_roster import a_client_info

ROOT = Path(__file__).parents[2]
SHAPE = InputShape(3, 16, 4)


def test_a_factory_is_found_by_file_in_the_folder(folder: Path) -> None:
    (folder / "nets.py").write_text(OWN_MODEL)
    with pytest.raises(ModelError, match=r"'nets:tiny': cannot import 'nets'.*set code-dir to"):
        model_info("nets:tiny")
    with searching(folder):
        model = build_model("nets:tiny", SHAPE)
    assert (model.name, model.raw_dim) == ("nets:tiny", 64)
    assert "nets" not in sys.modules


@pytest.mark.parametrize("name", NAMES)
def test_a_file_may_be_called_like_our_packages(folder: Path, name: str) -> None:
    """`models.py` with own models is what a user would write first."""
    (folder / f"{name}.py").write_text(OWN_MODEL)
    with searching(folder):
        assert build_model(f"{name}:tiny", SHAPE).raw_dim == 64
    assert not str(getattr(sys.modules.get(name), "__file__", "")).startswith(str(folder))


def test_the_users_files_import_each_other(folder: Path) -> None:
    """As ordinary modules, relatively, in a package with and in one without __init__.py."""
    (folder / "blocks_of_mine.py").write_text("WIDTH = 7\n")
    for package in ("plain", "proper"):
        (folder / package).mkdir()
        (folder / package / "parts.py").write_text(
            "from blocks_of_mine import WIDTH\n"
            "from ..blocks_of_mine import WIDTH as again\n"
            "def late():\n    import blocks_of_mine\n    return blocks_of_mine.WIDTH + again\n"
        )
    (folder / "proper" / "__init__.py").write_text("from .parts import late as later\n")
    with searching(folder):
        assert load_own("plain.parts:WIDTH") == 7
        found = [load_own("plain.parts:late"), load_own("proper:later")]
    assert [function() for function in found if callable(function)] == [14, 14]


def test_an_installed_module_is_not_hidden(folder: Path) -> None:
    """A file `random.py` or `torch.py` of the user's is not what others import."""
    (folder / "filelock.py").write_text("raise RuntimeError('mine')\n")
    (folder / "nets.py").write_text("import filelock\nfrom data import DATASETS\nNAME = 1\n")
    with searching(folder):
        assert load_own("nets:NAME") == 1
    with searching(folder), pytest.raises(OwnCodeError, match="RuntimeError: mine"):
        load_own("filelock:NAME")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("from data import loader", "'data' is Wildflower's own package.*from . import data"),
        ("import models.blocks", "'models' is Wildflower's own package"),
        ("import nowhere_at_all", "ModuleNotFoundError: .*nowhere_at_all.*looked in .*gärten"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_module_that_fails_is_named_with_the_remedy(folder: Path, text: str, reason: str) -> None:
    (folder / "nets.py").write_text(text + "\n")
    (folder / "data").mkdir()
    with (
        searching(folder),
        pytest.raises(OwnCodeError, match=f"(?s)cannot import 'nets'.*{reason}"),
    ):
        load_own("nets:tiny")


@pytest.mark.parametrize(
    "address", ["nets", "nets:", ":tiny", "../nets:tiny", "nets:a.b", "a..b:c"]
)
def test_what_is_no_address_is_refused(folder: Path, address: str) -> None:
    with searching(folder), pytest.raises(OwnCodeError):
        load_own(address)


def test_a_registered_model_may_be_loaded_twice(folder: Path) -> None:
    """`main.py` imports `nets`, and the run names both."""
    (folder / "nets_registered.py").write_text(
        "from models import register_model\n" + OWN_MODEL.replace(
            "def tiny", "@register_model('tiny-of-test', description='small')\ndef tiny"
        )
    )  # fmt: skip
    (folder / "main_registered.py").write_text("from nets_registered import tiny\n")
    with searching(folder):
        first = model_info("main_registered:tiny")
        second = model_info("nets_registered:tiny")
    assert first.description == second.description == "small"
    with pytest.raises(ModelError, match="already registered"):
        load_and_register(folder)


def load_and_register(folder: Path) -> None:
    (folder / "others.py").write_text((folder / "nets_registered.py").read_text())
    with searching(folder):
        model_info("others:tiny")


def test_the_key_is_an_absolute_folder() -> None:
    assert parse_run_config({"code-dir": "~/nets"}).code_dir == "~/nets"
    with pytest.raises(ConfigError, match=r"code-dir = 'nets': expected an absolute path"):
        parse_run_config({"code-dir": "nets"})


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"looked in .*nowhere, which is no folder here"):
        run_federation(tmp_path, 2, models="nets:tiny", code_dir=str(tmp_path / "nowhere"))


def test_a_device_decides_by_itself_where_code_lies(folder: Path, tmp_path: Path) -> None:
    """Its node-config wins over the run's key."""
    (folder / "nets.py").write_text(OWN_MODEL)
    other = tmp_path / "other"
    other.mkdir()
    (other / "nets.py").write_text(OWN_MODEL.replace("64", "32"))
    node = {"partition-id": 1, "num-partitions": 2, "code-dir": str(other)}
    run = run_federation(
        tmp_path, 2, nodes={1: node}, models="nets:tiny", code_dir=str(folder), num_rounds=1
    )
    assert [row["raw_dim"] for row in run.rows("clients")] == ["64", "32"]


def test_other_processes_get_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where own code in it is named, so that other runs have no path in their records."""
    (folder / "nets.py").write_text(OWN_MODEL)
    monkeypatch.chdir(folder)
    named = {"models": "1=nets:tiny, *=cnn5"}
    assert with_code_dir(named) == {**named, "code-dir": str(folder)}
    for config in ({"models": "cnn5"}, {"models": "elsewhere:tiny"}, {**named, "code-dir": "/a"}):
        assert with_code_dir(config) == config


def test_a_comparison_finds_it_in_the_code_dir_of_its_settings(folder: Path) -> None:
    (folder / "nets.py").write_text(OWN_MODEL)
    settings = {"models": "nets:tiny", "code-dir": str(folder)}
    plan = make_plan(
        {
            "name": "own",
            "output-dir": str(folder),
            "clients": 2,
            "methods": ["local"],
            "seeds": [0],
            "settings": settings,
        }
    )
    assert [run.config["models"] for run in plan.runs] == ["nets:tiny"]


@pytest.fixture
def hostile(folder: Path) -> Path:
    """A folder with an own model and, beside it, files and folders with the names of ours."""
    (folder / "nets.py").write_text(OWN_MODEL)
    make_hostile(folder)
    return folder


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that is first on the path."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_wildflower_run_in_a_hostile_folder(hostile: Path, tmp_path: Path) -> None:
    """`wildflower run` there, which is also on PYTHONPATH, with the model of that folder."""
    settings = f"models='nets:tiny' num-rounds=1 subset=0.2 output-dir='{tmp_path}' run-name='run'"
    done = run_python(hostile, "-m", "deploy.cli", "run", "--clients", "2", "-c", settings)
    assert done.returncode == 0, done.stderr
    assert "nets:tiny" in done.stdout
    assert (tmp_path / "run" / "summary.json").is_file()


def test_every_package_finds_the_others_in_a_hostile_folder(hostile: Path) -> None:
    """Also those that a process imports as its first, by the folder of the app, as Flower does."""
    text = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport client_app.app, server_app.app\n"
    later = f"sys.path.insert(0, {str(hostile)!r})\nimport deploy.cli, data; print(data.DATASETS)"
    done = run_python(hostile, "-c", text + later)
    assert "'digits'" in done.stdout, done.stderr


def test_what_was_imported_first_is_named(folder: Path) -> None:
    (folder / "data.py").touch()
    (folder / "models").mkdir()
    (folder / "models" / "__init__.py").touch()
    for name, place in (("data", "data.py"), ("models", "models/__init__.py")):
        done = run_python(folder, "-c", f"import {name}, deploy.cli")
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"ImportError: {folder / place} was imported as '{name}'")
        assert "rename yours, or take its folder off PYTHONPATH" in last


# Whose choice it is -------------------------------------------------------------------------------

DEVICE: dict[str, Any] = {"client-id": 7, "data-dir": "/nowhere"}
TRAP = "raise RuntimeError('imported')"


def registered(node: dict[str, Any], **run: Any) -> str:
    """Return what is wrong with a device's set-up, by its own answer to the registration."""
    return str(registration(node, **run)["problem"])


def registration(node: dict[str, Any], **run: Any) -> Any:
    """Return a device's own answer to the registration."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    config = parse_run_config({}).flat() | run
    context = Context(1, 1, node, RecordDict(), config)
    asked = Message(RecordDict(), dst_node_id=1, message_type="query")
    return app(asked, context).content[CLIENT_INFO]


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_app.node.simulated", lambda: False)


@pytest.mark.usefixtures("on_a_device")
def test_a_device_imports_no_code_that_a_run_names(folder: Path) -> None:
    (folder / "nets.py").write_text(OWN_MODEL)
    (folder / "trap.py").write_text(TRAP)
    node = {**DEVICE, "code-dir": str(folder)}
    for run in ({"models": "nets:tiny"}, {"models": "cnn5, trap:x"}, {"method": "trap"}):
        said = registered(node, **run)
        assert "the run names code, '" in said
        assert "allow-custom-models=true in node-config" in said
    # Its owner's choice: the model that node-config names, or the permission. No data is the next.
    for own in ({"model": "nets:tiny"}, {"allow-custom-models": True}):
        assert "no class folder in /nowhere" in registered({**node, **own}, models="nets:tiny")
    assert "'trap'" in registered({**node, "model": "nets:tiny"}, method="trap")
    allowed = {**node, "allow-custom-models": True}
    assert "RuntimeError: imported" in registered(allowed, method="trap")
    assert "expected true or false" in registered({**node, "allow-custom-models": "yes"})


@pytest.mark.parametrize("model", ["trap:x", "hf-vit@/etc", "hf-vit@somebody/model"])
def test_the_server_loads_nothing_that_a_client_names(folder: Path, model: str) -> None:
    """FedAvg builds its clients' models on the server: from its own configuration alone."""
    (folder / "trap.py").write_text(TRAP)
    run = parse_run_config({"method": "fedavg", "models": "cnn5, nets:tiny"})
    server, info = MethodServer(run), a_client_info(3, model=model)
    with searching(folder), refusing(unnamed_by(run)):
        said = server.unfit([a_client_info(0), a_client_info(1), info])
    assert list(said) == [3]
    assert f"'{model.partition(':')[0]}' is named by a client" in said[3]
    (folder / "nets.py").write_text(OWN_MODEL)
    with searching(folder), refusing(unnamed_by(run)):
        assert model_info("nets:tiny").name == "nets:tiny"
    assert unnamed_by(parse_run_config({"models": "1=a.b:c, *=hf-vit@/x"}))("hf-vit@/x") is None


@pytest.mark.usefixtures("on_a_device")
def test_a_device_says_what_is_free(tmp_path: Path) -> None:
    """Version, disk and memory, of a place that need not exist; a simulation says nothing."""
    said = machine_text(tmp_path / "not" / "yet")
    assert re.fullmatch(r"wildflower .+, [\d.]+ GB of disk and [\d.]+ GB of memory free", said)
    node = {"client-id": 7, "partition-id": 0, "num-partitions": 2, "state-dir": str(tmp_path)}
    small = {"subset": 0.08, "image-size": 16, "models": "cnn1"}
    for simulated, expected in ((False, True), (True, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("client_app.handlers.simulated", lambda value=simulated: value)
            assert bool(registration(node, **small)["machine"]) == expected
