"""One room for each job: which package may import which, and that each can be imported alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from models.package_names import NAMES

ROOT = Path(__file__).parents[2]
ARROWS = {
    "deploy": {"server_app", "client_app", "strategies", "models", "data"},
    "server_app": {"strategies", "models", "data"},
    "client_app": {"strategies", "models", "data"},
    "strategies": {"models", "data"},
    "models": set(),
    "data": set(),
}
"""Which of the packages at the top each may import, in functions as well."""
SHARED = ("strategies.base", "strategies.common")


@cache
def modules() -> dict[str, ast.Module]:
    """Return every module of the packages by its dotted name, parsed."""
    files = [file for name in NAMES for file in (ROOT / name).rglob("*.py")]
    return {dotted(file): ast.parse(file.read_text(encoding="utf-8")) for file in sorted(files)}


def dotted(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the module of every import of ours below a node, and the name taken from it."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name packages whole"
            found = [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        for module, name in found:
            if top(module) in NAMES:  # `from strategies import fedre` is an import of fedre
                whole = f"{module}.{name}"
                yield (whole, "") if whole in modules() else (module, name)


def top(module: str) -> str:
    return module.partition(".")[0]


def room(module: str) -> str:
    """Return who uses something: a method, `strategies.base` or `.common`, or a top package."""
    return ".".join(module.split(".")[:2]) if top(module) == "strategies" else top(module)


def methods() -> set[str]:
    return {room(name) for name in modules() if name.startswith("strategies.")} - set(SHARED)


@pytest.mark.parametrize("package", NAMES)
def test_packages_import_in_the_direction_of_the_arrows(package: str) -> None:
    assert set(ARROWS) == set(NAMES)
    for name, tree in modules().items():
        if top(name) == package:
            used = {module for module, _ in imports(tree)}
            wrong = {module for module in used if top(module) not in {package, *ARROWS[package]}}
            assert not wrong, f"{name} imports {sorted(wrong)}"


def test_what_methods_share_knows_no_method() -> None:
    """And the contract knows nothing of what some methods share; methods know no other method."""
    for name, tree in modules().items():
        own = room(name)
        if top(name) == "strategies" and "." in name:
            allowed = {own, "strategies.base", *({"strategies.common"} - {own})}
            allowed -= {"strategies.common"} if own == "strategies.base" else set()
            used = {room(module) for module, _ in imports(tree) if top(module) == "strategies"}
            assert used <= allowed, f"{name} imports {sorted(used - allowed)}"


def runs_on_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported: none of type checking alone."""
    for node in tree.body:
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not guarded and not isinstance(node, ast.FunctionDef):
            yield node


def test_no_module_needs_itself() -> None:
    """So that each can be the first that is imported."""
    needs = {
        name: {m for node in runs_on_import(tree) for m, _ in imports(node)} & set(modules())
        for name, tree in modules().items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"imports in a circle: {' -> '.join((*path, name))}"
        if name not in done:
            for needed in sorted(needs[name]):
                visit(needed, (*path, name))
            done.add(name)

    for name in needs:
        visit(name, ())


def test_every_package_imports_alone() -> None:
    """One process; before each package it forgets all of our modules."""
    packages = [
        dotted(file) for name in NAMES for file in sorted((ROOT / name).rglob("__init__.py"))
    ]
    text = f"""
import importlib, pkgutil, sys
for package in {packages!r}:
    for name in [name for name in sys.modules if name.partition(".")[0] in {NAMES!r}]:
        del sys.modules[name]
    found = importlib.import_module(package)
    for entry in pkgutil.iter_modules(found.__path__):
        if not entry.ispkg and entry.name != "__main__":
            importlib.import_module(f"{{package}}.{{entry.name}}")
print(len({packages!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(packages)}\n"


@cache
def users() -> dict[tuple[str, str], set[str]]:
    """Return, for every name of a module, the modules that import it."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, tree in modules().items():
        for module, taken in imports(tree):
            found[module, taken].add(name)
    return found


def public_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def used_inside(tree: ast.Module, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
               for n in ast.walk(tree))  # fmt: skip


@pytest.mark.parametrize("package", SHARED)
def test_nothing_is_shared_that_one_method_uses(package: str) -> None:
    for module, tree in modules().items():
        if room(module) == package:
            for name in public_names(tree):
                rooms = {room(user) for user in users()[module, name]}
                alone = len(rooms) == 1 and rooms <= methods() and not used_inside(tree, name)
                assert not alone, f"{module}.{name} is used by {rooms.pop()} alone; move it there"


def test_what_is_common_has_three_users() -> None:
    """Methods or packages, those included that use it through another part of `common`."""
    direct = {
        module: {user for (used, _), by in users().items() if used == module for user in by}
        for module in modules()
    }

    def rooms(module: str) -> set[str]:
        found = set()
        for user in direct[module]:
            found |= rooms(user) if room(user) == "strategies.common" else {room(user)}
        return found

    for module in modules():
        if module.startswith("strategies.common."):
            assert len(rooms(module)) >= 3, f"{module} is used by {sorted(rooms(module))} only"
