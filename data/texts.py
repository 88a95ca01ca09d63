"""Labelled sentences in a tab-separated file: the data set `tsv`.

One example a line, its label, a tab and its sentence; a first line that names columns is a header
and decides which is which (`data.tables`). Classes are the sorted labels of all files; labels that
differ only in case, or as 1 and 1.0 do, are one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from data.annotated import RawTexts
from data.columns import Columns
from data.labels import FEW, MISSING, MOST_CLASSES, class_names_of, label_key
from data.part_notes import part_notes
from data.raw import split_without_official_test
from data.spec import DataError
from data.stamps import stamp_of
from data.standard_places import standard_places
from data.tables import LAYOUT, Table, read_table


def tsv(data_dir: Path | None, label_column: str = "", text_column: str = "") -> RawTexts:
    """Read labelled sentences.

    Parameters
    ----------
    data_dir : Path | None
        A folder with `train.tsv` and, optionally, `test.tsv`, a folder with a sub-folder `tsv`
        like that, or a file. Without test examples a fixed stratified 20 % are the test set. None
        for `tsv` in the standard places.
    label_column, text_column : str
        As in `DataSpec`.

    Returns
    -------
    raw : RawTexts
        Labels sorted as texts.

    Raises
    ------
    DataError
        If there is no such file, or a line is not as described; names file and line.
    """
    train_file, test_file = _find(data_dir)
    train = read_table(train_file, label_column, text_column)
    tables = [train]
    if test_file is not None:
        like = _without_names(train.columns)
        tables.append(read_table(test_file, label_column, text_column, like))
    _refuse_unique(train)
    examples = [example for table in tables for example in table.examples]
    names, merged = class_names_of([label for label, _ in examples])
    if len(set(names.values())) < 2:
        only = next(iter(names.values()))
        raise DataError(
            f"tsv: {train_file} has the one label {only!r}; two classes at least are needed."
        )
    classes = tuple(sorted(set(names.values())))
    if len(classes) > MOST_CLASSES:
        raise DataError(
            f"tsv: {train_file} has {len(classes):,} different labels, at most {MOST_CLASSES:,} "
            "are accepted; set label-column to the column that holds the classes."
        )
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[names[label_key(label)]] for label, _ in examples], dtype=np.int64)
    sentences, train_size = [sentence for _, sentence in examples], len(train.examples)
    if test_file is None:
        order, train_size = split_without_official_test(labels)
        labels, sentences = labels[order], [sentences[row] for row in order]
    contents = (sentence.encode() for sentence in sentences)
    notes = (
        _said(tables, len(classes)),
        *_columns_said(train.columns),
        *part_notes(labels, classes, train_size, contents),
        *_missing_said([label for label, _ in examples]),
        *merged,
    )
    return RawTexts(sentences, labels, train_size, classes, notes)


def file_stamp(data_dir: Path | None) -> str:
    """Summarise the files' state, so that a change gives another summary.

    Raises
    ------
    DataError
        If there is no such file.
    """
    files = [path for path in _find(data_dir) if path]
    return stamp_of(files[0].parent, files)


def _find(data_dir: Path | None) -> tuple[Path, Path | None]:
    # Also a pipe or a device: the reader says why it takes none.
    if data_dir is not None and data_dir.exists() and not data_dir.is_dir():
        return data_dir, None
    places = [data_dir] if data_dir is not None else standard_places()
    beside = ""
    for place in places:
        # A standard place is searched by name only: any train.tsv there may be another's.
        own = [place] if data_dir is not None else []
        for folder in (*own, place / "tsv"):
            train, test = folder / "train.tsv", folder / "test.tsv"
            if train.exists():
                return train, test if test.exists() else None
            if (folder / "train.csv").exists():
                beside = (
                    f" There is {folder / 'train.csv'}: save it as tab-separated train.tsv, or set "
                    "dataset=hf:NAME, tasks=text and data-dir to the file."
                )
    looked = ", ".join(str(place) for place in places)
    raise DataError(
        f"tsv: no train.tsv found in {looked} or a sub-folder tsv; set data-dir to {LAYOUT}."
        f"{beside} For example: mkdir -p {places[-1] / 'tsv'} && cp REVIEWS.tsv "
        f"{places[-1] / 'tsv/train.tsv'}"
    )


def _without_names(columns: Columns) -> Columns:
    """Return the layout for a second file that has no header of its own."""
    return Columns(columns.label, columns.text, columns.count, (), columns.chosen)


def _missing_said(labels: list[str]) -> list[str]:
    """Say which classes may be what a program wrote for a missing label."""
    counts = Counter(label for label in labels if label.casefold() in MISSING)
    shown = ", ".join(f"{label!r} ({count:,} lines)" for label, count in sorted(counts.items()))
    return [f"taken as classes: {shown}; if these labels are missing, remove the lines"] * bool(
        counts
    )


def _refuse_unique(table: Table) -> None:
    """Refuse a file in which most labels are unique: another column, or no labels at all."""
    labels = [label for label, _ in table.examples]
    different = len({label_key(label) for label in labels})
    if table.columns.chosen or different < FEW or 2 * different <= len(labels):
        return
    texts = len({text for _, text in table.examples})
    label, text = table.columns.label + 1, table.columns.text + 1
    shown = "; ".join(f"{a!r:.40} is the label of {b!r:.40}" for a, b in table.examples[:2])
    raise DataError(
        f"tsv: {table.path} has {different} different labels in {len(labels)} lines, so most are "
        f"unique: {shown}. Column {text} has {texts} different values; if the label is there, set "
        f"label-column='{text}' text-column='{label}'. If this is right, set "
        f"label-column='{label}' text-column='{text}'."
    )


def _said(tables: list[Table], classes: int) -> str:
    parts = [f"{len(table.examples):,} in {table.path.name}" for table in tables]
    held_out = "" if len(tables) > 1 else ", a fifth of them held out as test set"
    return f"tsv: sentences of {classes} classes, {' and '.join(parts)}{held_out}"


def _columns_said(columns: Columns) -> list[str]:
    if not columns.names and not columns.chosen:
        return []
    names = columns.names or tuple(str(number + 1) for number in range(columns.count))
    used = {columns.label, columns.text}
    unused = [name for place, name in enumerate(names) if place not in used]
    rest = f", not used: {', '.join(map(repr, unused))}" if unused else ""
    header = "the first line is a header: " if columns.names else ""
    return [f"{header}label {names[columns.label]!r}, text {names[columns.text]!r}{rest}"]
