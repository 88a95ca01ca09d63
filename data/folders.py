"""A user's own folder of image files: the data set `imagefolder`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.decode import decode_images
from data.folder_tree import (
    PARTS,
    Tree,
    counted,
    find_parts,
    listed,
    name_key,
    subfolders,
    walk,
)
from data.part_notes import part_notes
from data.raw import RawImages, split_without_official_test
from data.spec import DataError
from data.stamps import stamp_of
from data.text_files import read_user_text

_LAYOUT = "train/<class>/<image> and, optionally, test/<class>/<image> and val/<class>/<image>"

Labelled = list[tuple[Path, int]]


@dataclass(frozen=True)
class _Part:
    """One part of the data set: its folder, and what lies in each class folder."""

    folder: Path
    held: dict[str, Tree]


def image_folder(data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    """Read `train/<class>/**` and, if present, `test/<class>/**` and `val/<class>/**`.

    Names of parts and classes are compared without case. Classes are the lines of `classes.txt`
    if the folder has one, else the sorted names of all class folders with an image. Without
    `test/` a fixed stratified 20 % of the training images are the test set. `val/` is the
    validation set, in place of a part of the training images.

    Parameters
    ----------
    data_dir : Path | None
        The folder.
    image_size : int
        Side in pixels to resize to, 0 if the images are already alike and square.
    target : Path
        The .npy file to create.

    Returns
    -------
    raw : RawImages
        Grayscale (one channel) if every image is, else RGB.

    Raises
    ------
    DataError
        If the layout, a class or a file is not as described, or there is one class only.
    """
    root, parts, others = _open(data_dir)
    classes, numbers, notes = _classes(root, parts)
    files = {name: _labelled(part, numbers) for name, part in parts.items()}
    train, validation = files["train"], files.get("validation", [])
    if "test" in files:
        test = files["test"]
    else:
        order, train_size = split_without_official_test(_labels(train))
        test = [train[row] for row in order[train_size:]]
        train = [train[row] for row in order[:train_size]]
    together = train + validation + test
    if not train:
        raise DataError(
            f"imagefolder: {parts['train'].folder} has class folders but no image in them; "
            f"{_left_out(parts)}"
        )
    _refuse_one_class(root, classes)
    pictures = decode_images([path for path, _ in together], image_size, target)
    labels = _labels(together)
    contents = (np.ascontiguousarray(image).tobytes() for image in pictures.images)
    doubts = part_notes(labels, classes, len(train), contents)
    read, left_out = _read_as(parts, len(classes)), _not_read(parts, others)
    said = read, *doubts, *notes, *left_out, *pictures.notes
    trained = len(train) + len(validation)
    return RawImages(pictures.images, labels, trained, classes, said, len(validation))


def folder_stamp(data_dir: Path | None) -> str:
    """Summarise an image folder's state, so that a change of files gives another summary.

    Parameters
    ----------
    data_dir : Path | None
        The folder of an `imagefolder` dataset.

    Returns
    -------
    stamp : str
        A hash of every file's path, size and times, and of the folders' names.

    Raises
    ------
    DataError
        If there is no such folder.
    """
    root, parts, _ = _open(data_dir)
    names, files = hashlib.sha256(), []
    class_list = _class_list(root)
    if class_list is not None:
        names.update(class_list.read_bytes())
    for part in parts.values():
        for tree in part.held.values():
            for folder in sorted(tree.folders):
                names.update(f"{folder.relative_to(root)}\n".encode("utf-8", "surrogateescape"))
            names.update(f"{sorted(tree.left_out.items())}\n".encode("utf-8", "surrogateescape"))
            files += tree.files
    return f"{stamp_of(root, files)}|{names.hexdigest()}"


def _open(data_dir: Path | None) -> tuple[Path, dict[str, _Part], list[str]]:
    """Return the root, its parts, training first, and the names of its other folders."""
    if data_dir is None:
        raise DataError(
            f"dataset=imagefolder needs data-dir: a folder with {_LAYOUT}; "
            "set data-dir=/path/to/it."
        )
    found, others = find_parts(data_dir)
    train = found.get("train", data_dir / "train")
    if not subfolders(train):
        raise DataError(
            f"imagefolder: no class folder in {train}; data-dir={str(data_dir)!r} must hold "
            f"{_LAYOUT}.{_nearby(data_dir, others)} Prepare it with: mkdir -p {train}/CLASS && cp "
            f"IMAGES {train}/CLASS/"
        )
    parts = {
        name: _Part(found[name], {path.name: walk(path) for path in subfolders(found[name])})
        for name in PARTS
        if name in found
    }
    return data_dir, parts, others


def _nearby(data_dir: Path, others: list[str]) -> str:
    """Say where the layout is found instead, one level up or down."""
    for name in others:
        if "train" in find_parts(data_dir / name)[0]:
            return f" There is one in {data_dir / name}: set data-dir to that."
    if name_key(data_dir.name) in PARTS["train"] and others:
        return f" This is the training folder itself: set data-dir={str(data_dir.parent)!r}."
    if others:
        return f" Its folders {listed(others)} may be classes: move them into {data_dir}/train/."
    return ""


def _classes(
    root: Path, parts: dict[str, _Part]
) -> tuple[tuple[str, ...], dict[Path, int], list[str]]:
    """Return class names, the label of each class folder, and what is to be said of them."""
    listed_names = _listed_classes(root)
    folders = [(part, name) for part in parts.values() for name in part.held]
    filled = [(part, name) for part, name in folders if part.held[name].files]
    names: dict[str, str] = {}  # by `name_key`
    chosen: dict[Path, str] = {}
    for part, name in filled:
        if listed_names is not None:
            chosen[part.folder / name] = _in_list(root, name, listed_names)
        else:
            chosen[part.folder / name] = names.setdefault(name_key(name), name)
            _refuse_clash(part, name)
    classes = tuple(sorted(names.values())) if listed_names is None else listed_names
    numbers = {name: number for number, name in enumerate(classes)}
    joined = sorted({f"{path.parent.name}/{path.name} is {name!r}" for path, name in chosen.items()
                     if path.name != name})  # fmt: skip
    notes = [f"names compared without case: {listed(joined)}"] * bool(joined)
    empty = sorted({name for part, name in folders if not part.held[name].files}
                   - {path.name for path in chosen} - set(classes))  # fmt: skip
    notes += [f"empty folders are no classes: {listed(empty)}"] * bool(empty)
    return classes, {path: numbers[name] for path, name in chosen.items()}, notes


def _refuse_clash(part: _Part, name: str) -> None:
    """Refuse two class folders of one part that a person would take for one."""
    for other, tree in part.held.items():
        if other < name and name_key(other) == name_key(name) and tree.files:
            raise DataError(
                f"imagefolder: {part.folder} has both {other!r} and {name!r}, and names are "
                "compared without case. If they are one class, move the images of one into the "
                "other; if they are two, list all classes, one a line, in "
                f"{part.folder.parent / 'classes.txt'}."
            )


def _class_list(root: Path) -> Path | None:
    for path in sorted(root.iterdir()):
        if name_key(path.name) == "classes.txt":
            return path
    return None


def _listed_classes(root: Path) -> tuple[str, ...] | None:
    class_list = _class_list(root)
    if class_list is None:
        return None
    lines = read_user_text(class_list).split("\n")
    names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"imagefolder: {class_list} lists {twice!r} twice; remove one line.")
    return names


def _in_list(root: Path, name: str, names: tuple[str, ...]) -> str:
    """Return the listed class that a folder is meant to be."""
    if name in names:
        return name
    alike = [listed_name for listed_name in names if name_key(listed_name) == name_key(name)]
    if len(alike) == 1:
        return alike[0]
    problem = f"could be {' or '.join(map(repr, alike))}" if alike else "is not one"
    raise DataError(
        f"imagefolder: class folder {name!r} in {root} {problem} of the {len(names)} lines of "
        f"{_class_list(root)}; add the line on every device alike, or rename the folder."
    )


def _refuse_one_class(root: Path, classes: tuple[str, ...]) -> None:
    if len(classes) < 2:
        raise DataError(
            f"imagefolder: {root} has the one class {classes[0]!r}, and a model of one class is "
            "always right. Add the others' folders; on a device that holds one class of several, "
            f"list all of them, one a line, in {root / 'classes.txt'}."
        )


def _labelled(part: _Part, numbers: dict[Path, int]) -> Labelled:
    """Return a part's files, by label and then by path."""
    folders = ((numbers.get(part.folder / name), tree) for name, tree in part.held.items())
    known = [(label, tree) for label, tree in folders if label is not None]
    return [
        (path, label) for label, tree in sorted(known, key=lambda pair: pair[0])
        for path in tree.files
    ]  # fmt: skip


def _read_as(parts: dict[str, _Part], classes: int) -> str:
    roles = {"train": "", "validation": " as validation set", "test": " as test set"}
    counts = [
        f"{sum(len(tree.files) for tree in part.held.values()):,} in {part.folder.name}/"
        f"{roles[name]}"
        for name, part in parts.items()
    ]
    text = f"imagefolder: images of {classes} classes, {', '.join(counts)}"
    return text if "test" in parts else text + ", a fifth of train held out as test set"


def _not_read(parts: dict[str, _Part], others: list[str]) -> Iterator[str]:
    """Yield what was left out: files that are no images, and folders."""
    left_out = _all_left_out(parts)
    if left_out:
        yield f"files left out: {counted(left_out)}"
    if others:
        yield f"folders left out: {listed(others)}"


def _all_left_out(parts: dict[str, _Part]) -> Counter[str]:
    left_out: Counter[str] = Counter()
    for part in parts.values():
        for tree in part.held.values():
            left_out += tree.left_out
        beside = walk(part.folder, deep=False)
        images = {"images beside the class folders": len(beside.files)}
        left_out += beside.left_out + Counter(images)
    return left_out


def _left_out(parts: dict[str, _Part]) -> str:
    left_out = _all_left_out(parts)
    if not left_out:
        return "put some there: JPEG, PNG, TIFF, WebP or another format that Pillow reads."
    return (
        f"there are {counted(left_out)}. Convert them to JPEG or PNG, or move them into the class "
        "folders."
    )


def _labels(files: Labelled) -> NDArray[np.int64]:
    return np.array([label for _, label in files], dtype=np.int64)
