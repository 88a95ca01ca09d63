"""Clipping and noise on what a client sends, before it leaves: keys `privacy.clip-norm` and others.

A client's contribution to one message is one vector: all declared float arrays of its uplink
together. It is shortened to an L2 norm of at most `clip-norm` (C), and where `noise-multiplier` (z)
is above 0 every coordinate gets Gaussian noise of standard deviation z C: the Gaussian mechanism of
Dwork and Roth, The Algorithmic Foundations of Differential Privacy (2014), app. A, on the client.
What the message's receiver does with it afterwards is post-processing, and so is what is done here
after the noise. The client's own state is never touched.

How each array is treated is declared on the payload, see `treatments`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from strategies.base.options import ConfigError, key_of, option, option_keys
from strategies.base.payload import ArrayRule, PayloadError, rules_of
from strategies.base.treatments import (
    CLASSES,
    COVERED,
    REFUSED,
    SHARES,
    SIZES,
    UNIT_ROWS,
    UPDATE,
    VALUE,
)

if TYPE_CHECKING:
    from strategies.base.method import Method

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Privacy:
    """What clients do to their uplinks before these leave, see strategies/README.md.

    Attributes
    ----------
    clip_norm
        Largest L2 norm of what a client contributes in a message, all its arrays together; of
        weights their change counts. 0 does not clip.
    noise_multiplier
        Standard deviation of the Gaussian noise on every number sent, in units of
        `privacy.clip-norm`; 0 adds none. Needs the extra `privacy` where the ServerApp runs.
    delta
        At which delta epsilon is told.
    """

    clip_norm: float = option(0.0, minimum=0)
    noise_multiplier: float = option(0.0, minimum=0)
    delta: float = option(1e-5, above=0, maximum=0.1)

    def __post_init__(self) -> None:
        if self.noise_multiplier and not self.clip_norm:
            raise ConfigError(
                f"privacy.noise-multiplier = {self.noise_multiplier}: expected 0 with "
                "privacy.clip-norm = 0, since no noise hides what has no bound; set "
                "privacy.clip-norm, see strategies/README.md"
            )

    @property
    def noisy(self) -> bool:
        """Whether noise is added, so that there is an epsilon."""
        return self.noise_multiplier > 0

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on every number."""
        return self.noise_multiplier * self.clip_norm


def treatments(uplink: type) -> dict[str, str]:
    """Return how each field of an uplink is treated: as declared, else by the defaults above."""
    rules = rules_of(uplink)
    completed = {rule.dims[0] for rule in rules.values() if rule.protect == CLASSES}
    return {name: rule.protect or _default(rule, completed) for name, rule in rules.items()}


def _default(rule: ArrayRule, completed: set[str | int]) -> str:
    fixed = all(isinstance(n, int) or n in SIZES or n in completed for n in rule.dims)
    floats = rule.dtype.startswith("float") and rule.degree > 0 and rule.minimum is None
    return VALUE if fixed and floats and not rule.mapping else REFUSED


def refusal(
    method: Method, config: object, privacy: Privacy, *, curable: bool = False
) -> str | None:
    """Return why noise cannot protect what a method sends with these options, or None.

    Parameters
    ----------
    method : Method
        Whose `uplink` is looked at.
    config : Config
        The method's options.
    privacy : Privacy
        Without noise nothing is refused.
    curable : bool
        Whether to pass over what another value of the method's options would mend.
    """
    if not privacy.noisy:
        return None
    start = f"privacy.noise-multiplier = {privacy.noise_multiplier}: method {method.name} "
    rules, received = rules_of(method.uplink), rules_of(method.downlink)
    if not rules:
        return f"{start}sends nothing that noise could protect; leave it at 0, or choose another"
    for name, treatment in treatments(method.uplink).items():
        if treatment == UPDATE and name not in received:
            return f"{start}declares {name!r} as a change of what its Downlink does not have"
    remedies = []
    for name, treatment in treatments(method.uplink).items():
        if treatment != REFUSED:
            continue
        field, value = rules[name].absent_with or ("", None)
        if field and getattr(config, field, None) == value:
            continue
        what = f"{start}sends {name!r}, {_why(rules[name])}, which noise cannot cover"
        setting = absent_setting(method, rules[name])
        if not setting:
            return f"{what}; choose another method, or in your own declare `protect`"
        remedies.append(f"{what}; set {setting}, which keeps it on the client")
    return remedies[0] if remedies and not curable else None


def absent_setting(method: Method, rule: ArrayRule) -> str:
    """Return the option that leaves a field empty, `key='value'`; empty if the method has none."""
    field, value = rule.absent_with or ("", None)
    key = f"{method.name}.{key_of(field)}"
    return f"{key}={value!r}" if key in option_keys(method.config, f"{method.name}.") else ""


def _why(rule: ArrayRule) -> str:
    """Say what an array is that is not covered by default."""
    if rule.mapping:
        return "a mapping that may hold counters and variances"
    if not rule.dtype.startswith("float"):
        return f"of dtype {rule.dtype}"
    if not rule.degree or rule.minimum is not None:
        return "a count or share"
    return "of a length that depends on the client"


def protected(
    uplink: T,
    received: Any,
    privacy: Privacy,
    classes: int,
    generator: torch.Generator,
) -> T:
    """Return an uplink clipped, and with noise; the one given, where neither changes anything.

    Parameters
    ----------
    uplink, received : dataclass
        What the client would send, and the downlink it got. Their arrays are not changed.
    privacy : Privacy
        C and z.
    classes : int
        C of the data, for `CLASSES`.
    generator : torch.Generator
        Private to this message: from the operating system on devices.

    Raises
    ------
    PayloadError
        Naming an array that holds NaN or infinite values, or integers that cannot be accounted.
    """
    if not privacy.clip_norm:
        return uplink
    how = treatments(type(uplink))
    whole = _with_all_classes(uplink, how, classes) if privacy.noisy else uplink
    factor = _factor(_parts(whole, received, how), privacy.clip_norm)
    changed: dict[str, Any] = {}
    for part in _parts(whole, received, how):
        sent = _sent(part, factor, privacy, generator)
        if part.entry is None:
            changed[part.field] = sent
        else:
            changed.setdefault(part.field, {})[part.entry] = sent
    result: T = dataclasses.replace(whole, **changed)  # type: ignore[type-var]
    return result


@dataclasses.dataclass(frozen=True)
class _Part:
    """One array of an uplink: its field and, of a mapping, entry; treatment; what it changes."""

    field: str
    entry: str | None
    item: NDArray[Any]
    treatment: str
    origin: NDArray[Any] | None

    @property
    def key(self) -> str:
        return self.field if self.entry is None else f"{self.field}/{self.entry}"

    @property
    def contribution(self) -> NDArray[np.float64]:
        """The values, or their difference to what was received."""
        values: NDArray[np.float64] = self.item.astype(np.float64)
        return values if self.origin is None else values - self.origin


def _parts(uplink: Any, received: Any, how: Mapping[str, str]) -> Iterator[_Part]:
    """Yield the arrays that are covered, in the order of their declaration."""
    for name, treatment in how.items():
        if treatment not in COVERED:
            continue
        value, before = getattr(uplink, name), getattr(received, name, None)
        entries = value.items() if isinstance(value, Mapping) else [(None, value)]
        for entry, item in entries:
            origin = before.get(entry) if isinstance(before, Mapping) else before
            fits = treatment == UPDATE and origin is not None and np.shape(origin) == item.shape
            yield _Part(name, entry, item, treatment, np.asarray(origin) if fits else None)


def _with_all_classes(uplink: T, how: Mapping[str, str], classes: int) -> T:
    """Return an uplink in which class ids are 0..C-1 and absent classes have rows of zeros."""
    rules, changed = rules_of(type(uplink)), dict[str, Any]()
    for ids in [name for name, treatment in how.items() if treatment == CLASSES]:
        held = np.asarray(getattr(uplink, ids))
        changed[ids] = np.arange(classes, dtype=held.dtype)
        for name, rule in rules.items():
            if name != ids and how[name] in COVERED and rule.dims[:1] == rules[ids].dims[:1]:
                rows = np.asarray(getattr(uplink, name))
                spread = np.zeros((classes, *rows.shape[1:]), dtype=rows.dtype)
                spread[held] = rows
                changed[name] = spread
    result: T = dataclasses.replace(uplink, **changed)  # type: ignore[type-var]
    return result


def _factor(parts: Iterable[_Part], most: float) -> float:
    """Return by how much a contribution is shortened to an L2 norm of `most`, at most 1."""
    total = 0.0
    for part in parts:
        if part.item.dtype.kind != "f":
            continue
        square = float(np.square(part.contribution).sum())
        if not math.isfinite(square):
            raise PayloadError(
                f"{part.key}: holds NaN or infinite values, so that it cannot be clipped to "
                "privacy.clip-norm; nothing is sent, lower lr"
            )
        total += square
    norm = math.sqrt(total)
    return most / norm if norm > most else 1.0


def _sent(part: _Part, factor: float, privacy: Privacy, generator: torch.Generator) -> NDArray[Any]:
    """Return what is sent of one array: shortened, with noise, and as the receiver expects it."""
    item = part.item
    if item.dtype.kind != "f":
        return _as_received(part) if privacy.noisy else item
    if factor == 1.0 and not privacy.noisy:
        return item
    values = part.contribution * factor
    if privacy.noisy:
        noise = torch.randn(item.shape, generator=generator, dtype=torch.float64)
        values = values + privacy.deviation * noise.numpy()
    if part.origin is not None:
        values = values + part.origin
    if part.treatment == SHARES:
        values = _as_shares(values)
    if part.treatment == UNIT_ROWS:
        values = _as_units(values)
    return values.astype(item.dtype)


def _as_received(part: _Part) -> NDArray[Any]:
    """Return an integer array as it was received, which tells nothing of the client."""
    if part.origin is None:
        raise PayloadError(
            f"{part.key}: dtype {part.item.dtype.name} cannot be protected by noise, and no array "
            "of this name and shape was received; choose a model without it, or "
            "privacy.noise-multiplier=0"
        )
    return part.origin.astype(part.item.dtype)


def _as_shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values of at least 0 that sum to 1; equal ones if none is above 0."""
    positive: NDArray[np.float64] = np.maximum(values, 0.0)
    total = float(positive.sum())
    return positive / total if total else np.full(values.shape, 1.0 / max(values.size, 1))


def _as_units(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    result: NDArray[np.float64] = values / np.where(lengths > 0, lengths, 1.0)
    return result
