"""The small pictures that scenes are made of: Fashion-MNIST's, or scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data import sources
from data.stamps import known_files_stamp
from data.standard_places import search_folder

_ITEM = 28


@dataclass(frozen=True, eq=False)
class Items:
    """The pictures that scenes are made of.

    Attributes
    ----------
    images : NDArray[np.uint8]
        (N, 28, 28), bright on black, official training rows first.
    labels : NDArray[np.int64]
        (N,) values 0..C-1.
    train_size : int
        Number of official training rows.
    class_names : tuple[str, ...]
        One name per label.
    source : str
        Data set they are from.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    source: str


def scene_source(data_dir: Path | None) -> str:
    """Return the data set that scenes are made of on this machine.

    "fashion-mnist" where its files are found, "digits" otherwise; nothing is downloaded.
    """
    return "fashion-mnist" if fashion_folder(data_dir) else "digits"


def scene_stamp(data_dir: Path | None) -> str:
    """Summarise what scenes are made of, so that a change of its files gives another summary."""
    stamp = known_files_stamp("fashion-mnist", fashion_folder(data_dir))
    return f"{scene_source(data_dir)}|{stamp}"


def load_items(data_dir: Path | None, scratch: Path) -> Items:
    """Read the pictures that scenes are made of.

    Parameters
    ----------
    data_dir : Path | None
        The user's folder, see `fashion_folder`.
    scratch : Path
        A folder for temporary files.

    Returns
    -------
    items : Items
        All pictures of the source.

    Raises
    ------
    DataError
        If Fashion-MNIST's files are there and damaged.
    """
    source, path = scene_source(data_dir), scratch / "items.npy"
    if source == "fashion-mnist":
        raw = sources.fashion_mnist(fashion_folder(data_dir), 0, path)
    else:
        raw = sources.digits(None, _ITEM, path)
    images = np.array(raw.images[:, 0])
    path.unlink()
    return Items(images, raw.labels, raw.train_size, raw.class_names, source)


def fashion_folder(data_dir: Path | None) -> Path | None:
    """Return where Fashion-MNIST's files lie, in `data_dir` or a standard place; None for nowhere.

    A folder named for another data set of the run must not turn scenes into other ones.
    """
    return search_folder("fashion-mnist", data_dir) or search_folder("fashion-mnist", None)
