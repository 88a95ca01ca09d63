"""Which files tables and windows are read from: one to train on and perhaps one to test on."""

from __future__ import annotations

from pathlib import Path

from data.schema import FILE
from data.spec import DataError
from data.stamps import stamp_of
from data.standard_places import standard_places
from data.table_files import SUFFIXES

_SHOWN = 6
_SUFFIXES = {"tabular": SUFFIXES, "series": (".npz",)}
"""By data set."""


def find_files(data_dir: Path | None, name: str) -> tuple[Path, Path | None]:
    """Return the training file and the test file, if there is one.

    Raises
    ------
    DataError
        If there is none, or it is not clear which is meant.
    """
    suffixes = _SUFFIXES[name]
    if data_dir is not None and data_dir.is_file():
        return data_dir, None
    places = [data_dir] if data_dir is not None else standard_places()
    for place in places:
        for folder in (place, place / name) if data_dir is not None else (place / name,):
            files = sorted(p for p in _listed(folder) if p.suffix.lower() in suffixes)
            train = [p for p in files if p.stem.lower() in ("train", "training")]
            test = [p for p in files if p.stem.lower() in ("test", "testing")]
            if len(train) > 1 or len(test) > 1 or (files and not train and len(files) > 1):
                names = ", ".join(p.name for p in files[:_SHOWN])
                raise DataError(
                    f"{name}: {folder} has {names}; name the training file train{suffixes[0]} and "
                    f"the test file test{suffixes[0]}, or set data-dir to one file."
                )
            if train or (files and not test):
                return (train or files)[0], test[0] if test else None
    looked = ", ".join(str(place) for place in places)
    raise DataError(
        f"{name}: no train{suffixes[0]} found in {looked} or a sub-folder {name}; set data-dir to "
        f"a folder with train{suffixes[0]} and, optionally, test{suffixes[0]}, or to one file "
        f"({', '.join(suffixes)})."
    )


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")]


def files_stamp(data_dir: Path | None, name: str) -> str:
    """Summarise the files' state and their schema's, so that a change gives another summary."""
    files = [path for path in find_files(data_dir, name) if path]
    return stamp_of(files[0].parent, [*files, files[0].parent / FILE])
