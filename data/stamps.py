"""Stamps of files: equal only while nothing of them has changed, so that no cache outlives them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from data.cache import cache_root
from data.spec import DataError
from data.standard_places import KNOWN_FILES


def stamp_of(root: Path, files: Iterable[Path]) -> str:
    """Summarise files by path below a root, size and times of change, each file by itself.

    A sum over all files would not see a picture that was moved to another class, or files that an
    archive brought back with their old times. A moved or replaced file has another time of its
    entry (`st_ctime`) even where size and time of its content are kept. Reading is not needed.

    Parameters
    ----------
    root : Path
        What paths are relative to.
    files : iterable of Path
        In any order. One that is missing, or a link that leads nowhere, counts by its name.

    Returns
    -------
    stamp : str
        A hash in hexadecimal digits.
    """
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(os.fsencode(os.path.relpath(path, root)) + b"\0")
        try:
            status = path.stat()
        except OSError:
            digest.update(b"missing\0")
            continue
        about = f"{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"
        digest.update(about.encode() + b"\0")
    return digest.hexdigest()


def files_below(*folders: Path) -> Iterator[Path]:
    """List all files below folders; a folder that does not exist has none.

    Raises
    ------
    DataError
        If a folder cannot be listed.
    """
    for top in folders:
        if not top.is_dir():
            continue
        for folder, _, names in os.walk(top, onerror=_refuse, followlinks=False):
            yield from (Path(folder, name) for name in names)


def known_files_stamp(name: str, folder: Path | None) -> str:
    """Summarise the files of a well-known data set; empty where they are downloaded or will be.

    What lies in the cache's own folder of downloads is ours, and may be being written just now.
    """
    if folder is None or folder.is_relative_to(cache_root()):
        return ""
    paths = [folder / file for file in KNOWN_FILES[name].files]
    return stamp_of(folder, [form for path in paths for form in (path, Path(f"{path}.gz"))])


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be listed ({error.strerror}).") from error
