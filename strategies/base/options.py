"""Typed options: dataclass fields that parse, check and explain themselves.

A configuration is a frozen dataclass whose fields are made with `option`. Its kebab-case field
names are the run-config keys. `parse_options` turns the untyped mapping that Flower hands over
into an instance, once, at the edge; nothing below that edge looks a key up by name.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

from strategies.base.suggestions import key_hint, nearest

AUTO = "auto"
"""Value of an option that means "use the default of the method that runs"."""

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration value is unknown, of the wrong type or out of range."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """What an option accepts.

    Attributes
    ----------
    kind : type
        One of bool, int, float, str.
    choices : tuple of str
        The accepted texts; empty means any.
    minimum, maximum : float, optional
        Inclusive bounds.
    above : float, optional
        Exclusive lower bound.
    auto : bool
        Whether the text "auto" is accepted as well.
    hint : str
        For a text that is checked elsewhere: what is expected, in words.
    """

    kind: type
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    auto: bool = False
    hint: str = ""

    def expected(self) -> str:
        """Say in words what is expected."""
        if self.hint:
            return self.hint
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
        text = words[self.kind]
        if self.above is not None:
            text += f" above {self.above:g}"
        if self.minimum is not None:
            text += f" of at least {self.minimum:g}"
        if self.maximum is not None:
            text += (
                f"{' and' if ' of ' in text or ' above ' in text else ''} at most {self.maximum:g}"
            )
        return text + (' or "auto"' if self.auto else "")

    def check(self, key: str, value: object) -> bool | int | float | str:
        """Return `value` in the option's type, or raise `ConfigError` naming `key`."""
        if self.auto and value == AUTO:
            return AUTO
        result: bool | int | float | str
        if self.kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            try:
                result = float(value)
            except OverflowError:  # an integer of more than 308 digits
                result = math.inf
            fits = math.isfinite(result) and self._in_range(result)
        elif self.kind is int and isinstance(value, int) and not isinstance(value, bool):
            result, fits = value, self._in_range(value)
        elif self.kind is bool and isinstance(value, bool):
            result, fits = value, True
        elif self.kind is str and isinstance(value, str):
            result, fits = value, not self.choices or value in self.choices
        else:
            raise ConfigError(f"{key} = {value!r}: expected {self.expected()}")
        if not fits:
            near = nearest(result, self.choices) if isinstance(result, str) else None
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"{key} = {value!r}: expected {self.expected()}{hint}")
        return result

    def _in_range(self, value: float) -> bool:
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
        )


def option(  # noqa: D417 - the bounds are those of Rule
    default: Any,
    *choices: str,
    kind: type | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    hint: str = "",
) -> Any:
    """Declare a dataclass field that is a configuration option.

    Parameters
    ----------
    default : bool, int, float or str
        The default; its type is the option's type. "auto" needs `kind`.
    *choices : str
        For texts: the accepted values. The default belongs to them.
    kind : type, optional
        The option's type where the default is "auto".
    """
    rule = Rule(
        kind=kind or type(default),
        choices=tuple(dict.fromkeys((default, *choices))) if choices else (),
        minimum=minimum,
        maximum=maximum,
        above=above,
        auto=kind is not None,
        hint=hint,
    )
    return dataclasses.field(default=default, metadata={"rule": rule})


def key_of(field_name: str) -> str:
    """Return the run-config key of a field: `local_epochs` becomes `local-epochs`."""
    return field_name.replace("_", "-")


def options_of(cls: type, prefix: str) -> Any:
    """Declare a field that holds further options, an instance of `cls`, whose keys have a prefix.

    Parameters
    ----------
    cls : type
        A frozen dataclass of options with defaults, none of which holds further ones.
    prefix : str
        What its keys begin with, for example "privacy.".
    """
    return dataclasses.field(default=cls(), metadata={"options": prefix})


def nested_options(cls: type) -> dict[str, tuple[str, type]]:
    """Return the fields that hold further options: prefix and class by the field's name."""
    return {
        field.name: (field.metadata["options"], type(field.default))
        for field in dataclasses.fields(cls)
        if "options" in field.metadata
    }


def option_keys(cls: type, prefix: str = "") -> dict[str, Any]:
    """Return every run-config key of `cls` with its default, in order of declaration.

    Keys of fields made with `options_of` come last.
    """
    own = {
        prefix + key_of(field.name): field.default
        for field in dataclasses.fields(cls)
        if "rule" in field.metadata
    }
    for inner, options in nested_options(cls).values():
        own |= option_keys(options, prefix + inner)
    return own


def option_values(options: Any, prefix: str = "") -> dict[str, Any]:
    """Return every run-config key of an instance with its value, as `option_keys` does."""
    cls = type(options)
    own = {
        prefix + key_of(field.name): getattr(options, field.name)
        for field in dataclasses.fields(cls)
        if "rule" in field.metadata
    }
    for name, (inner, _) in nested_options(cls).items():
        own |= option_values(getattr(options, name), prefix + inner)
    return own


def parse_options(cls: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    """Build `cls` from run-config values.

    Parameters
    ----------
    cls : type
        A dataclass whose fields were declared with `option`.
    values : Mapping[str, object]
        Run-config keys and values; keys without `prefix` are not looked at. Keys that are
        missing keep their default.
    prefix : str
        Prefix of the keys, for example "fedre.".

    Raises
    ------
    ConfigError
        Naming key, value and what is expected; for an unknown key, the nearest known one.
    """
    fields = {
        prefix + key_of(f.name): f
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if "rule" in f.metadata
    }
    parsed: dict[str, Any] = {}
    inner = tuple(prefix + own for own, _ in nested_options(cls).values())
    for name, (own, options) in nested_options(cls).items():
        parsed[name] = parse_options(options, values, prefix + own)
    for key, value in values.items():
        if not key.startswith(prefix) or key.startswith(inner):
            continue
        if key not in fields:
            raise unknown_key(key, fields)
        parsed[fields[key].name] = fields[key].metadata["rule"].check(key, value)
    return cls(**parsed)


def unknown_key(key: str, known: Mapping[str, object], method: str = "") -> ConfigError:
    """Return the error for an unknown key, with what it may have meant, see `key_hint`."""
    return ConfigError(f"{key}: unknown configuration key{key_hint(key, known, method)}")


def parse_pairs(text: str) -> dict[str, Any]:
    """Parse `key=value` pairs, values in TOML, separated by spaces as `flwr run` takes them.

    Raises
    ------
    ConfigError
        Naming the part that is not `key=value` with a TOML value.
    """
    values: dict[str, Any] = {}
    for pair in split_pairs(text):
        key, equals, value = pair.partition("=")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"] if equals else None
        except tomllib.TOMLDecodeError:
            parsed = None
        if parsed is None:
            raise ConfigError(
                f"{pair!r}: expected key=value with a TOML value; texts need quotes, "
                "as in method='local'"
            )
        values[key.strip()] = parsed
    return values


def split_pairs(text: str) -> list[str]:
    """Split at spaces outside quotes."""
    parts, quote = [""], ""
    for character in text:
        if character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        if character.isspace() and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]
