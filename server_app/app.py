"""The ServerApp: checks the run-config, then runs the method."""

from __future__ import annotations

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from models.own_code import refusing, searching
from server_app.log import logging_as, say
from server_app.own_names import unnamed_by
from server_app.rounds.loop import run_rounds
from strategies.base.former_names import warnings
from strategies.base.method import hidden_file
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method that the run-config names; a wrong value ends the run before any data."""
    # Sums, and with them all results, depend on the number of threads; clients use one as well.
    torch.set_num_threads(1)
    with logging_as(str(context.run_config.get("log-format", ""))):
        _run(grid, context)


def _run(grid: Grid, context: Context) -> None:
    try:
        with searching(str(context.run_config.get("code-dir", ""))):
            run = parse_run_config(context.run_config)
            for text in warnings(context.run_config):
                say(f"wildflower: warning: {text}")
            if file := hidden_file(run.method):
                say(
                    f"wildflower: warning: method = {run.method!r} is Wildflower's own, {file} is "
                    "not used; to run that, give it another name"
                )
            with refusing(unnamed_by(run)):
                run_rounds(run, grid)
    except ConfigError as error:
        say(f"wildflower: configuration error: {error}")
        raise
