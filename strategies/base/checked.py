"""Records of plain values that were declared: written from a dataclass, checked when read.

What a message says besides its payload (who answers, which round, how long it took) is a dataclass
whose fields are made with `whole`, `real`, `flag`, `text` and `wholes`. Each declares the type, the
range and the greatest length of its value, once for both ends. Nothing of a value that came over
the network is quoted at length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, ClassVar, Self

from flwr.app import ConfigRecord

from strategies.base.received_text import shown
from strategies.base.wire import PayloadError

LONGEST_TEXT = 500


@dataclasses.dataclass(frozen=True)
class ValueRule:
    """What a field accepts: `fits` decides, `expected` says it in words."""

    expected: str
    fits: Callable[[object], bool]


def _declared(rule: ValueRule, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"value": rule})


def whole(*, most: int, least: int = 0, default: Any = dataclasses.MISSING) -> Any:
    """Declare an integer from `least` to `most`."""
    return _declared(
        ValueRule(
            f"an integer from {least} to {most}",
            lambda value: type(value) is int and least <= value <= most,
        ),
        default,
    )


def real(*, most: float, default: Any = dataclasses.MISSING) -> Any:
    """Declare a finite number from 0 to `most`."""
    return _declared(
        ValueRule(
            f"a number from 0 to {most:g}",
            lambda value: type(value) is float and isfinite(value) and 0 <= value <= most,
        ),
        default,
    )


def flag(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a bool."""
    return _declared(ValueRule("true or false", lambda value: type(value) is bool), default)


def text(
    *choices: str,
    longest: int = LONGEST_TEXT,
    shortest: int = 0,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a text of printable signs, or one of `choices`: it is printed and written to files.

    Flower cannot count the bytes of an empty text, so a reply's texts have `shortest` 1.
    """
    if choices:
        rule = ValueRule(
            "one of " + ", ".join(map(repr, choices)),
            lambda value: isinstance(value, str) and value in choices,
        )
    else:
        rule = ValueRule(
            f"a text of {shortest} to {longest} printable signs",
            lambda value: (
                isinstance(value, str) and shortest <= len(value) <= longest and value.isprintable()
            ),
        )
    return _declared(rule, default)


def wholes(*, most: int, longest: int) -> Any:
    """Declare a list of at most `longest` integers from 0 to `most`."""
    return _declared(
        ValueRule(
            f"at most {longest} integers from 0 to {most}",
            lambda value: (
                isinstance(value, list)
                and len(value) <= longest
                and all(type(item) is int and 0 <= item <= most for item in value)
            ),
        ),
        dataclasses.MISSING,
    )


class Checked:
    """Base of a dataclass whose fields are declared with this module's functions.

    Attributes
    ----------
    wording : str
        How an error message begins; `{}` stands for the key.
    dashes : bool
        Whether keys on the wire have dashes for the underscores of the fields.
    """

    wording: ClassVar[str]
    dashes: ClassVar[bool] = True

    @classmethod
    def declared(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields by their keys on the wire, in the order of their declaration."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        return {f.name.replace("_", "-") if cls.dashes else f.name: f for f in fields}

    def to_record(self) -> ConfigRecord:
        """Return it as a record."""
        return ConfigRecord({k: getattr(self, f.name) for k, f in self.declared().items()})

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Self:
        """Check a received record; one that is not there has no keys.

        Raises
        ------
        PayloadError
            Naming the first key that is undeclared, missing or not as declared.
        """
        found, fields = record or {}, cls.declared()
        for key in found:
            if key not in fields:
                name = cls.wording.format(shown(key)).rstrip(" =:")
                raise PayloadError(f"{name}: key is not declared")
        values = {}
        for key, field in fields.items():
            rule, value = field.metadata["value"], found.get(key)
            if not rule.fits(value):
                raise PayloadError(
                    f"{cls.wording.format(key)} {shown(value)}, expected {rule.expected}"
                )
            values[field.name] = value
        return cls(**values)
