"""Methods by name: what a method file registers, and how it is found."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.own_code import OwnCodeError, file_of_own, import_own
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
        For example "lg-fedavg", the run-config value; also the prefix of the method's keys.
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
    refuses : callable, optional
        Returns what in a `RunConfig` cannot be meant with the method and what to set instead, or
        None; asked before anything starts.
    averages : bool
        Whether the server takes means over clients through `common.robust`, so that `robust-mean`
        can be set.
    reads : tuple of str
        What the clients' examples may be where all learn from one data set: "image", "text",
        "numbers" (tables and series).
    regression : bool
        Whether clients may predict a number (task `regression`).
    one_network : bool
        Whether the clients' models are parts of one network, the only one that `models` names.
    task_models : bool
        Whether clients' models are `models.TaskModel`s even where the run names no tasks.
    public_data : bool
        Whether all clients need the public data (`public-dataset`); checked at the registration.
    pairs : bool
        Whether clients may learn from pairs of an image and its caption (task `retrieval`).
    server_score : str
        By what the server scores its own model in rounds that evaluate, see `ServerHalf.score`;
        empty where it has none.
    server_scored_on : str
        On what, in words; never on what is a client's alone.
    """

    name: str
    summary: str
    config: type
    uplink: type
    downlink: type
    client: type[ClientHalf[Any, Any, Any]]
    server: type[ServerHalf[Any, Any]]
    training: Training = Training()
    evaluate_when: str = "pre"
    common_feature_dim: bool = True
    evaluated_model: str = "personal"
    any_task: bool = False
    task_models: bool = False
    public_data: bool = False
    one_network: bool = False
    shares_reader: bool = False
    averages: bool = False
    pairs: bool = False
    server_score: str = ""
    server_scored_on: str = ""
    regression: bool = False
    refuses: Callable[[Any], str | None] | None = None
    reads: tuple[str, ...] = ("image", "text", "numbers")

    @property
    def reads_numbers(self) -> bool:
        """Whether clients may learn from tables and series; public items are none of these."""
        return "numbers" in self.reads and not self.public_data


SHARED = ("base", "common")
"""Packages of `strategies` that are no methods."""
PARTS = ("Config", "Uplink", "Downlink", "Client", "Server")
"""What a method's module defines, by these names."""


def register(module: str, *, summary: str, name: str = "", **declared: Any) -> Method:
    """Return the method that a module defines; the module keeps it as `METHOD`.

    Parameters
    ----------
    module : str
        The module's `__name__`; it defines `Config`, `Uplink`, `Downlink`, `Client` and `Server`,
        so that this is called at its end.
    summary : str
        One sentence for tables.
    name : str
        The method's name; empty: the module's, without its package.
    **declared
        Further attributes of `Method`, such as `training` and `evaluate_when`.

    Raises
    ------
    TypeError
        If the module lacks one of the five, or one is not what it should be.
    """
    found = vars(sys.modules[module])
    short = module.rpartition(".")[2]
    if missing := [part for part in PARTS if part not in found]:
        raise TypeError(f"{short}: a method's module defines {', '.join(missing)} as well")
    for part in PARTS[:3]:
        if not (isinstance(found[part], type) and dataclasses.is_dataclass(found[part])):
            raise TypeError(f"{short}.{part}: expected a dataclass")
    return Method(
        name=name or short,
        summary=summary,
        **{part.lower(): found[part] for part in PARTS},
        **declared,
    )


@cache
def method_names() -> tuple[str, ...]:
    """Return the names of the methods that are part of Wildflower, sorted; imports none."""
    entries = pkgutil.iter_modules(importlib.import_module("strategies").__path__)
    return tuple(sorted(e.name.replace("_", "-") for e in entries if e.name not in SHARED))


@cache
def _built_in(name: str) -> Method:
    """Import one of `method_names`."""
    module = f"strategies.{name.replace('-', '_')}"
    method: Method = importlib.import_module(module).METHOD
    if method.name != name:
        raise ValueError(f"the METHOD of {module} is called {method.name!r}; expected {name!r}")
    return method


def get_method(name: str) -> Method:
    """Return a method by its name, or a user's own by the name of its module.

    Raises
    ------
    ConfigError
        Naming the known ones, or what is wrong with the user's module.
    """
    return _built_in(name) if name in method_names() else _own_method(name)


def is_module_name(name: str) -> bool:
    """Return whether a method is a user's own, named by its module."""
    return name not in method_names() and all(part.isidentifier() for part in name.split("."))


def _own_method(name: str) -> Method:
    """Import a user's module and return its METHOD."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), method_names(), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    accepted = f"expected one of {', '.join(method_names())}, or a module with a method of your own"
    if not is_module_name(name):
        raise ConfigError(f"method = {name!r}: {accepted}{hint}")
    try:
        module = import_own(name)
    except OwnCodeError as error:
        raise ConfigError(f"method = {name!r}: {accepted}{hint}; {error}") from error
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        raise ConfigError(
            f"method = {name!r}: the module has no METHOD; end it with "
            "`METHOD = register(__name__, summary=...)`, see strategies/README.md"
        )
    if method.name in method_names():
        raise ConfigError(
            f"method = {name!r}: its METHOD is called {method.name!r}, as one of Wildflower's own; "
            "rename the module, or give register another name"
        )
    if problem := _unlike_a_half(method):
        raise ConfigError(f"method = {name!r}: {problem}; see strategies/README.md")
    return method


def _unlike_a_half(method: Method) -> str | None:
    """Return what keeps a method's halves from being used, or None."""
    from strategies.base.client import ClientHalf  # both import this module
    from strategies.base.server import ServerHalf

    for half, base in ((method.client, ClientHalf), (method.server, ServerHalf)):
        if not (isinstance(half, type) and issubclass(half, base)):
            return f"{half!r} is not a subclass of {base.__module__}.{base.__name__}"
        if missing := sorted(getattr(half, "__abstractmethods__", ())):
            return f"{half.__name__} lacks {', '.join(missing)}"
    return None


def hidden_file(name: str) -> Path | None:
    """Return the user's file that a method of Wildflower's own keeps from being found, if any."""
    file = file_of_own(name.replace("-", "_"))
    if name not in method_names() or file is None:
        return None
    module = sys.modules[_built_in(name).client.__module__]
    return None if file.samefile(str(module.__file__)) else file
