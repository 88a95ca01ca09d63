"""Folders of pictures as a person sees them: pictures, classes, parts, and what is none."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from data.decode import image_suffixes
from data.spec import DataError

PARTS: dict[str, tuple[str, ...]] = {
    "train": ("train", "training", "trn"),
    "validation": ("validation", "val", "valid", "dev"),
    "test": ("test", "testing", "tst"),
}
"""Folder names of a data set's parts, compared by `name_key`."""
# Unseen signs that change how their neighbours look, in Persian, Hindi or emoji.
_JOINERS = "\u200c\u200d"

# What systems and archivers leave behind.
_LITTER = frozenset(
    ("__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found", "thumbs.db")
)


@dataclass(frozen=True)
class Tree:
    """What lies below a folder.

    Attributes
    ----------
    files : list of Path
        Its pictures, by their path below the folder.
    left_out : Counter
        How many files are none, by what they are.
    folders : list of Path
        All folders that were entered.
    """

    files: list[Path]
    left_out: Counter[str]
    folders: list[Path] = field(repr=False)


def name_key(name: str) -> str:
    """Return what names are compared by: not case, blanks, accents' encoding, unseen signs."""
    seen = "".join(sign for sign in name if sign in _JOINERS or unicodedata.category(sign) != "Cf")
    return " ".join(unicodedata.normalize("NFC", seen).split()).casefold()


def is_litter(name: str) -> bool:
    """Whether a name is hidden, or one that systems and archivers leave behind."""
    return name.startswith(".") or name.casefold() in _LITTER


def subfolders(folder: Path) -> list[Path]:
    """List sub-folders by name, litter left out; none if the folder does not exist.

    Raises
    ------
    DataError
        If the folder cannot be listed.
    """
    if not folder.is_dir():
        return []
    try:
        found = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({error.strerror}).") from error
    return [path for path in found if not is_litter(path.name)]


def walk(top: Path, *, deep: bool = True) -> Tree:
    """Find all pictures below a folder, by suffix; links are followed, each folder once.

    A link that leads nowhere counts as a picture, so that decoding names it.

    Parameters
    ----------
    top : Path
        The folder; one that does not exist is empty.
    deep : bool (default: True)
        Whether sub-folders are entered.

    Raises
    ------
    DataError
        If a folder cannot be listed.
    """
    suffixes, files, left_out = image_suffixes(), [], Counter[str]()
    folders, waiting = [], [top] if top.is_dir() else []
    # A link to a folder above would bring in the other classes.
    entered = {_identity(folder) for folder in top.resolve().parents if waiting}
    while waiting:
        folder = waiting.pop()
        try:
            if _identity(folder) in entered:
                left_out["links to a folder that is read already"] += 1
                continue
            entered.add(_identity(folder))
            folders.append(folder)
            with os.scandir(folder) as scanned:
                entries = list(scanned)
        except OSError as error:
            raise DataError(f"{folder} cannot be listed ({error.strerror}).") from error
        for entry in entries:
            if is_litter(entry.name):
                left_out["hidden"] += 1
            elif entry.is_dir():
                waiting += [Path(entry.path)] * deep
            elif (reason := _no_picture(entry, suffixes)) is not None:
                left_out[reason] += 1
            else:
                files.append(Path(entry.path))
    return Tree(sorted(files, key=lambda path: path.relative_to(top).parts), left_out, folders)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _no_picture(entry: os.DirEntry[str], suffixes: frozenset[str]) -> str | None:
    suffix = os.path.splitext(entry.name)[1].lower()
    if suffix not in suffixes:
        return suffix or "without a suffix"
    dangling = entry.is_symlink() and not os.path.exists(entry.path)
    return None if entry.is_file() or dangling else "no regular file"


def find_parts(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the folders of a data set's parts by `PARTS`, and the names of all others.

    Raises
    ------
    DataError
        If two folders are the same part.
    """
    found: dict[str, Path] = {}
    others = []
    for folder in subfolders(root):
        part = next((part for part, names in PARTS.items() if name_key(folder.name) in names), "")
        if not part:
            others.append(folder.name)
        elif part in found:
            raise DataError(
                f"imagefolder: {found[part]} and {folder} are both a {part} folder; keep one of "
                "them, or move the images of one into the other."
            )
        else:
            found[part] = folder
    return found, others


def counted(left_out: Counter[str]) -> str:
    """List what was left out and how much of it, most first."""
    order = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {reason}" for reason, count in order)


def listed(names: Iterable[str]) -> str:
    """List a few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
