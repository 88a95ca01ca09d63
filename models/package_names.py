"""Keeps the names of Wildflower's packages for Wildflower, whatever lies in a user's folder.

A folder `data`, even an empty one, or a file `models.py` ahead of them on `sys.path` (PYTHONPATH,
the working directory) would be imported in their place. Every package that imports another one
runs this file first, by its path, because an import could be misled already:

    runpy.run_path(str(Path(__file__).parents[1] / "models" / "package_names.py"))

It imports nothing but the standard library.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

NAMES = ("client_app", "data", "deploy", "models", "server_app", "strategies")


class PackageFinder:
    """Finds the packages of `NAMES` beside each other, before any other finder is asked.

    `sys.path` stays as it is, and nothing but these names is found differently.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where one of the packages is; None for all other modules."""
        root = Path(__file__).absolute().parents[1]
        return PathFinder.find_spec(name, [str(root)]) if name in NAMES else None


def refuse_strangers(root: Path) -> None:
    """Check that no other module has one of the names already.

    Raises
    ------
    ImportError
        In one line that names the other module's place and the remedy.
    """
    for name in NAMES:
        module = sys.modules.get(name)
        if module is None:
            continue
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
        place = next(filter(None, places), "")
        if Path(place).absolute() not in (root / name / "__init__.py", root / name):
            raise ImportError(
                f"{place or repr(module)} was imported as {name!r} before Wildflower, whose own "
                f"package of this name is {root / name}; rename yours, or take its folder off "
                "PYTHONPATH and start from another working directory"
            )


if not any(type(finder).__name__ == PackageFinder.__name__ for finder in sys.meta_path):
    refuse_strangers(Path(__file__).absolute().parents[1])
    sys.meta_path.insert(0, PackageFinder())
