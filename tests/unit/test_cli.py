"""`wildflower --help`: every command has an example that the command line accepts."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cli import make_parser
from deploy.run import parse_assignments
from strategies.base.parsing import parse_run_config

ROOT = Path(__file__).parents[2]
Parsers = dict[str, argparse.ArgumentParser]


def commands_of(parser: argparse.ArgumentParser) -> Parsers:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def all_parsers() -> Parsers:
    """Return the parsers by what is typed: "wildflower", "wildflower fleet run" and so on."""
    found: Parsers = {}
    waiting = {"wildflower": make_parser()}
    while waiting:
        name, parser = waiting.popitem()
        found[name] = parser
        waiting |= {f"{name} {word}": sub for word, sub in commands_of(parser).items()}
    return found


PARSERS = all_parsers()


def examples_in(text: str) -> list[str]:
    """Return the command lines with which a help text ends."""
    ending = re.search(r"\nexamples?:\n((?:  .*\n)+)\Z", text)
    assert ending, text
    return [line.strip() for line in ending[1].splitlines()]


@pytest.mark.parametrize("name", PARSERS)
def test_every_help_ends_with_an_example_of_each_command(name: str) -> None:
    parser = PARSERS[name]
    shown = examples_in(parser.format_help())
    names = [f"{name} {word}" for word in commands_of(parser)] or [name]
    for command in names:
        assert sum(f"{line} ".startswith(f"{command} ") for line in shown) == 1, command
    assert len(shown) == len(names)


@pytest.mark.parametrize("name", PARSERS)
def test_every_example_is_accepted(name: str) -> None:
    for line in examples_in(PARSERS[name].format_help()):
        options = make_parser().parse_args(shlex.split(line)[1:])
        parse_run_config(parse_assignments(getattr(options, "run_config", [])))
        for word in shlex.split(line):
            assert not word.startswith("deploy/") or (ROOT / word).is_file(), line


def test_help_imports_no_library_that_takes_seconds() -> None:
    code = (
        "import sys\nfrom deploy.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'pandas', 'flwr', 'sklearn'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "wildflower check ~/wildflower/RUN-NAME" in done.stdout
