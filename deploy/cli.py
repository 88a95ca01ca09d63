"""The `wildflower` command: what is done outside `flwr run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from deploy.examples import shown_examples
from deploy.terminal import outliving_readers
from strategies.base.options import ConfigError


class Command(NamedTuple):
    """A sub-command.

    Its module is imported only where it is asked for: most need torch, and some pandas, which takes
    seconds.

    Attributes
    ----------
    name, text : str
        What is typed, and what it does in a line.
    example : str
        A command line that uses it.
    module : str
        Has `add_arguments(parser)`, `execute(options)`, and for several examples `EXAMPLES`.
    add_arguments, execute : str
        What these are called there.
    """

    name: str
    text: str
    example: str
    module: str
    add_arguments: str = "add_arguments"
    execute: str = "execute"


COMMANDS = (
    Command("run", "run a federation in this process, without Ray or a SuperLink",
            "wildflower run --clients 10 -c \"method='fedproto' num-rounds=3\"", "deploy.run"),
    Command("compare", "run the methods and seeds of a YAML file through flwr and tabulate",
            "wildflower compare deploy/comparisons/digits-quick.yaml", "deploy.compare.command"),
    Command("reproduce", "run a table of a paper again and set it beside the paper's numbers",
            "wildflower reproduce fedre-main-cifar10-practical --scale cpu --seeds 0,1",
            "deploy.reproduce.command"),
    Command("fleet", "start a fleet of real processes, run on it, describe its devices",
            "wildflower fleet up deploy/fleet.yaml", "deploy.fleet.command"),
    Command("attack", "seek clients' images in what they sent, beside what needs no attack",
            "wildflower attack ~/wildflower/RUN-NAME --vectors 100", "deploy.attack.command"),
    Command("poison", "let clients of a simulation send wrong numbers, by method and mean",
            'wildflower poison --methods fedavg,fedproto --means off,median -c "num-rounds=10"',
            "deploy.attack.poison_command"),
    Command("analyse", "compare a run's models: CKA, t-SNE, confusion, calibration",
            "wildflower analyse ~/wildflower/RUN-NAME", "deploy.analyse.command"),
    Command("costs", "reproduce the communication table of the FedRE paper",
            "wildflower costs --methods fedre fedproto", "deploy.costs.command"),
    Command("models", "list the models, or those that match a pattern, timm's among them",
            "wildflower models 'timm/resnet*'", "deploy.model_list"),
    Command("test-method", "test that a method, also one's own, keeps to the contract",
            "wildflower test-method my_method --method-options 'weight=0.3'",
            "deploy.contract.command"),
    Command("check", "tell how a run ended; exit code 0 if it completed",
            "wildflower check ~/wildflower/RUN-NAME", "deploy.past_runs",
            "add_directory", "check"),
    Command("runs", "list the runs of an output-dir: status, method, score, age",
            "wildflower runs ~/wildflower", "deploy.past_runs", "add_runs_arguments", "list_runs"),
    Command("clean", "delete checkpoints and private states of completed runs",
            "wildflower clean ~/wildflower --yes", "deploy.past_runs",
            "add_clean_arguments", "clean"),
    Command("report", "write a run's report.html again",
            "wildflower report ~/wildflower/RUN-NAME", "deploy.past_runs",
            "add_directory", "report"),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code; its output need not be read to the end."""
    with outliving_readers():
        return _main(sys.argv[1:] if arguments is None else arguments)


def _main(arguments: Sequence[str]) -> int:
    word = next((word for word in arguments if not word.startswith("-")), "")
    options = make_parser(word).parse_args(arguments)
    try:
        from models.own_code import searching  # imports torch, which no help needs

        with searching(Path.cwd()):
            return int(options.execute(options))
    except ConfigError as error:
        print(f"wildflower: configuration error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("wildflower: interrupted", file=sys.stderr)
        return 130


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line; every help text ends with an example.

    With `only`, no other command than that has its arguments, nor is imported.
    """
    parser = argparse.ArgumentParser(
        prog="wildflower",
        description="Model-heterogeneous federated learning on Flower.",
        **shown_examples(*(command.example for command in COMMANDS)),
    )
    chosen = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        if only not in (None, command.name):
            chosen.add_parser(command.name, help=command.text)
            continue
        module = import_module(command.module)
        examples = getattr(module, "EXAMPLES", {command.name: command.example})
        sub = chosen.add_parser(
            command.name, help=command.text, description=command.text,
            **shown_examples(*examples.values()),
        )  # fmt: skip
        getattr(module, command.add_arguments)(sub)
        sub.set_defaults(execute=getattr(module, command.execute))
    return parser


if __name__ == "__main__":
    sys.exit(main())
