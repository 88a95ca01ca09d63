"""The ServerApp: checks the run-config, then hands over to the method's strategy."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from server_app.console import say
from strategies.base.options import ConfigError
from strategies.base.run_config import parse_run_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method that the run-config names; a wrong value ends the run before any data."""
    try:
        run = parse_run_config(context.run_config)
        strategy = run.chosen_method.server(run)
        strategy.start(grid, ArrayRecord(), num_rounds=run.num_rounds)
    except ConfigError as error:
        say(f"wildflower: configuration error: {error}")
        raise
