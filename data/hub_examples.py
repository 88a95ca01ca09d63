"""Images and sentences of an `hf:` data set, with their classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from data.annotated import RawTexts
from data.decode import Encoded, decode_images
from data.hub import Parts, folders_of, open_parts
from data.hub_columns import HubColumns, choose_columns
from data.hub_labels import Labels, read_labels
from data.outlines import inside
from data.part_notes import part_notes
from data.raw import RawImages, split_without_official_test
from data.spec import DataError, DataSpec

Rows = NDArray[np.int64]

_ORDER: tuple[str, ...] = ("train", "validation", "test")


def hub_examples(spec: DataSpec, data_dir: Path | None, target: Path) -> RawImages | RawTexts:
    """Read a data set of the hub's layout; see `data.hub` and `data.hub_columns`.

    Without test rows a fixed stratified fifth of the training rows are the test set.

    Parameters
    ----------
    spec : DataSpec
        The description.
    data_dir : Path | None
        A copy on this machine; None to ask the hub.
    target : Path
        The .npy file to create, where examples are images; tables are written beside its folder.

    Raises
    ------
    DataError
        If the data set cannot be read, or its columns, labels or images are not as described.
    """
    scratch = target.parent.parent / "tables"
    found, unused = open_parts(spec, data_dir, scratch)
    columns = choose_columns(spec, dict(found["train"].features))
    parts: Parts = {part: found[part] for part in _ORDER if part in found}
    _check(spec, parts, columns)
    labels = read_labels(spec, columns.label, parts)
    order, trained = _order(parts, labels.numbers)
    numbers, validated = labels.numbers[order], len(parts.get("validation", ()))
    said = _said(spec, columns, labels, parts, unused)
    owners = _owners(spec, parts, order)

    def notes(contents: Iterable[bytes]) -> tuple[str, ...]:
        return *said, *part_notes(numbers, labels.names, trained, contents), *labels.notes

    size = trained + validated
    if columns.images:
        folders = folders_of(data_dir, scratch)
        files = _Files(spec.dataset, columns.example, parts, folders).in_order(order)
        pictures = decode_images(files, spec.image_size, target)
        about = notes(np.ascontiguousarray(image).tobytes() for image in pictures.images)
        about = *about, *pictures.notes
        return RawImages(pictures.images, numbers, size, labels.names, about, validated, owners)
    texts = _sentences(spec, columns.example, parts)
    texts = [texts[row] for row in order]
    about = notes(text.encode() for text in texts)
    return RawTexts(texts, numbers, size, labels.names, about, validated, owners)


def _check(spec: DataSpec, parts: Parts, columns: HubColumns) -> None:
    """Refuse parts that are empty or unlike the training part."""
    wanted = [columns.example, columns.label, *([spec.natural_column] * bool(spec.natural_column))]
    first = parts["train"].features
    for part, table in parts.items():
        if not len(table):
            raise DataError(f"{spec.dataset}: its {part} part has no row.")
        for name in wanted:
            if name not in table.features:
                raise DataError(
                    f"{spec.dataset}: its {part} part has no column {name!r}; it has "
                    f"{', '.join(table.features)}."
                )
            if table.features[name] != first[name]:
                raise DataError(
                    f"{spec.dataset}: column {name!r} is {first[name]!s:.80} in its training part "
                    f"and {table.features[name]!s:.80} in its {part} part; name parts that are "
                    "alike in data-split."
                )


def _order(parts: Parts, labels: Rows) -> tuple[Rows, int]:
    """Return the order of all rows, training, validation, test, and the number of the first."""
    rows, trained = np.arange(len(labels)), len(parts["train"])
    if "test" in parts:
        return rows, trained
    order, kept = split_without_official_test(labels[:trained])
    return np.concatenate([order[:kept], rows[trained:], order[kept:]]), kept


def _owners(spec: DataSpec, parts: Parts, order: Rows) -> Rows | None:
    """Return whose each row is, for a natural partition."""
    if not (name := spec.natural_column):
        return None
    values = [str(value) for table in parts.values() for value in table[name][:]]
    return np.unique(np.array(values), return_inverse=True)[1][order].astype(np.int64)


def _sentences(spec: DataSpec, column: str, parts: Parts) -> list[str]:
    texts: list[str] = []
    for part, table in parts.items():
        for row, text in enumerate(table[column][:], start=1):
            if not text or not text.strip():
                raise DataError(
                    f"{spec.dataset}: row {row} of its {part} part has no sentence in column "
                    f"{column!r}; remove such rows."
                )
            texts.append(text)
    return texts


@dataclass(frozen=True)
class _Files(Sequence[Encoded]):
    """A column of stored images, each read when it is asked for: all may exceed memory.

    Attributes
    ----------
    name, column : str
        Of the data set, and of the images in it.
    parts : dict
        The tables.
    folders : tuple of Path
        Below which named files lie; where names start, in the first.
    places : sequence of (str, int)
        Part and row of each image.
    """

    name: str
    column: str
    parts: Parts = field(repr=False)
    folders: tuple[Path, ...]
    places: Sequence[tuple[str, int]] = ()

    def in_order(self, order: Rows) -> _Files:
        """Return all images in an order of the rows of all parts, one after the other."""
        places = [(part, row) for part, table in self.parts.items() for row in range(len(table))]
        return _Files(
            self.name, self.column, self.parts, self.folders, [places[row] for row in order]
        )

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> _Files: ...
    def __getitem__(self, index: int | slice) -> Encoded | _Files:
        if isinstance(index, slice):
            return _Files(self.name, self.column, self.parts, self.folders, self.places[index])
        part, row = self.places[index]
        owner = f"{self.name}, row {row + 1} of its {part} part"
        value = self.parts[part].data.column(self.column)[row].as_py()
        return Encoded(owner, *_stored(value, self.folders, owner))


def _stored(value: Any, folders: tuple[Path, ...], owner: str) -> tuple[bytes | None, Path | None]:
    """Return the bytes or the path of one cell; a path must not lead out of the data set."""
    content = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(content, bytes):
        return content, None
    name = value.get("path") if isinstance(value, dict) else value
    if not isinstance(name, str) or not name:
        raise DataError(f"{owner} has no image; remove such rows.")
    for folder in folders:
        if Path(name).is_relative_to(folder):  # as `datasets` names the files that it found itself
            return None, inside(folder, str(Path(name).relative_to(folder)), owner)
    return None, inside(folders[0], name, owner)


def _said(
    spec: DataSpec, columns: HubColumns, labels: Labels, parts: Parts, unused: list[str]
) -> list[str]:
    what = "images" if columns.images else "sentences"
    rows = ", ".join(f"{len(table):,} in {part}" for part, table in parts.items())
    held_out = "" if "test" in parts else ", a fifth of training held out as test set"
    said = [
        f"{spec.dataset}: {what} in column {columns.example!r}, label {columns.label!r} of "
        f"{len(labels.names)} classes, {rows}{held_out}"
    ]
    return said + [f"splits not used: {', '.join(unused)}"] * bool(unused)
