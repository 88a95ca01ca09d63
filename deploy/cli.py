"""The `wildflower` command: what is done outside `flwr run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import run
from deploy.compare import command as compare
from deploy.costs import command as costs
from deploy.fleet import command as fleet
from server_app.records.run_directory import COMPLETED, INTERRUPTED, RUNNING, is_in_use
from strategies.base.options import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="wildflower", description="Model-heterogeneous federated learning on Flower."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module, text in (
        ("run", run, "run a federation in this process, without Ray or a SuperLink"),
        ("compare", compare, "run the methods and seeds of a YAML file through flwr and tabulate"),
        ("fleet", fleet, "start a fleet of real processes, run on it, describe its devices"),
        ("costs", costs, "reproduce the communication table of the FedRE paper"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        module.add_arguments(command)
        command.set_defaults(execute=module.execute)
    command = commands.add_parser("check", help="tell how a run ended; exit code 0 if it completed")
    command.add_argument("directory", type=Path, help="the run's directory")
    command.set_defaults(execute=_check)
    command = commands.add_parser("report", help="write a run's report.html again")
    command.add_argument("directory", type=Path, help="the run's directory")
    command.set_defaults(execute=_report)
    options = parser.parse_args(arguments)
    try:
        return int(options.execute(options))
    except ConfigError as error:
        print(f"wildflower: configuration error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("wildflower: interrupted", file=sys.stderr)
        return 130


def _check(options: argparse.Namespace) -> int:
    import json

    path = options.directory / "config.json"
    if not path.is_file():
        raise ConfigError(f"{options.directory}: there is no run here (no config.json)")
    info = json.loads(path.read_text(encoding="utf-8"))
    status, reason = info["status"], f": {info['reason']}" if info.get("reason") else ""
    if status == RUNNING and not is_in_use(options.directory):  # killed
        status, reason = INTERRUPTED, f": go on with resume='{info['run_name']}'"
    print(f"{info['run_name']}: {status}{reason}")
    return 0 if status == COMPLETED else 1


def _report(options: argparse.Namespace) -> int:
    from server_app.report import write_report

    if not (options.directory / "config.json").is_file():
        raise ConfigError(f"{options.directory}: there is no run here (no config.json)")
    print(write_report(options.directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
