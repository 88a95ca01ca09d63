"""Workflow, hooks and API pages: they do what the README's test command and the packages say."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import Any

import yaml

from tests.documents import ROOT

CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def linters_and_tests() -> list[str]:
    block = (ROOT / "README.md").read_text(encoding="utf-8")
    command = block.split("<!-- test command -->")[1].split("<!-- end -->")[0]
    return [part.strip() for part in command.strip("`\nbash ").split("&&")]


def test_the_workflow_runs_what_a_developer_runs() -> None:
    (job,) = load(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert job["timeout-minutes"]


def test_the_workflow_is_one_that_github_accepts() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*command, "vendor.github-workflows", ROOT / ".github" / "workflows" / "ci.yml"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hooks_are_the_linters_of_the_test_command() -> None:
    (repository,) = load(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"]]
    assert entries == [part for part in linters_and_tests() if not re.match("pip|pytest", part)]
    assert all(not hook["pass_filenames"] for hook in repository["hooks"])


def test_api_pages_are_made_of_all_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert any(
        name.startswith("pdoc") for name in project["project"]["optional-dependencies"]["dev"]
    )
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    (line,) = re.findall(r"^python -m pdoc .*$", CONTRIBUTING, flags=re.MULTILINE)
    for name in packages:
        assert f" {name.rstrip('*')}" in line
