"""Architectures by name: register, list, look up."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from models.base import InputShape, ModelError

BackboneFactory = Callable[[InputShape], nn.Module]
"""Makes a backbone for a data set; the module must have an integer ``raw_dim``."""

_Factory = TypeVar("_Factory", bound=BackboneFactory)

HOW_TO_LIST = "list all models with `python -m models`"


@dataclass(frozen=True)
class ModelInfo:
    """One entry of the registry.

    Attributes
    ----------
    name : str
        The name in the run configuration.
    factory : BackboneFactory
        Makes the backbone for an `InputShape`.
    description : str
        One line for listings.
    adapter : bool
        False when the model must be used without a mapping: its feature width is then its raw
        width, and a method that needs another width refuses the client at the roll call.
    """

    name: str
    factory: BackboneFactory
    description: str
    adapter: bool = True


_REGISTRY: dict[str, ModelInfo] = {}


def register_model(
    name: str, *, description: str, adapter: bool = True
) -> Callable[[_Factory], _Factory]:
    """Register a backbone factory under a name.

    Parameters
    ----------
    name : str
        Letters, digits and ``-._``; other signs have a meaning in the run-config key ``models``.
    description : str
        One line for listings.
    adapter : bool, default True
        See `ModelInfo`.

    Returns
    -------
    Callable
        A decorator that returns the factory unchanged.

    Raises
    ------
    ModelError
        The name is taken, or holds a sign that the key ``models`` could not carry.
    """
    if not name or not all(sign.isalnum() or sign in "-._" for sign in name):
        raise ModelError(f"model name {name!r}: use letters, digits and -._ only")

    def register(factory: _Factory) -> _Factory:
        if name in _REGISTRY:
            owner = _REGISTRY[name].factory
            raise ModelError(
                f"model {name!r} is already registered by {owner!r}; choose another name"
            )
        _REGISTRY[name] = ModelInfo(name, factory, description, adapter)
        return factory

    return register


def list_models(pattern: str = "*") -> tuple[str, ...]:
    """Return the registered names that match a shell pattern, in order of registration.

    Examples
    --------
    >>> list_models("cnn*")
    ('cnn1', 'cnn2', 'cnn3', 'cnn4', 'cnn5')
    """
    return tuple(name for name in _REGISTRY if fnmatch.fnmatchcase(name, pattern))


def model_info(name: str) -> ModelInfo:
    """Look up a registered name or a user's ``"package.module:factory"``.

    Parameters
    ----------
    name : str
        A name of `list_models`, or the address of a factory that Python can import where the
        model is built.

    Returns
    -------
    ModelInfo
        A user's factory takes a mapping (``adapter=True``) unless it is itself registered.

    Raises
    ------
    ModelError
        Unknown name, with the nearest spellings; or a factory that cannot be imported or called.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    if ":" in name:
        return _user_model(name)
    # "ResNet18", "resnet_18" and "vit_b16" are the usual slips: compare without case and signs.
    spellings = {known.lower().replace("-", ""): known for known in _REGISTRY}
    wanted = name.lower().replace("-", "").replace("_", "")
    nearest = [spellings[found] for found in difflib.get_close_matches(wanted, spellings)]
    advice = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    raise ModelError(
        f"model {name!r} is unknown; {advice}{HOW_TO_LIST}, "
        "or name your own backbone as 'package.module:factory'"
    )


def _user_model(address: str) -> ModelInfo:
    """Import ``"package.module:factory"``."""
    module_name, _, attribute = address.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ModelError(f"model {address!r}: write it as 'package.module:factory'")
    try:
        module = importlib.import_module(module_name)
    except Exception as cause:  # the user's module runs here and may raise anything
        raise ModelError(
            f"model {address!r}: cannot import {module_name!r} "
            f"({type(cause).__name__}: {cause}); it must be importable where the model is built: "
            "put it into your app, or install it in this environment"
        ) from cause
    factory: Any = getattr(module, attribute, None)
    if not callable(factory):
        found = "has no such name" if factory is None else f"it is a {type(factory).__name__}"
        raise ModelError(
            f"model {address!r}: {attribute!r} of module {module_name!r} is not a callable "
            f"({found}); define `def {attribute}(shape: InputShape) -> nn.Module`"
        )
    registered = next((info for info in _REGISTRY.values() if info.factory is factory), None)
    adapter = registered.adapter if registered else True
    return ModelInfo(address, factory, f"user's {attribute} of {module_name}", adapter)
