"""`wildflower models`: the models there are."""

from __future__ import annotations

import argparse

from strategies.base.options import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("pattern", nargs="?", default="", help="a part of names, or with * and ?")


def execute(options: argparse.Namespace) -> int:
    """List the models that match; returns 0."""
    from models.listing import print_models

    if print_models(options.pattern):
        return 0
    raise ConfigError(f"no model matches {options.pattern!r}; `wildflower models` lists all")
