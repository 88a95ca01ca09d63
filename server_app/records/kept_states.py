"""The states of a completed run: what a resume, an attack or an analysis needs, and no record."""

from __future__ import annotations

import shutil
from pathlib import Path

from server_app.records.run_directory import mark_cleaned

STATES = ("checkpoints", "clients")
"""Folders of a run; the second has the private states of clients that ran on this machine."""


def delete_states(directory: Path) -> None:
    """Delete a run's states; whoever calls holds its lock, or is the run."""
    mark_cleaned(directory)  # first, so that a half-deleted run is not resumed either
    for name in STATES:
        if (directory / name).exists():
            shutil.rmtree(directory / name)
