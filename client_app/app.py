"""The ClientApp: routes every message to the method that the run-config names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app import handlers
from client_app.allocator import give_back_memory, keep_freed_memory
from client_app.node import code_dir, simulated, unasked_code
from data import DataError
from models import ModelError
from models.own_code import refusing, searching
from strategies.base.method import Method, get_method
from strategies.base.options import ConfigError
from strategies.base.ray_worker import QUERY, answer_worker_query, remember
from strategies.base.run_config import RunConfig

Answer = Callable[[Message, Context, Method], Message]


class ReachableApp(ClientApp):
    """A ClientApp whose worker, in a simulation, can be called by the server itself."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        if message.metadata.message_type == QUERY:
            remember(self, context)
        return super().__call__(message, context)


def make_client_app(method: Method | None = None) -> ClientApp:
    """Return a ClientApp for one method, or, without one, for whatever the run-config names."""
    app = ReachableApp()
    # Not functions defined here: Flower's simulation pickles the app with every message, and those
    # would go by value, code included.
    app.query(QUERY.partition(".")[2])(answer_worker_query)
    app.query()(partial(_answer_query, method))
    app.train()(partial(_answer, handlers.answer_train, method))
    app.evaluate()(partial(_answer, handlers.answer_evaluate, method))
    return app


def _answer(answer: Answer, method: Method | None, message: Message, context: Context) -> Message:
    keep_freed_memory()
    try:
        with searching(code_dir(context)), refusing(unasked_code(context)):
            chosen = method or get_method(str(context.run_config.get("method", RunConfig.method)))
            return answer(message, context, chosen)
    finally:
        if not simulated():  # a device has other things to do until the next message
            give_back_memory()


def _answer_query(method: Method | None, message: Message, context: Context) -> Message:
    """Answer the registration; what is wrong with this client's set-up is an answer, too."""
    try:
        return _answer(handlers.answer_query, method, message, context)
    except (ConfigError, DataError, ModelError) as error:
        return handlers.problem_reply(message, context, error)


app = make_client_app()
