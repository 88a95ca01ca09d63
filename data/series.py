"""Windows of time series, one example a window: the data set `series`.

A folder with `train.npz` and, optionally, `test.npz`, or one `.npz` file. Each has an array
(N, channels, steps) of windows and an array (N,) of labels, whatever their names; further arrays
(N,) are used where `label-column` or a natural partition names them. Channels are standardised by
the training windows.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.assemble import assemble
from data.column_plan import REACH
from data.raw import split_without_official_test
from data.schema import FILE, Column, Schema, read_schema
from data.spec import DataError
from data.targets import agree_on, find_labels
from data.train_and_test import find_files
from data.vectors import LARGEST, Vectors


def series(data_dir: Path | None, label_column: str = "", group_column: str = "") -> Vectors:
    """Read windows.

    Parameters
    ----------
    data_dir : Path | None
        A folder or a file, see the module's head; None for `series` in the standard places.
    label_column, group_column : str
        Names of the arrays (N,) of labels and of whose each window is; the first may be empty
        where there is no other array (N,).

    Returns
    -------
    vectors : Vectors
        (N, C, T) inputs.

    Raises
    ------
    DataError
        If a file is missing or unreadable, or an array is not as described; names file and array.
    """
    return _Reading(data_dir, label_column, group_column).vectors()


def series_schema(data_dir: Path, label_column: str = "") -> Schema:
    """Return how a folder's windows are read, whatever its `schema.json`; errors as of `series`."""
    return _Reading(data_dir, label_column, "", anew=True).schema


class _Reading:
    """One reading of the files: windows, labels, training rows, schema."""

    def __init__(
        self, data_dir: Path | None, label_column: str, group_column: str, *, anew: bool = False
    ) -> None:
        train, test = find_files(data_dir, "series")
        self.given = None if anew else read_schema(train.parent)
        self.paths = [path for path in (train, test) if path is not None]
        parts = [_arrays(path) for path in self.paths]
        names = [_windows_of(path, part) for path, part in zip(self.paths, parts, strict=True)]
        windows = [part[name] for part, name in zip(parts, names, strict=True)]
        self.label = _label_of(train, parts[0], names[0], label_column, group_column)
        if len({part.shape[1:] for part in windows}) > 1:
            shapes = " and ".join(str(part.shape[1:]) for part in windows)
            raise DataError(f"series: windows of {train} and {test} have the shapes {shapes}.")
        self.windows = np.concatenate(windows).astype(np.float64)
        self.sizes = [len(part) for part in windows]
        texts = _texts(self.paths, parts, self.label, self.sizes)
        self.owners = _texts(self.paths, parts, group_column, self.sizes) if group_column else None
        agreed = self.given.target if self.given else None
        self.found = find_labels(str(train), self.label, texts, len(windows[0]), agreed)
        self.order, self.train_size = np.arange(len(texts)), len(windows[0])
        if test is None:
            self.order, self.train_size = split_without_official_test(self.found.labels)
        self._check_values()
        self.schema = self.given or self._learn(str(train))
        channels = self.windows.shape[1]
        if len(self.schema.columns) != channels:
            raise DataError(
                f"series: {train} has {channels} channels, its {FILE} {len(self.schema.columns)}."
            )

    def vectors(self) -> Vectors:
        """Return inputs, labels and what is to be said of them."""
        mean, scale = (
            np.array([getattr(column, name) for column in self.schema.columns])[:, None]
            for name in ("mean", "scale")
        )
        standard = np.nan_to_num((self.windows - mean) / scale, nan=0.0)
        inputs = np.clip(standard, -REACH, REACH).astype(np.float32)
        notes = self._said(int((np.abs(standard) > REACH).sum()))
        return assemble(
            inputs, self.found, self.schema, self.order, self.train_size, self.owners, notes
        )

    def _check_values(self) -> None:
        odd = np.isinf(self.windows) | (np.abs(self.windows) > LARGEST)
        if odd.any():
            row, channel, step = map(int, np.argwhere(odd)[0])
            raise DataError(
                f"series: window {row}, channel {channel}, step {step} of {self.paths[0]} is "
                f"{self.windows[row, channel, step]:g}; mend it, or set it to nan for a gap."
            )

    def _learn(self, owner: str) -> Schema:
        rows = self.order[: self.train_size]
        columns = []
        for channel in range(self.windows.shape[1]):
            known = self.windows[rows, channel]
            known = known[~np.isnan(known)]
            if not len(known):
                raise DataError(f"series: channel {channel} of {owner} has no value at all.")
            columns.append(Column.of_numbers(f"channel {channel}", known))
        return Schema(tuple(columns), agree_on(owner, self.label, self.found, rows))

    def _said(self, cut: int) -> list[str]:
        _, channels, steps = self.windows.shape
        what = "a number" if self.found.continuous else f"{len(self.found.class_names)} classes"
        pairs = zip(self.sizes, self.paths, strict=True)
        rows = " and ".join(f"{size:,} in {path.name}" for size, path in pairs)
        notes = [
            f"series: windows of {channels} channels and {steps} steps, label {self.label!r} "
            f"({what}): {rows}"
        ]
        if channels > steps:
            notes.append("there are more channels than steps; are these the other way round?")
        if gaps := int(np.isnan(self.windows).sum()):
            notes.append(f"{gaps:,} values are gaps and count as their channel's mean")
        if cut:
            notes.append(f"{cut:,} values cut off at {REACH:g} deviations")
        return notes


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file; none that would have to be unpickled."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise DataError(
            f"series: {path} cannot be read ({error}); save arrays of numbers or texts with "
            "numpy.savez, none of objects."
        ) from error


def _windows_of(path: Path, arrays: Mapping[str, NDArray[Any]]) -> str:
    names = [name for name, array in arrays.items() if array.ndim == 3]
    if len(names) != 1 or arrays[names[0]].dtype.kind not in "fiub" or not arrays[names[0]].size:
        raise DataError(
            f"series: {path} has {_shapes(arrays)}; expected one array (N, channels, steps) of "
            "numbers, and one (N,) of labels."
        )
    return names[0]


def _label_of(
    path: Path, arrays: Mapping[str, NDArray[Any]], windows: str, wanted: str, group: str
) -> str:
    """Return the name of the array of labels."""
    size = len(arrays[windows])
    flat = [name for name, array in arrays.items() if array.shape == (size,) and name != group]
    if wanted in flat:
        return wanted
    if len(flat) == 1 and not wanted:
        return flat[0]
    raise DataError(
        f"label-column={wanted!r}: {path} has {_shapes(arrays)}; set it to the array ({size},) of "
        f"labels, one of {', '.join(flat) or 'none'}."
    )


def _texts(
    paths: list[Path], parts: list[dict[str, NDArray[Any]]], name: str, sizes: list[int]
) -> list[str]:
    """Return the values of an array (N,) of all files, as texts."""
    texts: list[str] = []
    for path, part, size in zip(paths, parts, sizes, strict=True):
        if name not in part or part[name].shape != (size,):
            raise DataError(
                f"series: {path} has no array {name!r} ({size},); it has {_shapes(part)}."
            )
        texts += [str(value).strip() for value in part[name].tolist()]
        if "" in texts or "nan" in texts:
            raise DataError(f"series: array {name!r} of {path} has gaps; fill or remove them.")
    return texts


def _shapes(arrays: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join(f"{name!r:.40} {array.shape}" for name, array in arrays.items()) or "no array"
