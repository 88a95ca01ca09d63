"""What the server imports or loads by name: what its own configuration names, nothing else.

A client says at its registration which model it has, and some methods build it on the server. Such
a name must not make the server import a module or open a folder that its user did not name.
"""

from __future__ import annotations

from models.groups import names_in
from models.own_code import Refusal
from strategies.base.run_config import RunConfig


def unnamed_by(run: RunConfig) -> Refusal:
    """Return what refuses a module or a "model@place" that the run's own keys do not name."""
    options = [text for text in vars(run.method_config).values() if isinstance(text, str)]
    own = [text for text in options if ":" in text or "@" in text]
    addresses = {*names_in(run.models), run.method, run.schedule, *own}
    named = {name for address in addresses for name in (address, address.partition(":")[0])}

    def refusal(name: str) -> str | None:
        if name in named:
            return None
        return (
            f"{name!r} is named by a client, not by the server's own configuration, so it is not "
            "loaded here; name the client's model in models, or take a method that does not build "
            "clients' models on the server"
        )

    return refusal
