"""Architectures by name: register, list, look up."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from models.base import ModelError
from models.libraries import is_installed
from models.own_code import OwnCodeError, import_own, refuse_name

BackboneFactory = Callable[..., nn.Module]
"""Makes a backbone for a data set from its `Shape` (of images an `InputShape`); the module must
have an integer ``raw_dim``. One registered with ``pretrained=True`` also takes the keywords
``place`` and ``lora_rank``, one with ``segments=True`` the keyword ``maps``."""

_Factory = TypeVar("_Factory", bound=BackboneFactory)

HOW_TO_LIST = "list all models with `wildflower models`, or `python -m models`"

MODALITIES = ("image", "text", "table", "series")
"""What a model can read."""
IN_WORDS = {
    "image": "images", "text": "text", "table": "tables", "series": "time series",
    "pair": "images and text",
}  # fmt: skip
"""How messages name it."""


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
        width, and a method that needs another width refuses the client at the registration.
    modality : {"image", "text", "table", "series"}
        What the backbone reads.
    pretrained : bool
        Whether ``name@place`` loads pretrained weights from a place, and low-rank adapters can be
        added.
    place : str
        Where weights come from, as the factory reads it; empty for its default.
    own_weights : bool
        Whether it has pretrained weights without a place, too.
    places : tuple of str
        The forms that a place can have, for errors.
    segments : bool
        Whether the factory takes ``maps=True`` for another network that gives feature maps.
    extra : str
        What has to be installed, ``wildflower[extra]``; empty: nothing.
    needs : tuple of str
        The packages of the extra that this model imports.
    advice : callable, optional
        From a shape that the model cannot be built for, or run on, to what to do about it.
    """

    name: str
    factory: BackboneFactory
    description: str
    adapter: bool = True
    modality: str = "image"
    pretrained: bool = False
    place: str = ""
    own_weights: bool = False
    places: tuple[str, ...] = ("FOLDER", "HUB-NAME")
    segments: bool = False
    extra: str = ""
    needs: tuple[str, ...] = ()
    advice: Callable[[Any], str] | None = None

    @property
    def is_installed(self) -> bool:
        """Whether the packages it needs are here; none is imported for the answer."""
        return is_installed(*self.needs)

    @property
    def starts_trained(self) -> bool:
        """Whether its first weights are pretrained ones, as far as is known here."""
        return self.own_weights or bool(self.place)

    @property
    def comes_with_wildflower(self) -> bool:
        """Whether its factory is defined in this package, so that tests have proven it."""
        factory = getattr(self.factory, "func", self.factory)  # that of a partial
        return str(getattr(factory, "__module__", "")).partition(".")[0] == "models"


_REGISTRY: dict[str, ModelInfo] = {}
_COLLECTIONS: dict[str, Callable[[str], ModelInfo]] = {}
"""By the first part of ``"collection/name"``: from the whole name to the model."""


def register_model(
    name: str,
    *,
    description: str,
    adapter: bool = True,
    modality: str = "image",
    pretrained: bool = False,
    **more: Any,
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
    modality : {"image", "text", "table", "series"}, default "image"
        What the backbone reads: images ``(N, channels, S, S)``, token ids ``(N, length)``, rows
        ``(N, features)`` or windows ``(N, channels, steps)``.
    pretrained : bool, default False
        See `ModelInfo`.
    **more
        Further fields of `ModelInfo`.

    Returns
    -------
    Callable
        A decorator that returns the factory unchanged.

    Raises
    ------
    ModelError
        The name is taken, or holds a sign that the key ``models`` could not carry; or the modality
        is unknown.
    """
    if not name or not all(sign.isalnum() or sign in "-._" for sign in name):
        raise ModelError(f"model name {name!r}: use letters, digits and -._ only")
    if modality not in MODALITIES:
        raise ModelError(f"model {name!r}: modality={modality!r}; use {', '.join(MODALITIES)}")

    def register(factory: _Factory) -> _Factory:
        # A user's file may be loaded a second time, when another one imports it by its own name.
        if name in _REGISTRY and _source(_REGISTRY[name].factory) != _source(factory):
            owner = _REGISTRY[name].factory
            raise ModelError(
                f"model {name!r} is already registered by {owner!r}; choose another name"
            )
        _REGISTRY[name] = ModelInfo(
            name, factory, description, adapter, modality, pretrained, **more
        )
        return factory

    return register


def _source(factory: BackboneFactory) -> object:
    """Return what two loads of one definition have in common; the factory itself without a file."""
    code = getattr(factory, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else factory


def register_collection(name: str, look_up: Callable[[str], ModelInfo]) -> None:
    """Register another library's models: all names ``"name/..."``.

    Parameters
    ----------
    name : str
        What stands before the stroke.
    look_up : callable
        From a whole name, without a place, to the model; raises `ModelError` for an unknown one.
    """
    _COLLECTIONS[name] = look_up


def list_models(pattern: str = "*", modality: str | None = None) -> tuple[str, ...]:
    """Return the registered names that match a shell pattern, in order of registration.

    With a modality of `MODALITIES` only the models that read it.

    Examples
    --------
    >>> list_models("cnn?")
    ('cnn1', 'cnn2', 'cnn3', 'cnn4', 'cnn5')
    """
    return tuple(
        name
        for name, info in _REGISTRY.items()
        if fnmatch.fnmatchcase(name, pattern) and modality in (None, info.modality)
    )


def model_info(name: str) -> ModelInfo:
    """Look up a registered name, one with a place, or a user's ``"package.module:factory"``.

    Parameters
    ----------
    name : str
        A name of `list_models`, or of a collection such as ``"timm/resnet18d"``; ``"name@place"``
        for pretrained weights from a place, which is looked at only when the model is built;
        ``"image-model+text-model"`` for both, see `models.pair_model`; or the address of a factory
        that Python can import where the model is built.

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
    if parts := pair_of(name):
        return _pair(name, *map(model_info, parts))
    family, at, place = name.partition("@")
    collection, stroke, _ = family.partition("/")
    if stroke and collection in _COLLECTIONS:
        found = _COLLECTIONS[collection](family)
        return _placed(found, name, place) if at else found
    if at:
        return _placed_model(name, family, place)
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


def pair_of(name: str) -> tuple[str, str] | None:
    """Return the two names of ``"image-model+text-model"``, or None for a name of one model.

    A place may have a plus sign: what follows the one that is meant is a text model's name.
    """
    parts = name.split("+")
    for place in range(1, len(parts)):
        image, text = "+".join(parts[:place]), "+".join(parts[place:])
        known = _REGISTRY.get(text.partition("@")[0])
        if image and known is not None and known.modality == "text":
            return image, text
    return None


def _pair(name: str, image: ModelInfo, text: ModelInfo) -> ModelInfo:
    """Return the entry of a model with two towers, which `models.pair_model` builds."""
    if image.modality != "image":
        raise ModelError(
            f"model {name!r}: {image.name} reads {image.modality}; write the image model first, "
            "then + and the text model"
        )
    return replace(image, name=name, description=f"{image.name} and {text.name}", modality="pair")


def _placed_model(name: str, family: str, place: str) -> ModelInfo:
    """Look up ``"family@place"``."""
    able = [info.name for info in _REGISTRY.values() if info.pretrained]
    if family not in able:
        raise ModelError(
            f"model {name!r}: {family!r} loads no pretrained weights; those that do are "
            f"{', '.join(able)}"
        )
    return _placed(_REGISTRY[family], name, place)


def _placed(info: ModelInfo, name: str, place: str) -> ModelInfo:
    """Give a model a place."""
    if info.place:
        raise ModelError(f"model {name!r}: {info.name} has its weights; write {info.name} alone")
    if not place:
        forms = " or ".join(f"{info.name}@{form}" for form in info.places)
        raise ModelError(f"model {name!r}: no place after @; write {forms}, or {info.name} alone")
    try:
        refuse_name(name)  # a place is a folder, or what is to be downloaded
    except OwnCodeError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    return replace(info, name=name, place=place)


def _user_model(address: str) -> ModelInfo:
    """Look up ``"package.module:factory"``, see `models.own_code`."""
    module_name, _, attribute = address.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ModelError(f"model {address!r}: write it as 'package.module:factory'")
    try:
        module = import_own(module_name)
    except OwnCodeError as error:
        raise ModelError(f"model {address!r}: {error}") from error
    factory: Any = getattr(module, attribute, None)
    if not callable(factory):
        found = "has no such name" if factory is None else f"it is a {type(factory).__name__}"
        raise ModelError(
            f"model {address!r}: {attribute!r} of module {module_name!r} is not a callable "
            f"({found}); define `def {attribute}(shape: InputShape) -> nn.Module`"
        )
    registered = next((info for info in _REGISTRY.values() if info.factory is factory), None)
    if registered:
        return replace(registered, name=address)
    return ModelInfo(address, factory, f"user's {attribute} of {module_name}")
