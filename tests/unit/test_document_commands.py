"""Every command in a document: its options exist, its keys and values are accepted."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from deploy.cli import make_parser
from deploy.run import parse_assignments
from models.own_code import searching
from strategies.base.parsing import parse_run_config
from tests.documents import ROOT, documents, files_in, text_of


@pytest.fixture(autouse=True)
def beside_the_files_shown(folder: Path) -> Iterator[None]:
    """Let commands name the methods and schedules that documents show in whole."""
    for document in documents():
        for name, text in files_in(document).items():
            (folder / name).write_text(text)
    with searching(folder):
        yield


every_document = pytest.mark.parametrize("document", documents(), ids=str)
RUN_CONFIG = ("-c", "--run-config")


def command_lines(document: Path) -> list[list[str]]:
    """Return the words of every command line in a document's bash blocks, one list a program."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```", text_of(document), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words: list[str] = []
            for word in [*shlex.split(line.partition(" > ")[0], comments=True), "&&"]:
                if word in ("&&", "|"):
                    found += [words] if words else []
                    words = []
                elif words or not re.fullmatch(r"\w+=.*|export|as_wildflower", word):
                    words.append(word)
    return found


def lines_of(program: str, document: Path) -> list[list[str]]:
    return [words[1:] for words in command_lines(document) if Path(words[0]).name == program]


def check_settings(words: list[str]) -> None:
    texts = [words[i + 1] for i, word in enumerate(words[:-1]) if word in RUN_CONFIG]
    parse_run_config(parse_assignments(texts))


@every_document
def test_wildflower_knows_every_command(document: Path) -> None:
    for words in lines_of("wildflower", document):
        make_parser().parse_args(words)
        check_settings(words)
    known = re.findall(r"^    ([a-z-]+)(?: +\S|$)", make_parser().format_help(), flags=re.MULTILINE)
    assert set(re.findall(r"`wildflower ([a-z][a-z-]*)", text_of(document))) <= set(known)


def test_commands_are_found() -> None:
    assert ["check", "~/wildflower/RUN-NAME"] in lines_of(
        "wildflower", Path("server_app/README.md")
    )
    assert len(lines_of("flwr", Path("README.md"))) > 4
    assert len(lines_of("wildflower", Path("deploy/README.md"))) > 4


@every_document
def test_settings_in_the_text_are_accepted(document: Path) -> None:
    """Of run-config; settings of Flower's federation are not looked at."""
    for text in re.findall(r"`([a-z][a-z0-9.-]*=[^`]+)`", text_of(document)):
        if not re.match(r"(client-resources|init-args|num-supernodes)", text):
            parse_run_config(parse_assignments([text]))


@every_document
def test_flower_knows_every_command(document: Path) -> None:
    from flwr.cli.app import app

    for words in lines_of("flwr", document):
        command, rest = get_command(app), list(words)
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        assert command.make_context("flwr", rest).params  # refuses unknown options
        check_settings(words)


@every_document
def test_modules_and_tests_exist(document: Path) -> None:
    modules = re.findall(r"python3? -m ([\w.]+)", text_of(document))
    for module in modules:
        assert importlib.util.find_spec(module), module
    for place in re.findall(r"pytest (tests/[\w./]+)", text_of(document)):
        assert (ROOT / place).exists(), place


@every_document
def test_scripts_that_are_called_exist(document: Path) -> None:
    for words in command_lines(document):
        for word in words:
            if re.match(r"(deploy|tests)/", word):
                assert (ROOT / word).exists(), word
