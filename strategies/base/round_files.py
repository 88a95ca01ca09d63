"""Files named by round, `round-00007.safetensors`, as checkpoints and private states are."""

from __future__ import annotations

import re
from pathlib import Path

NAME = re.compile(r"round-(\d{5,})\.safetensors")


def round_file(directory: Path, server_round: int) -> Path:
    """Return the file of a round."""
    return directory / f"round-{server_round:05d}.safetensors"


def rounds_in(directory: Path) -> list[int]:
    """Return the rounds that have a file, ascending; none if there is no such directory."""
    if not directory.is_dir():
        return []
    matches = (NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it is not found again, and return its new path."""
    return path.rename(path.with_suffix(".damaged"))


def prune_rounds(directory: Path, keep_from: int) -> None:
    """Delete files that no resume at a round >= `keep_from` needs.

    A resume at `keep_from` needs the newest file of that round or before, so that one stays.
    """
    rounds = rounds_in(directory)
    needed = max((r for r in rounds if r <= keep_from), default=None)
    for number in rounds:
        if needed is not None and number < needed:
            round_file(directory, number).unlink(missing_ok=True)
