"""A Flower app for tests: Wildflower's own, run once for every method within one `flwr run`.

Starting Flower and Ray costs far more than a method's rounds. A run's configuration is fixed, so
this app gives Wildflower's ServerApp and ClientApp contexts of their own, in which the method
differs. Messages, workers and processes are those of any other run.
"""

from __future__ import annotations

import traceback

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from client_app.app import ReachableApp
from client_app.app import app as client_app
from deploy.contract.runs import needed_by
from server_app.app import app as server_app
from server_app.console import say
from strategies.base.messages import CONTROL
from strategies.base.method import get_method, method_names
from strategies.base.narrowing import WIRE_DTYPES
from strategies.base.ray_worker import QUERY, answer_worker_query

HEADING = "method in turn: "
"""Begins the line of the log before a method's own."""

server = ServerApp()
client = ReachableApp()
client.query(QUERY.partition(".")[2])(answer_worker_query)


def wire_of(name: str) -> str:
    """Return how a method's arrays cross: each way of transport has a third of the methods."""
    return WIRE_DTYPES[method_names().index(name) % len(WIRE_DTYPES)]


def with_method(context: Context, name: str) -> Context:
    """Return a context whose run-config asks for one method, in a run of that name."""
    needed = needed_by(get_method(name), str(context.run_config["models"]))
    keys = {"method": name, "run-name": name, "wire-dtype": wire_of(name)}
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=context.node_config,
        state=context.state,
        run_config={**context.run_config, **needed, **keys},
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run every method; one that fails is left to its test, the others go on."""
    for name in method_names():
        say(f"{HEADING}{name}")
        try:
            server_app(grid=grid, context=with_method(context, name))
        except Exception:
            say(traceback.format_exc())


@client.query()
@client.train()
@client.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Answer as Wildflower's ClientApp does in a run of the method that the message belongs to."""
    name = str(message.content.config_records[CONTROL]["run-name"])
    return client_app(message, with_method(context, name))
