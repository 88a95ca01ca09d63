"""Files that matter: whole or not there at all, and a plain word where they cannot be written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


class NotWrittenError(OSError):
    """A file could not be written; the message names it, the room on its disk, and the remedy."""


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Give a file beside `path` to write to, and move it there if the block ends well.

    Parameters
    ----------
    path : Path
        Target file; its directory is created.
    durable : bool
        Wait until the bytes are on the disk. A killed process loses nothing without it; a power
        cut might.

    Raises
    ------
    NotWrittenError
        If the block or the move fails, on a full disk for example. What was there stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            if durable:
                sync(partial)
            partial.replace(path)
            if durable:
                sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Raise `NotWrittenError` for `path` where the block cannot write."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise NotWrittenError(
            f"{path}: cannot be written{_room(path.parent)} ({error}); make room there, or choose "
            "another output-dir, or state-dir on a device"
        ) from error


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _room(directory: Path) -> str:
    try:
        return f", where {shutil.disk_usage(directory).free / 1e6:.1f} MB are free"
    except OSError:  # there is no such directory
        return ""
