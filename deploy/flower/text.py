"""Texts that go to Flower's commands and come from them: TOML values and logs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

Value = bool | int | float | str

ANSI = re.compile(r"\x1b\[[0-9;]*m")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def toml_lines(values: Mapping[str, Value]) -> str:
    """Write run-config values as TOML, one `key = value` a line.

    Raises
    ------
    ValueError
        For a key that is no (dotted) name or a value that is not a bool, int, float or str.
    """
    lines = []
    for key, value in values.items():
        if not BARE_KEY.fullmatch(key):
            raise ValueError(f"{key!r}: a run-config key is made of letters, digits, '-', '_', '.'")
        if not isinstance(value, bool | int | float | str):
            raise ValueError(f"{key} = {value!r}: a run-config value is a bool, int, float or str")
        # JSON's texts and truth values are TOML's; `repr` of a float is its exact value.
        text = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{key}={text}\n")
    return "".join(lines)


def without_colours(text: str) -> str:
    """Remove the terminal's colour codes."""
    return ANSI.sub("", text)


def log_text(path: Path) -> str:
    """Return a log without its colours."""
    return without_colours(path.read_text(encoding="utf-8", errors="replace"))


class LineReader:
    """Hands the lines of a growing log to a function, each once.

    Parameters
    ----------
    path : Path
        The log.
    on_line : callable, optional
        Takes a line; without it nothing is read.
    """

    def __init__(self, path: Path, on_line: Callable[[str], None] | None) -> None:
        self.path = path
        self.on_line = on_line
        self.position = 0

    def pass_on(self) -> None:
        """Hand on the whole lines written since the last call."""
        if self.on_line is None:
            return
        with self.path.open("rb") as file:
            file.seek(self.position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.position += len(whole) + len(newline)
        for line in whole.splitlines():
            self.on_line(without_colours(line.decode(errors="replace")))
