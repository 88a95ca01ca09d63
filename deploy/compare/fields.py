"""Values of a comparison file, each checked as it is read; `ConfigError` names what is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from strategies.base.options import ConfigError
from strategies.base.run_config import NAME


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` for the first name that is not known, with the nearest one that is."""
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{key!r}: unknown {what}; {hint}")


def read_mapping(value: object, where: str) -> dict[str, Any]:
    """Return a mapping with texts as keys."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{where}: expected a mapping of names to values, not {value!r}")
    return value


def read_list(value: object, key: str) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise ConfigError(f"{key} = {value!r}: expected a list")
    return value


def read_text(value: object, key: str) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key} = {value!r}: expected a text")
    return value


def read_label(value: object, key: str) -> str:
    """Return a text that can be part of a directory's name."""
    text = read_text(value, key)
    if not NAME.fullmatch(text):
        raise ConfigError(
            f"{key} = {text!r}: expected a name of letters, digits, '.', '_' and '-', because "
            "it becomes part of a directory's name"
        )
    return text


def read_number(
    top: Mapping[str, Any], key: str, kind: type, low: float, high: float | None = None
) -> Any:
    """Return the number under a key, of a kind and within bounds."""
    value = top[key]
    fits = isinstance(value, int) or (kind is float and isinstance(value, float))
    if isinstance(value, bool) or not fits or value < low or (high is not None and value > high):
        words = f"{'an integer' if kind is int else 'a number'} of at least {low:g}"
        raise ConfigError(
            f"{key} = {value!r}: expected {words}" + (f", at most {high:g}" if high else "")
        )
    return kind(value)


def read_optional(
    top: Mapping[str, Any], key: str, kind: type, low: float, high: float | None = None
) -> Any:
    """Return the number under a key, or None where there is none."""
    return None if top.get(key) is None else read_number(top, key, kind, low, high)
