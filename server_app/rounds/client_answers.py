"""Answers to the registration: a client's information, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from server_app.rounds.transport import Answer
from strategies.base.messages import CLIENT_INFO, ClientInfo, SetUpProblem
from strategies.base.payload import PayloadError


@dataclass(frozen=True)
class Problem:
    """A node that cannot take part.

    Attributes
    ----------
    node : int
        Flower's id of it.
    client_id : int or None
        Which client it is, where that is certain.
    text : str
        The reason, as `who: what`.
    mistake : bool
        Whether something about the client is wrong, and not only its answer missing.
    """

    node: int
    client_id: int | None
    text: str
    mistake: bool = True


def read_answer(answer: Answer, who: Callable[[int], str]) -> ClientInfo | Problem:
    """Return the client's information, or what is wrong; `who` names a node."""
    node = answer.sent.node_id
    if answer.message is None:
        return Problem(node, None, f"{who(node)}: {answer.reason}", mistake=False)
    record: Mapping[str, Any] = answer.message.content.config_records.get(CLIENT_INFO, {})
    try:
        if "problem" in record:
            wrong = SetUpProblem.from_record(record)
            name = who(node)
            # Who it is by its key, where it has one; else who it says it is.
            name = name if name.startswith("client") else f"client {wrong.who}"
            return Problem(node, None, f"{name}: {wrong.problem}")
        return ClientInfo.from_record(record)
    except PayloadError as error:
        return Problem(node, None, f"{who(node)}: {error}")


def grouped(texts: Iterable[str]) -> str:
    """Join problems `who: what`, naming once what several clients have in common."""
    by_problem: dict[str, list[str]] = {}
    for text in texts:
        who, _, what = text.partition(": ")
        by_problem.setdefault(what, []).append(who)
    parts = [
        ", ".join(who[:3]) + (f" and {len(who) - 3} more" if len(who) > 3 else "") + f": {what}"
        for what, who in by_problem.items()
    ]
    return "; ".join(parts[:3]) + (f"; and {len(parts) - 3} more" if len(parts) > 3 else "")
