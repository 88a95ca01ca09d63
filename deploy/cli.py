"""The `wildflower` command: what is done outside `flwr run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy import past_runs, run
from deploy.analyse import command as analyse
from deploy.attack import command as attack
from deploy.attack import poison_command as poison
from deploy.compare import command as compare
from deploy.contract import command as contract
from deploy.costs import command as costs
from deploy.examples import shown_examples
from deploy.fleet import command as fleet
from deploy.reproduce import command as reproduce
from deploy.terminal import outliving_readers
from models.own_code import searching
from server_app.records.run_directory import COMPLETED, require_run
from strategies.base.options import ConfigError

CHECK_EXAMPLE = "wildflower check ~/wildflower/RUN-NAME"
MODELS_EXAMPLE = "wildflower models 'timm/resnet*'"
REPORT_EXAMPLE = "wildflower report ~/wildflower/RUN-NAME"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code; its output need not be read to the end."""
    with outliving_readers():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        with searching(Path.cwd()):
            return int(options.execute(options))
    except ConfigError as error:
        print(f"wildflower: configuration error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("wildflower: interrupted", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; every help text ends with an example."""
    commands = (
        Command("run", "run a federation in this process, without Ray or a SuperLink",
                (run.EXAMPLE,), run.add_arguments, run.execute),
        Command("compare", "run the methods and seeds of a YAML file through flwr and tabulate",
                (compare.EXAMPLE,), compare.add_arguments, compare.execute),
        Command("reproduce", "run a table of a paper again and set it beside the paper's numbers",
                (reproduce.EXAMPLE,), reproduce.add_arguments, reproduce.execute),
        Command("fleet", "start a fleet of real processes, run on it, describe its devices",
                tuple(fleet.EXAMPLES.values()), fleet.add_arguments, fleet.execute),
        Command("attack", "seek clients' images in what they sent, beside what needs no attack",
                (attack.EXAMPLE,), attack.add_arguments, attack.execute),
        Command("poison", "let clients of a simulation send wrong numbers, by method and mean",
                (poison.EXAMPLE,), poison.add_arguments, poison.execute),
        Command("analyse", "compare a run's models: CKA, t-SNE, confusion, calibration",
                (analyse.EXAMPLE,), analyse.add_arguments, analyse.execute),
        Command("costs", "reproduce the communication table of the FedRE paper",
                (costs.EXAMPLE,), costs.add_arguments, costs.execute),
        Command("models", "list the models, or those that match a pattern, timm's among them",
                (MODELS_EXAMPLE,), _add_pattern, _models),
        Command("test-method", "test that a method, also one's own, keeps to the contract",
                (contract.EXAMPLE,), contract.add_arguments, contract.execute),
        Command("check", "tell how a run ended; exit code 0 if it completed",
                (CHECK_EXAMPLE,), _add_directory, _check),
        Command("runs", "list the runs of an output-dir: status, method, score, age",
                (past_runs.RUNS_EXAMPLE,), past_runs.add_runs_arguments, past_runs.list_runs),
        Command("clean", "delete checkpoints and private states of completed runs",
                (past_runs.CLEAN_EXAMPLE,), past_runs.add_clean_arguments, past_runs.clean),
        Command("report", "write a run's report.html again",
                (REPORT_EXAMPLE,), _add_directory, _report),
    )  # fmt: skip
    parser = argparse.ArgumentParser(
        prog="wildflower",
        description="Model-heterogeneous federated learning on Flower.",
        **shown_examples(*(command.examples[0] for command in commands)),
    )
    chosen = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in commands:
        sub = chosen.add_parser(
            command.name, help=command.text, description=command.text,
            **shown_examples(*command.examples),
        )  # fmt: skip
        command.add_arguments(sub)
        sub.set_defaults(execute=command.execute)
    return parser


class Command(NamedTuple):
    """A sub-command: what it does in a line, command lines that use it, and its functions."""

    name: str
    text: str
    examples: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="the run's directory")


def _add_pattern(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="", help="a part of names, or with * and ?")


def _models(options: argparse.Namespace) -> int:
    from models.listing import print_models

    if print_models(options.pattern):
        return 0
    raise ConfigError(f"no model matches {options.pattern!r}; `wildflower models` lists all")


def _check(options: argparse.Namespace) -> int:
    require_run(options.directory)
    found = past_runs.status_of(options.directory)
    print(f"{found.name}: {found.status}" + (f": {found.reason}" if found.reason else ""))
    return 0 if found.status == COMPLETED else 1


def _report(options: argparse.Namespace) -> int:
    from server_app.report import write_report

    require_run(options.directory)
    print(write_report(options.directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
