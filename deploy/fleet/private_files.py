"""Files and directories that only their owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from strategies.base.options import ConfigError


def prepare_directory(path: Path) -> None:
    """Make a directory that only its owner can enter and that git does not pick up.

    Raises
    ------
    ConfigError
        If it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = path / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"directory = {str(path)!r}: cannot be used: {error}") from error


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all; only the owner of its directory can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if os.geteuid() == 0:  # what root writes for another user has to be readable by that one
        owner = path.parent.stat()
        os.chown(part, owner.st_uid, owner.st_gid)
    part.replace(path)


def refuse_readable_by_others(path: Path) -> None:
    """Refuse a private file that others may read, as ssh does."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigError(
            f"{path}: mode {mode:04o} lets others read what is private; expected 0600 "
            f"(chmod 600 {path})"
        )
