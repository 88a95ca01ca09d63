"""The logs of a fleet's processes: a long one is put aside, also while it is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LOG_BYTES = 10_000_000
"""A log that has grown beyond it is put aside."""
LOOKS = 10
"""How often it is copied what was written in the meantime, before the rest is given up."""


def put_logs_aside(logs: Path) -> None:
    """Make the directory of logs, and start long ones anew; one earlier log is kept."""
    logs.mkdir(mode=0o700, exist_ok=True)
    for log in logs.glob("*.log"):
        if is_long(log):
            log.replace(earlier(log))


def earlier(log: Path) -> Path:
    """Return where a log is put aside."""
    return log.with_suffix(".log.previous")


def is_long(log: Path) -> bool:
    """Return whether a log is there and has grown beyond `LOG_BYTES`."""
    return log.is_file() and log.stat().st_size > LOG_BYTES


def rotate_in_use(log: Path, keep: bytes = b"") -> None:
    """Put a log aside while a process appends to it.

    The process goes on writing to the same file, which is cut short after it was copied: what it
    writes between the last look and that, some microseconds, is lost, as with logrotate's
    copytruncate.  The lines to keep are written over its beginning before the cut, since what is
    appended after it could come before them.

    Parameters
    ----------
    log : Path
        The file, opened for appending by whoever writes.
    keep : bytes
        Lines that the file begins with afterwards.
    """
    part = earlier(log).with_suffix(".part")
    with log.open("r+b") as source, part.open("wb") as target:
        os.fchmod(target.fileno(), 0o600)
        for _ in range(LOOKS):
            shutil.copyfileobj(source, target)
            if source.tell() == os.fstat(source.fileno()).st_size:
                break
        part.replace(earlier(log))
        source.seek(0)
        source.write(keep)
        source.truncate()
