"""Datasets kept as folders of image files: a user's own, and Tiny ImageNet."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.decode import decode_images
from data.raw import RawImages, split_without_official_test
from data.spec import DataError
from data.standard_places import find_folder
from data.text_files import read_user_text

_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)

Labelled = list[tuple[Path, int]]


def image_folder(data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    """Read `train/<class>/*` and, if present, `test/<class>/*`.

    Classes are the lines of `classes.txt` if the folder has one, else the sorted names of all
    class folders. Without `test/` a fixed stratified 20 % of the images are the test set.

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
        If the layout, a class or a file is not as described.
    """
    train, test = _part_folders(data_dir)
    classes = _class_names(train.parent, [train, test])
    train_files = _labelled_files(train, classes)
    if test.is_dir():
        test_files = _labelled_files(test, classes)
        files, train_size = train_files + test_files, len(train_files)
    else:
        order, train_size = split_without_official_test(_labels(train_files))
        files = [train_files[row] for row in order]
    if not files:
        raise DataError(
            f"imagefolder: {train.parent} has class folders but no image in them; accepted "
            f"suffixes are {', '.join(sorted(_SUFFIXES))}."
        )
    images = decode_images([path for path, _ in files], image_size, target)
    return RawImages(images, _labels(files), train_size, classes)


def folder_stamp(data_dir: Path | None) -> str:
    """Summarise an image folder's state, so that a change of files gives another summary.

    Parameters
    ----------
    data_dir : Path | None
        The folder of an `imagefolder` dataset.

    Returns
    -------
    stamp : str
        File count, bytes, newest change time and a hash of the class names.

    Raises
    ------
    DataError
        If there is no such folder.
    """
    train, test = _part_folders(data_dir)
    count, size, newest = 0, 0, 0
    names = hashlib.sha256()
    class_list = train.parent / "classes.txt"
    if class_list.is_file():
        names.update(class_list.read_bytes())
    for part in (train, test):
        for folder in _subfolders(part):
            names.update(f"{part.name}/{folder.name}\n".encode())
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_file():
                        continue  # dangling links included: decoding names them
                    status = entry.stat()
                    count, size = count + 1, size + status.st_size
                    newest = max(newest, status.st_mtime_ns)
    return f"{count}|{size}|{newest}|{names.hexdigest()}"


def tiny_imagenet(data_dir: Path | None, image_size: int, target: Path) -> RawImages:
    """Read Tiny ImageNet (200 classes, 64x64 RGB) in its distributed layout.

    The official validation images serve as the test set: the labels of the official test set are
    not public.

    Parameters
    ----------
    data_dir : Path | None
        Folder that is, or holds, `tiny-imagenet-200`; None for the standard places.
    image_size : int
        Side in pixels to resize to, 0 for 64.
    target : Path
        The .npy file to create.

    Returns
    -------
    raw : RawImages
        Classes are the sorted WordNet ids.

    Raises
    ------
    DataError
        If the files are not found or an annotation is not as described.
    """
    root = find_folder("tiny-imagenet", data_dir)
    classes = tuple(folder.name for folder in _subfolders(root / "train"))
    train_files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in _image_files(root / "train" / name / "images")
    ]
    numbers = {name: label for label, name in enumerate(classes)}
    annotations = root / "val" / "val_annotations.txt"
    test_files: Labelled = []
    for line in read_user_text(annotations).splitlines():
        file_name, _, rest = line.partition("\t")
        wordnet_id = rest.partition("\t")[0]
        if wordnet_id not in numbers:
            raise DataError(
                f"tiny-imagenet: {annotations} gives {file_name} the class {wordnet_id!r}, which "
                f"has no folder in {root / 'train'}; unpack the archive again."
            )
        test_files.append((root / "val" / "images" / file_name, numbers[wordnet_id]))
    files = train_files + test_files
    # A few of its images are stored as grayscale; the dataset as a whole is RGB.
    images = decode_images([path for path, _ in files], image_size, target)
    return RawImages(images, _labels(files), len(train_files), classes)


def _part_folders(data_dir: Path | None) -> tuple[Path, Path]:
    layout = "train/<class>/<image> and, optionally, test/<class>/<image>"
    if data_dir is None:
        raise DataError(
            f"dataset=imagefolder needs data-dir: a folder with {layout}; set data-dir=/path/to/it."
        )
    train = data_dir / "train"
    if not _subfolders(train):
        raise DataError(
            f"imagefolder: no class folder in {train}; data-dir={str(data_dir)!r} must hold "
            f"{layout}. Prepare it with: mkdir -p {train}/CLASS && cp IMAGES {train}/CLASS/"
        )
    return train, data_dir / "test"


def _subfolders(folder: Path) -> list[Path]:
    """List non-hidden sub-folders by name; none if the folder does not exist."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _class_names(data_dir: Path, parts: list[Path]) -> tuple[str, ...]:
    held = sorted({folder.name for part in parts for folder in _subfolders(part)})
    class_list = data_dir / "classes.txt"
    if not class_list.is_file():
        return tuple(held)
    lines = read_user_text(class_list).split("\n")
    names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"imagefolder: {class_list} lists {twice!r} twice; remove one line.")
    unknown = [name for name in held if name not in names]
    if unknown:
        raise DataError(
            f"imagefolder: class folder {unknown[0]!r} in {data_dir} is not one of the "
            f"{len(names)} lines of {class_list}; add the line on every device alike, or rename "
            "the folder."
        )
    return names


def _image_files(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if entry.name[0] != "." and os.path.splitext(entry.name)[1].lower() in _SUFFIXES
        ]
    return [folder / name for name in sorted(names)]


def _labelled_files(part: Path, classes: tuple[str, ...]) -> Labelled:
    return [
        (path, label)
        for label, name in enumerate(classes)
        if (part / name).is_dir()
        for path in _image_files(part / name)
    ]


def _labels(files: Labelled) -> NDArray[np.int64]:
    return np.array([label for _, label in files], dtype=np.int64)
