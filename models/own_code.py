"""A user's own code by its address, `module:name`: by file in a folder, else as installed.

The folder is `code-dir`, or where `wildflower` was started; it need not be on PYTHONPATH. A module
in it is loaded under a private name, so that it hides no other, even if it is called `data`. What
it imports is found as anywhere in Python, and last of all in the folder: a file of the user's never
takes the place of an installed module, only `from . import data` reaches one of that name.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from models.package_names import NAMES

_FOLDER: ContextVar[Path | None] = ContextVar("_FOLDER", default=None)

Refusal = Callable[[str], str | None]
"""Returns why nothing may be had by a name, a module's or "model@place", or None."""

_REFUSAL: ContextVar[Refusal] = ContextVar("_REFUSAL", default=lambda name: None)


class OwnCodeError(ValueError):
    """A user's own module, or what is named in it, cannot be had."""


@contextmanager
def searching(folder: str | Path) -> Iterator[None]:
    """Look for the user's modules in this folder first, inside the with block.

    Parameters
    ----------
    folder : str or Path
        Absolute, or one that starts with ~; it need not exist unless a module is looked up. Empty:
        the folder of a surrounding with block, if any.
    """
    if not str(folder):
        yield
        return
    token = _FOLDER.set(Path(folder).expanduser())
    try:
        yield
    finally:
        _FOLDER.reset(token)


@contextmanager
def refusing(refusal: Refusal) -> Iterator[None]:
    """Ask first whether a name may be used, inside the with block; a surrounding one is not asked.

    Names come over the network: from a run to a device, and from a device to the server.
    """
    token = _REFUSAL.set(refusal)
    try:
        yield
    finally:
        _REFUSAL.reset(token)


def refuse_name(name: str) -> None:
    """Raise `OwnCodeError` if a name may not be used where this is called; see `refusing`."""
    if (reason := _REFUSAL.get()(name)) is not None:
        raise OwnCodeError(reason)


def load_own(address: str) -> object:
    """Return what an address, `module:name` or `package.module:name`, stands for.

    Raises
    ------
    OwnCodeError
        It is no address, its module cannot be imported, or the module lacks the name.
    """
    module_name, _, attribute = address.partition(":")
    if not attribute.isidentifier():
        raise OwnCodeError(f"{address!r}: write it as 'module:name' or 'package.module:name'")
    module = import_own(module_name)
    try:
        found: object = getattr(module, attribute)
    except AttributeError:
        raise OwnCodeError(
            f"{address!r}: module {module_name!r} ({_place(module)}) has no {attribute!r}"
        ) from None
    return found


def import_own(name: str) -> ModuleType:
    """Import a module by its dotted name: from the folder if it is there, else as installed.

    Raises
    ------
    OwnCodeError
        It is nowhere, it fails while it is imported, or the name may not be used here.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise OwnCodeError(f"{name!r} is not the name of a Python module")
    refuse_name(name)
    folder = _FOLDER.get()
    own = folder is not None and own_file(folder, name) is not None
    try:
        return importlib.import_module(f"{_package(folder)}.{name}" if folder and own else name)
    except (Exception, SystemExit) as cause:  # the user's module runs here: a script may end itself
        raise OwnCodeError(
            f"cannot import {name!r} ({type(cause).__name__}: {cause}); {_advice(cause, folder)}"
        ) from cause


def file_of_own(name: str) -> Path | None:
    """Return the file of a user's module in the folder that is searched now, or None."""
    folder = _FOLDER.get()
    return None if folder is None else own_file(folder, name)


def own_file(folder: Path, name: str) -> Path | None:
    """Return the file of a module in a folder, a package's `__init__.py` included, or None."""
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    stem = folder.joinpath(*name.split("."))
    files = stem.with_name(stem.name + ".py"), stem / "__init__.py"
    return next((file for file in files if file.is_file()), None)


def _package(folder: Path) -> str:
    """Return the private package whose modules are the files of a folder; make it if need be."""
    digest = hashlib.sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()
    name = f"wildflower_code_{digest[:12]}"
    if name not in sys.modules:
        package = ModuleType(name, f"The user's modules in {folder}.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    # At the end, where it hides nothing. It stays: functions may import when they are called.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return name


def _place(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "no file")


def _advice(cause: BaseException, folder: Path | None) -> str:
    """Say what to do about a failed import."""
    taken = (cause.name or "").partition(".")[0] if isinstance(cause, ImportError) else ""
    if taken in NAMES:
        return (
            f"the name {taken!r} is Wildflower's own package here; to reach a file of yours of "
            f"this name write `from . import {taken}`, or rename it"
        )
    looked = "code-dir names no folder to look in"
    if folder is not None:
        looked = f"looked in {folder}" + ("" if folder.is_dir() else ", which is no folder here")
    return (
        f"{looked}; set code-dir to the folder of the file (for a device in its own node-config), "
        "or install the module, so that it is importable where it is used"
    )
