"""Options: a value of the wrong type or range is refused with key, value and what is expected."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from strategies.base.options import AUTO, ConfigError, option, option_keys, parse_options


@dataclasses.dataclass(frozen=True)
class Sample:
    flag: bool = option(True)
    count: int = option(3, minimum=1)
    some_rate: float = option(0.5, above=0, maximum=1)
    any_rate: float = option(0.0, minimum=0)
    mode: str = option("a", "b", "c")
    text: str = option("")
    lr: float | str = option(AUTO, kind=float, above=0)
    derived: Any = None


def parse(**values: object) -> Sample:
    return parse_options(Sample, {k.replace("_", "-"): v for k, v in values.items()})


def test_defaults_and_keys() -> None:
    assert parse() == Sample()
    assert option_keys(Sample) == {
        "flag": True, "count": 3, "some-rate": 0.5, "any-rate": 0.0, "mode": "a", "text": "",
        "lr": "auto",
    }  # fmt: skip
    assert list(option_keys(Sample, "m."))[:2] == ["m.flag", "m.count"]


@pytest.mark.parametrize(
    ("key", "value", "result"),
    [
        ("flag", False, False),
        ("count", 1, 1),
        ("some_rate", 1, 1.0),
        ("any_rate", 0, 0.0),
        ("mode", "c", "c"),
        ("text", "läuft", "läuft"),
        ("lr", "auto", "auto"),
        ("lr", 2, 2.0),
    ],
)
def test_accepted_values_arrive_in_their_type(key: str, value: object, result: object) -> None:
    got = getattr(parse(**{key: value}), key)
    assert got == result
    assert type(got) is type(result)


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("flag", 1, "true or false"),
        ("flag", "true", "true or false"),
        ("flag", None, "true or false"),
        ("count", 0, "an integer of at least 1"),
        ("count", True, "an integer of at least 1"),
        ("count", 1.0, "an integer"),
        ("count", "1", "an integer"),
        ("some_rate", 0, "a number above 0 and at most 1"),
        ("some_rate", 1.01, "a number above 0 and at most 1"),
        ("some_rate", True, "a number above 0 and at most 1"),
        ("some_rate", "1", "a number"),
        ("some_rate", math.nan, "a number"),
        ("any_rate", math.inf, "a number of at least 0"),
        ("any_rate", 10**400, "a number of at least 0"),
        ("any_rate", -(10**400), "a number of at least 0"),
        ("any_rate", -0.001, "a number of at least 0"),
        ("mode", "d", "one of a, b, c"),
        ("mode", "A", "one of a, b, c"),
        ("mode", 1, "one of a, b, c"),
        ("text", 1, "a text"),
        ("text", b"x", "a text"),
        ("lr", "Auto", 'a number above 0 or "auto"'),
        ("lr", 0.0, 'a number above 0 or "auto"'),
        ("lr", True, 'a number above 0 or "auto"'),
    ],
)
def test_refused_values_are_named(key: str, value: object, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**{key: value})
    text = str(caught.value)
    assert text.startswith(f"{key.replace('_', '-')} = {value!r}: expected {accepted}")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("cuont", "count"), ("some_rate", "some-rate"), ("Mode", "mode"), ("flags", "flag")],
)
def test_unknown_keys_name_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: unknown .*did you mean {nearest}"):
        parse_options(Sample, {key: 1})


def test_a_key_like_no_other_gets_no_hint() -> None:
    with pytest.raises(ConfigError, match=r"unknown configuration key$"):
        parse_options(Sample, {"zzzzzzzz": 1})


def test_a_field_without_a_rule_is_no_key() -> None:
    with pytest.raises(ConfigError, match="derived: unknown"):
        parse_options(Sample, {"derived": 1})


def test_a_prefix_selects_keys() -> None:
    parsed = parse_options(Sample, {"m.count": 7, "count": 9, "mm.count": "x"}, "m.")
    assert parsed == Sample(count=7)
    with pytest.raises(ConfigError, match=r"m\.coutn: unknown .*did you mean m\.count"):
        parse_options(Sample, {"m.coutn": 7}, "m.")
