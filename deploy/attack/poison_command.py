"""`wildflower poison`: what clients that send wrong numbers do to the others."""

from __future__ import annotations

import argparse

from models.own_code import searching
from strategies.base.options import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--methods", type=_names, required=True, metavar="A,B", help="the methods to try"
    )
    parser.add_argument(
        "--means", type=_names, default=["off", "median", "trimmed"], metavar="A,B",
        help="values of robust-mean (default: off,median,trimmed)",
    )  # fmt: skip
    parser.add_argument(
        "--factors", type=_factors, default=[-1.0, 10.0], metavar="X,Y",
        help="by what bad clients multiply what they send (default: -1,10)",
    )  # fmt: skip
    parser.add_argument("--clients", type=int, default=10, help="number of clients (default 10)")
    parser.add_argument(
        "--bad", type=int, default=1, metavar="N", help="clients 0 to N-1 are bad (default: 1)"
    )
    parser.add_argument(
        "--seeds", type=_seeds, default=[0], metavar="N,M", help="one run for each (default: 0)"
    )
    parser.add_argument("--name", default="poison", help="begins the runs' names")
    parser.add_argument(
        "-c", "--run-config", action="append", default=[], metavar="'key=value ...'",
        help="as for wildflower run",
    )  # fmt: skip


def execute(options: argparse.Namespace) -> int:
    """Run all that is not there yet, print the table; returns 1 if a run did not complete."""
    from deploy.attack.poison import Trial, poison, table
    from deploy.run import parse_assignments

    if not 1 <= options.bad < options.clients:
        raise ConfigError(
            f"--bad = {options.bad}: expected at least 1 and fewer than --clients = "
            f"{options.clients}"
        )
    given = parse_assignments(options.run_config)
    trial = Trial(
        options.name, options.clients, options.bad, tuple(options.methods), tuple(options.means),
        (1.0, *options.factors), tuple(options.seeds), given,
    )  # fmt: skip
    with searching(str(given.get("code-dir", ""))):
        cells = poison(trial)
    print(table(trial, cells))
    return 0 if all(cell.status == "completed" for cell in cells) else 1


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len({*names}) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r}: expected names by commas, each once")
    return names


def _factors(text: str) -> list[float]:
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError:
        factors = []
    if not factors or not all(-1e30 < x < 1e30 and x != 1 for x in factors):
        raise argparse.ArgumentTypeError(f"{text!r}: expected finite numbers by commas, none 1")
    return factors


def _seeds(text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers by commas")
    return [int(part) for part in text.split(",")]
