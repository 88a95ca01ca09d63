"""A method of the user's own, from a file in a folder: run, resumed, compared, refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from client_app.state_store import state_directory
from deploy.cli import main
from deploy.compare.plan import make_plan
from deploy.run import with_code_dir
from models.own_code import searching
from strategies.base.method import get_method, method_names
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.round_files import round_file
from tests.documents import files_in
from tests.support import SMALL, Outcome, run_federation, typed

TEMPLATE = files_in(Path("strategies/README.md"))["my_method.py"]
"""The method of strategies/README.md."""
SETTINGS: dict[str, Any] = {
    "subset": 0.08,
    "image_size": 16,
    "feature_dim": 32,
    "models": "cnn5, cnn4, resnet10-w4",
}


@pytest.fixture
def mine(folder: Path) -> Path:
    """A folder with the method as a module, and as one of a package."""
    (folder / "my_method.py").write_text(TEMPLATE)
    (folder / "my_package").mkdir()
    (folder / "my_package" / "mixing.py").write_text(TEMPLATE)
    return folder


def command(tmp_path: Path, name: str, **keys: Any) -> list[str]:
    """Return the arguments of `wildflower run`; a key's underscores are dashes but in a prefix."""
    given = {k.replace("_", "-"): v for k, v in {**SMALL, **SETTINGS}.items()}
    given |= {"output-dir": str(tmp_path), "run-name": name, "report": True, **keys}
    return ["run", "--clients", "3", "-c", typed(given)]


def test_it_runs_from_the_working_directory_and_from_code_dir(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options by their keys and in `method-options` are the same run."""
    monkeypatch.chdir(mine)
    assert main(command(tmp_path, "a", method="my_method", **{"my_method.weight": 0.3})) == 0
    monkeypatch.chdir(tmp_path)
    options = {"method-options": "weight=0.3", "code-dir": str(mine)}
    assert main(command(tmp_path, "b", method="my_package.mixing", **options)) == 0
    monkeypatch.chdir(mine)
    assert main(command(tmp_path, "c", method="my_method")) == 0
    a, b, c = (Outcome(tmp_path / name) for name in "abc")
    assert a.text("metrics.csv") == b.text("metrics.csv") != c.text("metrics.csv")
    assert a.config["config"]["my_method.weight"] == 0.3
    assert b.config["config"]["mixing.weight"] == 0.3
    assert b.summary["method"] == "my_package.mixing"
    up = [row for row in a.rows("traffic") if row["direction"] == "uplink" and row["round"] == "1"]
    assert {row["scalars"] for row in up if row["purpose"] == "train"} == {str(32 * 10)}
    assert "my_method.weight" in (a.path / "report.html").read_text()


def test_private_state_stays_and_resume_is_exact(mine: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "method": "my_method", "code_dir": str(mine), "sample_fraction": 0.7}
    whole = run_federation(tmp_path / "whole", 3, num_rounds=4, **settings)
    run_federation(tmp_path / "parts", 3, num_rounds=2, **settings)
    parts = run_federation(tmp_path / "parts", 3, num_rounds=4, resume="run", **settings)
    assert parts.text("metrics.csv") == whole.text("metrics.csv")
    last = max(int(r["round"]) for r in whole.metrics(phase="train", client=2))
    state = load_file(round_file(state_directory(whole.path / "clients", 2), last))
    assert any(key.startswith("model/") for key in state)
    with pytest.raises(ConfigError, match=r"my_method.weight: was 0.5, now 0.1"):
        run_federation(
            tmp_path / "parts", 3, num_rounds=4, resume="run", method_options="weight=0.1",
            **settings,
        )  # fmt: skip


def test_a_device_takes_it_from_its_own_folder(mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "my_method.py").write_text(TEMPLATE)
    node = {"partition-id": 1, "num-partitions": 2, "code-dir": str(other)}
    settings = {**SETTINGS, "method": "my_method", "code_dir": str(mine), "num_rounds": 1}
    run = run_federation(tmp_path / "two", 2, nodes={1: node}, **settings)
    alone = run_federation(tmp_path / "one", 2, **settings)
    assert run.text("metrics.csv") == alone.text("metrics.csv")


def refused(folder: Path, name: str, text: str = "") -> str:
    if text:
        (folder / f"{name}.py").write_text(text)
    with searching(folder), pytest.raises(ConfigError) as caught:
        parse_run_config({"method": name})
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"method = {name!r}: ")
    return str(caught.value)


WITHOUT: dict[str, tuple[str, str]] = {
    "METHOD = register(": (
        "NAMED = register(", "the module has no METHOD; end it with `METHOD = register"
    ),
    "class Server(ServerHalf": (
        "class Other(ServerHalf", "without_[0-9]: a method's module defines Server as well"
    ),
    "Uplink = Downlink = Head": (
        "Uplink = Downlink = dict", "without_[0-9].Uplink: expected a dataclass"
    ),
    "    def aggregate(": ("    def other(", "Server lacks aggregate; see strategies/README.md"),
    "    def train(": ("    def other(", "Client lacks train; see strategies/README.md"),
    "class Client(ClientHalf[ClientState, Downlink, Uplink])": (
        "class Client", "is not a subclass of strategies.base.client.ClientHalf"
    ),
    "register(__name__, summary": (
        "register(__name__, name='fedavg', summary",
        "its METHOD is called 'fedavg', as one of Wildflower's own; rename the module",
    ),
    "import dataclasses": ("import dataclases", "ModuleNotFoundError: No module named 'dataclases"),
    "from models import SplitModel": ("raise SystemExit(1)", "SystemExit: 1"),
}  # fmt: skip
"""What is replaced by what in the method, and what is said then."""


@pytest.mark.parametrize("number", range(len(WITHOUT)))
def test_what_is_wrong_with_it_is_said_in_a_line(folder: Path, number: int) -> None:
    old, (new, reason) = list(WITHOUT.items())[number]
    assert old in TEMPLATE
    assert re.search(reason, refused(folder, f"without_{number}", TEMPLATE.replace(old, new)))


@pytest.mark.parametrize("name", ["nowhere", "no.where", "fedra", "my-method", "a b", "..", "é-"])
def test_what_is_no_method_lists_those_there_are(folder: Path, name: str) -> None:
    text = refused(folder, name)
    assert "expected one of cofed, creamfl, fd" in text
    assert "or a module with a method of your own" in text
    assert ("did you mean fedre?" in text) is (name == "fedra")


def test_options_are_checked_like_any(mine: Path) -> None:
    own: dict[str, Any] = {"method": "my_method"}
    with searching(mine):
        assert (
            parse_run_config(own | {"method-options": "weight=0.25"}).method_config.weight == 0.25
        )
        for keys, reason in (
            ({"method-options": "weight=2"}, "weight = 2: expected a number of at least 0 and at"),
            ({"method-options": "wieght=1"}, "wieght: unknown.*did you mean weight"),
            ({"my_method.weight": "x"}, "my_method.weight = 'x': expected a number"),
            ({"my_method.wieght": 1}, "my_method.wieght: .*did you mean my_method.weight"),
        ):
            with pytest.raises(ConfigError, match=reason):
                parse_run_config(own | keys)
    assert get_method("fedre").name in method_names()
    with pytest.raises(ConfigError, match=r"my_method.weight: unknown"):
        parse_run_config({"my_method.weight": 0.3})  # another method runs


def test_a_file_with_the_name_of_a_method_is_not_used_silently(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lg_fedavg.py").write_text(TEMPLATE)
    settings = {**SETTINGS, "num_rounds": 1, "code_dir": str(folder)}
    run_federation(tmp_path / "a", 2, method="lg-fedavg", **settings)
    file = folder / "lg_fedavg.py"
    said = f"warning: method = 'lg-fedavg' is Wildflower's own, {file} is not used"
    assert said in capsys.readouterr().out
    run_federation(tmp_path / "b", 2, method="fedavg", **settings)
    assert "is not used" not in capsys.readouterr().out


def a_comparison(**more: Any) -> dict[str, Any]:
    """Return the content of a comparison file with an own method in two settings."""
    entry = {"name": "my_method", "label": "mixed", "overrides": {"method-options": "weight=0.1"}}
    return {
        "name": "c", "output-dir": "~/c", "clients": 3, "seeds": [0],
        "methods": ["fedre", "my_method", entry], **more,
    }  # fmt: skip


def test_a_comparison_takes_it(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the working directory, or by `code-dir`; other processes are told where it is."""
    with pytest.raises(ConfigError, match=r"'my_method': .*set code-dir"):
        make_plan(a_comparison())
    plan = make_plan(a_comparison(settings={"code-dir": str(mine)}))
    assert [run.label for run in plan.runs] == ["fedre", "my_method", "mixed"]
    assert [run.run.method_config.weight for run in plan.runs[1:]] == [0.5, 0.1]
    assert plan.runs[1].run.flat()["my_method.weight"] == 0.5
    monkeypatch.chdir(mine)
    with searching(mine):
        (_, run, _) = make_plan(a_comparison()).runs
    assert with_code_dir(run.config)["code-dir"] == str(mine)


def test_a_comparison_says_where_its_options_go(mine: Path) -> None:
    methods = [{"name": "my_method", "overrides": {"my_method.weight": 0.1}}]
    reason = r"flwr run does not know my_method.weight.*write method-options: \"weight=...\""
    with searching(mine), pytest.raises(ConfigError, match=reason):
        make_plan(a_comparison(methods=methods))
