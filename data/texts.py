"""Labelled sentences in a tab-separated file: the data set `tsv`.

One example a line, its label, a tab and its sentence, in UTF-8. A first line `label<TAB>sentence`
(or `text`, in any case) is a header. Classes are the sorted labels of all files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data.annotated import RawTexts
from data.raw import split_without_official_test
from data.spec import DataError
from data.standard_places import standard_places
from data.text_files import read_user_text

_LAYOUT = (
    "a folder with train.tsv and, optionally, test.tsv, or one .tsv file; each line is a label, a "
    "tab and a sentence"
)
_LARGEST = 2 * 2**30  # bytes; sentences are held in memory while the data set is built
_HEADERS = frozenset({("label", "sentence"), ("label", "text")})

Examples = list[tuple[str, str]]


def tsv(data_dir: Path | None) -> RawTexts:
    """Read labelled sentences.

    Parameters
    ----------
    data_dir : Path | None
        A folder with `train.tsv` and, optionally, `test.tsv`, a folder with a sub-folder `tsv`
        like that, or a file. Without test examples a fixed stratified 20 % are the test set. None
        for `tsv` in the standard places.

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
    train = _read(train_file)
    test = _read(test_file) if test_file else []
    names = sorted({label for label, _ in train + test})
    if len(names) < 2:
        raise DataError(
            f"tsv: {train_file} has the one label {names[0]!r}; two classes at least are needed."
        )
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([numbers[label] for label, _ in train + test], dtype=np.int64)
    sentences, train_size = [sentence for _, sentence in train + test], len(train)
    if test_file is None:
        order, train_size = split_without_official_test(labels)
        labels, sentences = labels[order], [sentences[row] for row in order]
    return RawTexts(sentences, labels, train_size, tuple(names))


def file_stamp(data_dir: Path | None) -> str:
    """Summarise the files' state, so that a change gives another summary.

    Raises
    ------
    DataError
        If there is no such file.
    """
    stamps = []
    for path in _find(data_dir):
        status = path.stat() if path else None
        stamps.append(f"{path}:{status.st_size}:{status.st_mtime_ns}" if status else "none")
    return "|".join(stamps)


def _find(data_dir: Path | None) -> tuple[Path, Path | None]:
    if data_dir is not None and data_dir.is_file():
        return data_dir, None
    places = [data_dir] if data_dir is not None else standard_places()
    for place in places:
        # A standard place is searched by name only: any train.tsv there may be another's.
        own = [place] if data_dir is not None else []
        for folder in (*own, place / "tsv"):
            train, test = folder / "train.tsv", folder / "test.tsv"
            if train.is_file():
                return train, test if test.is_file() else None
    looked = ", ".join(str(place) for place in places)
    raise DataError(
        f"tsv: no train.tsv found in {looked} or a sub-folder tsv; set data-dir to {_LAYOUT}. For "
        f"example: mkdir -p {places[-1] / 'tsv'} && cp REVIEWS.tsv {places[-1] / 'tsv/train.tsv'}"
    )


def _read(path: Path) -> Examples:
    examples: Examples = []
    # Only line feeds end a line: splitlines would also cut at form feeds and their like.
    for number, line in enumerate(read_user_text(path, _LARGEST).split("\n"), start=1):
        if not line.strip():
            continue
        label, _, sentence = (part.strip() for part in line.partition("\t"))
        if not label or not sentence:  # a line without a tab has no sentence
            raise DataError(
                f"tsv: {path}, line {number} is {line[:60]!r}; a line is a label, a tab and a "
                "sentence, none of them empty."
            )
        if not examples and number == 1 and (label.lower(), sentence.lower()) in _HEADERS:
            continue
        examples.append((label, sentence))
    if not examples:
        raise DataError(f"tsv: {path} has no example; {_LAYOUT}.")
    return examples
