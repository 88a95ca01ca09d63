"""The ClientApp: routes every message to the method that the run-config names."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app import runner
from strategies.base.method import Method, get_method
from strategies.base.run_config import RunConfig


def make_client_app(method: Method | None = None) -> ClientApp:
    """Return a ClientApp for one method, or, without one, for whatever the run-config names."""
    app = ClientApp()

    def chosen(context: Context) -> Method:
        return method or get_method(str(context.run_config.get("method", RunConfig.method)))

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return runner.answer_query(message, context, chosen(context))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return runner.answer_train(message, context, chosen(context))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return runner.answer_evaluate(message, context, chosen(context))

    return app


app = make_client_app()
