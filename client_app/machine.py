"""What a device says of its machine at the registration: version, free disk, free memory."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

GB = 1e9


def machine_text(place: Path) -> str:
    """Return one line: Wildflower's version, and what is free for files at `place` and in memory.

    `place` need not exist yet; then it is the disk of the nearest folder above it that does.
    """
    import psutil  # needed on devices alone, and once a run

    there = next(folder for folder in (place, *place.parents) if folder.exists())
    disk, memory = shutil.disk_usage(there).free, psutil.virtual_memory().available
    try:
        version = metadata.version("wildflower")
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    return (
        f"wildflower {version}, {disk / GB:.1f} GB of disk and {memory / GB:.1f} GB of memory free"
    )
