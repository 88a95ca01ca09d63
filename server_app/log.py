"""How a run says a line: as text, or as JSON for programs that collect logs (`log-format`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

WARNING = re.compile(r"^(wildflower: )?(warning|configuration error|the run (failed|was))\b")
"""How a line begins that a JSON log has with the level "warning"."""

_JSON: ContextVar[bool] = ContextVar("json", default=False)


def say(text: str = "", **figures: float) -> None:
    """Print at once; Flower forwards the ServerApp's output line by line.

    Parameters
    ----------
    text : str
        One or several lines.
    **figures
        What a JSON log has beside the text.
    """
    if not _JSON.get():
        print(text, flush=True)
        return
    for line in filter(str.strip, text.splitlines()):
        level = "warning" if WARNING.search(line) else "info"
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(json.dumps({"time": now, "level": level, "text": line, **figures}), flush=True)


@contextmanager
def logging_as(form: str) -> Iterator[None]:
    """Print as `log-format` says, for as long as the context lasts."""
    token = _JSON.set(form == "json")
    try:
        yield
    finally:
        _JSON.reset(token)
