"""Files under the cache folder: built once, by one process, whole or not at all.

The folder is `$WILDFLOWER_CACHE`, else `~/.cache/wildflower`. Entries are made under a temporary
name and renamed into place, so a reader sees a finished entry or none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from data.spec import DataError

# Long enough to download and decode the largest dataset, short enough that a crashed machine's
# lock on a shared disk does not hold a run for ever.
LOCK_TIMEOUT_S = 1800.0

Entry = TypeVar("Entry")


def cache_root() -> Path:
    """Return the cache folder, `$WILDFLOWER_CACHE` or `~/.cache/wildflower`."""
    configured = os.environ.get("WILDFLOWER_CACHE", "")
    root = Path(configured).expanduser() if configured else Path.home() / ".cache" / "wildflower"
    return root.absolute()


@contextmanager
def _lock(entry: Path) -> Iterator[None]:
    path = entry.with_name(entry.name + ".lock")
    lock = FileLock(path, timeout=LOCK_TIMEOUT_S)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise DataError(
            f"Waited {LOCK_TIMEOUT_S:.0f} s for another process to build {entry}; if none is "
            f"running, delete {path}."
        ) from error
    except OSError as error:
        raise DataError(
            f"Cannot write the cache entry {entry} ({error}); point the environment variable "
            "WILDFLOWER_CACHE at a writable folder."
        ) from error
    try:
        yield
    finally:
        lock.release()


def fetch_entry(
    entry: Path,
    read: Callable[[Path], Entry],
    build: Callable[[Path], None],
) -> Entry:
    """Read a cache entry, building it first where it is missing or damaged.

    Parameters
    ----------
    entry : Path
        The entry's folder.
    read : Callable[[Path], Entry]
        Reads a finished entry; raises OSError, ValueError, KeyError or EOFError if it is damaged.
    build : Callable[[Path], None]
        Writes the entry's files into the empty folder it is given.

    Returns
    -------
    content : Entry
        What `read` made of the entry.

    Raises
    ------
    DataError
        If another process holds the entry too long, the folder is not writable, or `build` fails.
    """
    found = _try_read(entry, read)
    if found is not None:
        return found
    with _lock(entry):
        # Another process may have built it while this one waited.
        found = _try_read(entry, read)
        if found is None:
            _build(entry, build)
            found = read(entry)
    return found


def _try_read(entry: Path, read: Callable[[Path], Entry]) -> Entry | None:
    if not entry.is_dir():
        return None
    try:
        return read(entry)
    except DataError:
        raise
    except (OSError, ValueError, KeyError, EOFError):
        return None  # truncated or half deleted: the caller builds it again


def _build(entry: Path, build: Callable[[Path], None]) -> None:
    workspace = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    try:
        content = workspace / "content"
        content.mkdir()
        build(content)
        if entry.exists():
            # Move a damaged entry aside; processes that have it mapped keep their pages.
            entry.rename(workspace / "damaged")
        content.rename(entry)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
