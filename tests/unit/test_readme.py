"""README.md and server_app/README.md say what the code does: keys, defaults, methods, tests."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from deploy import keys
from deploy.keys import BEGIN, END, document_tables, meanings, table
from strategies.base.method import method_names
from strategies.base.options import option
from strategies.base.parsing import default_run_config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN = (ROOT / "server_app" / "README.md").read_text(encoding="utf-8")


def test_the_tables_of_keys_are_those_of_the_code() -> None:
    assert document_tables() in RUN, "write them anew: python -m deploy.keys --write"


def test_tables_of_keys_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "README.md"
    document.write_text(f"before\n{BEGIN}old\n{END}after\n")
    monkeypatch.setattr(keys, "DOCUMENT", document)
    for _ in range(2):
        keys.main(["--write"])
        assert document.read_text() == f"before\n{BEGIN}\n{document_tables()}\n{END}after\n"


def test_every_key_is_listed_with_what_its_docstring_says() -> None:
    text = document_tables()
    for key in default_run_config():
        assert len(re.findall(rf"^\| {re.escape(key)} \|", text, flags=re.MULTILINE)) == 1, key
    assert (
        '| fedre.weights | "uniform" | one of uniform, gaussian, laplacian | Distribution' in text
    )
    assert r"uniform on (0, 1), \|normal\| or \|Laplace\|. |" in text
    assert "| fedre.resample | true | true or false | Draw new weights every round;" in text


def test_a_field_that_is_not_explained_is_named() -> None:
    @dataclasses.dataclass(frozen=True)
    class Silent:
        """Options.

        Attributes
        ----------
        one, two
            Explained
            together.

        Notes
        -----
        three
            Not an attribute.
        """

        one: int = option(1)
        two: int = option(2)

    @dataclasses.dataclass(frozen=True)
    class More(Silent):
        """Inherits."""

        three: int = option(3)

    assert meanings(More) == {"one": "Explained together.", "two": "Explained together."}
    assert table(Silent).count("Explained together.") == 2
    with pytest.raises(ValueError, match="no word on three"):
        table(More)


def test_every_method_is_in_the_table() -> None:
    table = README.split("| method | idea |", 1)[1].split("\n\n", 1)[0]
    names = re.findall(r"^\| `([a-z0-9-]+)` \|", table, flags=re.MULTILINE)
    assert set(names) == set(method_names())


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """The command stands between the marks that .ci/run looks for, once."""
    assert README.count("<!-- test command -->") == README.count("<!-- end -->") == 1
    block = README.split("<!-- test command -->")[1].split("<!-- end -->")[0]
    assert "pip install -e '.[dev]'" in block
    assert "pytest" in block
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
