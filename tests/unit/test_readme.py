"""README.md and server_app/README.md say what the code does: keys, defaults, methods, tests."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from strategies.base.method import method_names
from strategies.base.options import key_of
from strategies.base.run_config import RunConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN = (ROOT / "server_app" / "README.md").read_text(encoding="utf-8")


def config_table() -> str:
    """Return the table of run-config keys, made from the declarations."""
    lines = []
    for field in dataclasses.fields(RunConfig):
        if "rule" not in field.metadata:
            continue
        shown = f'"{field.default}"' if isinstance(field.default, str) else field.default
        accepted = field.metadata["rule"].expected()
        lines.append(f"| {key_of(field.name)} | {shown} | {accepted} |")
    return "\n".join(lines)


def test_every_key_is_listed_with_its_default() -> None:
    for line in config_table().splitlines():
        assert line in RUN


def test_every_method_is_in_the_table() -> None:
    table = README.split("| method | idea |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, flags=re.MULTILINE)) == set(method_names())


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """The command stands between the marks that .ci/run looks for, once."""
    assert README.count("<!-- test command -->") == README.count("<!-- end -->") == 1
    block = README.split("<!-- test command -->")[1].split("<!-- end -->")[0]
    assert "pip install -e '.[dev]'" in block
    assert "pytest" in block
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
