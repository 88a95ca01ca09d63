"""Tiny ImageNet, in its distributed layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data.decode import decode_images
from data.folder_tree import walk
from data.raw import RawImages
from data.spec import DataError
from data.stamps import files_below, stamp_of
from data.standard_places import find_folder
from data.text_files import read_user_text


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
    folders = sorted(path for path in (root / "train").iterdir() if path.is_dir())
    classes = tuple(folder.name for folder in folders if folder.name[0] != ".")
    train_files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in walk(root / "train" / name / "images").files
    ]
    numbers = {name: label for label, name in enumerate(classes)}
    annotations = root / "val" / "val_annotations.txt"
    test_files: list[tuple[Path, int]] = []
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
    images = decode_images([path for path, _ in files], image_size, target).images
    labels = np.array([label for _, label in files], dtype=np.int64)
    return RawImages(images, labels, len(train_files), classes)


def picture_stamp(data_dir: Path | None) -> str:
    """Summarise pictures and annotations, so that a change of files gives another summary.

    Raises
    ------
    DataError
        If the data is not found.
    """
    root = find_folder("tiny-imagenet", data_dir)
    return stamp_of(root, files_below(root / "train", root / "val"))
