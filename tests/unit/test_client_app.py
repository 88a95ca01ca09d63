"""The ClientApp as a simulation sees it."""

from __future__ import annotations

import pickle

from client_app.app import app, make_client_app
from strategies.base.method import get_method


def test_the_app_is_pickled_by_name() -> None:
    """Flower's simulation does it for every message; plain pickle refuses functions by value."""
    for one in (app, make_client_app(get_method("fedre"))):
        text = pickle.dumps(one)
        assert len(text) < 2000
        assert pickle.loads(text) is not one
