"""`wildflower run`: the same app in one process, for debugging with breakpoints."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data import DataError
from data.text_files import read_user_text
from models.own_code import own_file, searching
from strategies.base.method import method_names
from strategies.base.options import ConfigError, parse_pairs, split_pairs
from strategies.base.parsing import default_run_config
from strategies.base.run_config import RunConfig

OWN_CODE_KEYS = ("models", "method", "schedule", "fedktl.generator")
"""Run-config keys that may name code of the user's own: `module:name`, or for all but models a
module alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--clients", type=int, default=10, help="number of clients (default 10)")
    parser.add_argument(
        "-c", "--run-config", action="append", default=[], metavar="'key=value ...'",
        help="as for flwr run, for example -c \"method='local' num-rounds=3\", or a TOML file of "
        "keys; may be repeated, what comes later wins",
    )  # fmt: skip


def execute(options: argparse.Namespace) -> int:
    """Run a federation with the in-process Grid; returns 0 if it completed, 1 if it failed."""
    from flwr.app import Context, RecordDict

    from client_app.app import app as client_app
    from server_app.app import app as server_app
    from server_app.rounds.exchange import RunError
    from server_app.rounds.in_process import InProcessGrid
    from server_app.rounds.transport import GridError
    from strategies.base.files import NotWrittenError
    from strategies.base.server import RegistrationError
    from strategies.base.state import StateError

    if options.clients < 1:
        raise ConfigError(f"--clients = {options.clients}: expected an integer of at least 1")
    given = parse_assignments(options.run_config)
    with searching(str(given.get("code-dir", ""))):
        config = {**default_run_config(given.get("method", RunConfig.method)), **given}
    wanted = config["min-clients"]
    if type(wanted) is int and wanted > options.clients:  # nobody else can come
        raise ConfigError(
            f"min-clients = {wanted}: expected at most --clients = {options.clients}, all there "
            f"are; say --clients {wanted} or -c min-clients={options.clients}"
        )
    grid = InProcessGrid(client_app, options.clients, config)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    try:
        server_app(grid=grid, context=context)
    except ConfigError:
        return 2  # the reason has been printed, here and below
    except (RunError, RegistrationError, GridError, StateError, NotWrittenError):
        return 1
    return 0


def with_code_dir(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run-config with the working directory as `code-dir` if own code in it is named.

    For commands whose run computes in other processes, which have other working directories.
    """
    here = Path.cwd()
    texts = [str(config.get(key, "")) for key in OWN_CODE_KEYS]
    named = [found for text in texts for found in re.findall(r"[\w.]+(?=:)", text)]
    named += [name for name in texts[1:] if name and name not in method_names()]
    if config.get("code-dir") or not any(own_file(here, name) for name in named):
        return dict(config)
    return {**config, "code-dir": str(here)}


def parse_assignments(texts: list[str]) -> dict[str, Any]:
    """Parse what follows `-c`: pairs and files of keys as `flwr run` takes them, even mixed.

    Parameters
    ----------
    texts : list of str
        Each is `key=value` pairs separated by spaces, values in TOML, or the path of a TOML file;
        of a key that is given twice the later value counts.

    Raises
    ------
    ConfigError
        Naming the text that is not `key=value` with a TOML value, or what is wrong with a file.
    """
    values: dict[str, Any] = {}
    for text in texts:
        for pair in [text] if _is_file(text) else split_pairs(text):
            if _is_file(pair):
                values |= read_run_config(Path(pair))
                continue
            values |= parse_pairs(pair)
    return values


def read_run_config(path: Path) -> dict[str, Any]:
    """Return the run-config keys of a TOML file; a nested table gives dotted keys.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no TOML, or a key holds a list or a date.
    """
    try:
        content = tomllib.loads(read_user_text(path.expanduser()))
    except (DataError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a file of keys: {error}") from error
    values = dict(flattened(content))
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise ConfigError(
                f"{path}: {key} = {value!r}: expected a text, a number, true or false"
            )
    return values


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of a TOML table and their values; a nested table gives dotted keys."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _is_file(text: str) -> bool:
    return text.endswith(".toml") and "=" not in text
