"""Methods by name: what a method file registers, and how it is found."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

from strategies.base.options import ConfigError

if TYPE_CHECKING:
    from strategies.base.client import ClientHalf
    from strategies.base.server import ServerHalf


@dataclasses.dataclass(frozen=True)
class Training:
    """A method's defaults for local training; run-config keys override each of them.

    Attributes
    ----------
    optimizer : str
        "sgd", "adam" or "adamw".
    lr, momentum, weight_decay : float
        As torch.optim takes them; momentum is for SGD only.
    """

    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Method:
    """One method, complete: what `strategies/<method>.py` registers.

    Attributes
    ----------
    name : str
        The run-config value, for example "lg-fedavg"; also the prefix of the method's keys.
    summary : str
        One sentence for tables.
    config, uplink, downlink : type
        The method's option and payload dataclasses.
    client, server : type
        The two halves.
    training : Training
        Defaults of local training.
    evaluate_when : str
        "pre" or "post": when the method's paper evaluates.
    common_feature_dim : bool
        Whether all clients must have one representation width; checked at the registration.
    evaluated_model : str
        "personal" or "global": which model accuracies belong to.
    any_task : bool
        Whether clients may differ in their task and label set (run-config key `tasks`).
    shares_reader : bool
        Whether weights that read examples are exchanged, so that sentences have to become the
        same tokens on all clients; checked at the registration.
    reads : tuple of str
        What the clients' examples may be where all learn from one data set: "image", "text".
    public_data : bool
        Whether all clients need the public data (`public-dataset`); checked at the registration.
    """

    name: str
    summary: str
    config: type
    uplink: type
    downlink: type
    client: type[ClientHalf[Any, Any, Any]]
    server: type[ServerHalf[Any]]
    training: Training = Training()
    evaluate_when: str = "pre"
    common_feature_dim: bool = True
    evaluated_model: str = "personal"
    any_task: bool = False
    public_data: bool = False
    shares_reader: bool = False
    reads: tuple[str, ...] = ("image", "text")


SHARED = ("base", "common")
"""Packages of `strategies` that are no methods."""

_REGISTRY: dict[str, Method] = {}


def register(method: Method) -> Method:
    """Add a method to the registry and return it.

    Raises
    ------
    ValueError
        If another method already has the name.
    """
    known = _REGISTRY.get(method.name)
    # A module imported twice registers equal halves again; only a real clash is an error.
    if known is not None and known.client.__module__ != method.client.__module__:
        raise ValueError(
            f"method {method.name!r} is already registered by {known.client.__module__}"
        )
    _REGISTRY[method.name] = method
    return method


@cache
def _discover() -> None:
    """Import every module of `strategies`, so that each registers its method."""
    package = importlib.import_module("strategies")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in SHARED:
            importlib.import_module(f"strategies.{module.name}")


def method_names() -> tuple[str, ...]:
    """Return the names of all methods, sorted."""
    _discover()
    return tuple(sorted(_REGISTRY))


def get_method(name: str) -> Method:
    """Return a registered method; raises `ConfigError` naming the known ones."""
    _discover()
    if name not in _REGISTRY:
        raise ConfigError(f"method = {name!r}: expected one of {', '.join(method_names())}")
    return _REGISTRY[name]
