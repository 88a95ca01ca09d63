"""Libraries of the extras: imported on first use, because that takes seconds."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models.base import ModelError


def library(name: str, extra: str = "hf") -> Any:
    """Import a library of an extra.

    Raises
    ------
    ModelError
        It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        raise missing(str(cause.name).partition(".")[0], extra) from cause


def missing(name: str, extra: str) -> ModelError:
    """Say which library is missing, and what to install."""
    return ModelError(
        f"the library {name} is missing where the model is built; install the extra "
        f"there: pip install 'wildflower[{extra}]'"
    )


def is_installed(*names: str) -> bool:
    """Tell whether all of these packages are there; imports none of them."""
    return all(find_spec(name) is not None for name in names)


def package_folder(name: str, extra: str) -> Path:
    """Return the folder of an installed package without importing it.

    Raises
    ------
    ModelError
        It is not installed.
    """
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise missing(name, extra)
    return Path(spec.submodule_search_locations[0])
