"""deploy/constraints.txt: the versions that the tests last passed with.

python -m tests.constraints    write it from the environment that this runs in
"""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FILE = ROOT / "deploy" / "constraints.txt"
NOT_ON_DEVICES = {"dev"}
"""Extras of the project whose packages no device needs."""

CHOSEN_BY_TORCH = ("nvidia-", "cuda-", "triton")
"""Beginnings of packages that differ with the build of torch (CPU, CUDA, arm64)."""

HEAD = """\
# The versions that the tests last passed with, on Python 3.11 and x86_64: `pip install -c` takes no
# others. Made by `python -m tests.constraints`. CUDA's packages are left to the build of torch.
"""


def requirements() -> list[Requirement]:
    """Return what the project needs, with all extras a device or server may have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"]]
    extras = project["optional-dependencies"]
    lists += [needs for extra, needs in extras.items() if extra not in NOT_ON_DEVICES]
    found = [Requirement(need) for needs in lists for need in needs]
    return [need for need in found if need.name != project["name"]]


def installed(needs: list[Requirement]) -> dict[str, str]:
    """Return the versions here of these packages and all that they need, by name, sorted."""
    versions: dict[str, str] = {}
    done: set[tuple[str, str]] = set()
    queue = list(needs)
    while queue:
        need = queue.pop()
        name = canonicalize_name(need.name)
        new = {(name, extra) for extra in {"", *need.extras}} - done
        try:
            distribution = importlib.metadata.distribution(need.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not tested here
        done |= new
        versions[name] = Version(distribution.version).public
        for text in distribution.requires or []:
            inner = Requirement(text)
            marker = inner.marker
            if new and (marker is None or any(marker.evaluate({"extra": e}) for _, e in new)):
                queue.append(inner)
    return {k: versions[k] for k in sorted(versions) if not k.startswith(CHOSEN_BY_TORCH)}


def main() -> None:
    """Write the file."""
    lines = [f"{name}=={version}" for name, version in installed(requirements()).items()]
    FILE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
