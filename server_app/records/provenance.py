"""On what a run was made: versions of the packages, the revision of the code, the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse

PACKAGES = ("flwr", "flwr-datasets", "torch", "torchvision", "numpy", "safetensors")


def versions() -> dict[str, str | None]:
    """Return the versions of Wildflower, Python and what the numbers rest on; None: not found."""
    return {
        "wildflower": _version("wildflower"),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def machine() -> str:
    """Return cores, architecture and system."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """Return the revision of the app's checkout; None where there is none.

    `flwr run` runs the app from a bundle outside the checkout; the package that is installed in
    development mode tells where the checkout is.
    """
    places = [Path(__file__).parent]
    try:
        source = metadata.distribution("wildflower").read_text("direct_url.json") or "{}"
        places.append(Path(urlparse(json.loads(source).get("url", "")).path))
    except metadata.PackageNotFoundError:
        pass
    for place in places:
        command = ["git", "-C", str(place), "describe", "--always", "--dirty", "--abbrev=40"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return done.stdout.strip() or None
    return None
