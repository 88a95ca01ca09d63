"""What one client sees: its three splits and what they are splits of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data.dataset import load_images
from data.image_dataset import Dataset, ImageDataset
from data.official import official_rows, purpose_seed, validation_of
from data.partition import ClientIndices, partition_indices
from data.spec import DataError, DataSpec
from data.split import Split
from data.tasks import METRIC_OF, REGRESSION
from data.vectors import Quantity, VectorDataset

_NOTES = 500  # characters: more are not accepted at the registration


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's data.

    Attributes
    ----------
    dataset : Dataset
        The dataset all its splits view.
    train, validation, test : Split
        Its examples; any of them may be empty. `TaskSplit` where a run names tasks.
    task : str (default: "classification")
        A key of `METRIC_OF`.
    classes : tuple of int (default: ())
        Classes of the dataset that this client's task is restricted to, ascending; class
        `classes[i]` has the label i here. Empty for all.
    """

    dataset: Dataset
    train: Split
    validation: Split
    test: Split
    task: str = "classification"
    classes: tuple[int, ...] = ()

    @property
    def metric(self) -> str:
        """Name of the metric that the task is measured by."""
        return METRIC_OF[self.task]

    @property
    def num_classes(self) -> int:
        """Number of classes of the task, whether or not this client has examples of them.

        Of a segmentation without the background; 1 for a regression, whose output is one number.
        """
        if self.task == REGRESSION:
            return 1
        return len(self.classes) or self.dataset.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per label; of a regression the number's name."""
        if self.quantity is not None:
            return (self.quantity.name,)
        names = self.dataset.class_names
        return tuple(names[label] for label in self.classes) if self.classes else names

    @property
    def class_hash(self) -> str:
        """16 hexadecimal digits that stand for the class names in their order.

        Of a regression for what is predicted, and on what scale.
        """
        if self.quantity is not None:
            return self.quantity.digest
        return hashlib.sha256("\n".join(self.class_names).encode()).hexdigest()[:16]

    @property
    def quantity(self) -> Quantity | None:
        """What a regression predicts; None for other tasks."""
        return self._vectors.quantity if self._vectors and self.task == REGRESSION else None

    @property
    def features(self) -> int:
        """Number of columns of a table, or of channels of a series; 0 for others."""
        return self._vectors.features if self._vectors else 0

    @property
    def steps(self) -> int:
        """Steps of a series' windows; 0 for others."""
        return self._vectors.steps if self._vectors else 0

    @property
    def columns_hash(self) -> str:
        """Equal exactly where cells become the same numbers; empty but for tables and series."""
        return self._vectors.columns_hash if self._vectors else ""

    @property
    def _vectors(self) -> VectorDataset | None:
        return self.dataset if isinstance(self.dataset, VectorDataset) else None

    @property
    def channels(self) -> int:
        """Number of image channels, 0 for a task on sentences or numbers."""
        return self._images.channels if self._images is not None else 0

    @property
    def image_size(self) -> int:
        """Side of the square images in pixels, 0 for a task on sentences or numbers."""
        return self._images.image_size if self._images is not None else 0

    @property
    def _images(self) -> ImageDataset | None:
        # Captions of images are sentences too: what counts is what the task reads.
        if self.task == "text" or not isinstance(self.dataset, ImageDataset):
            return None
        return self.dataset

    @property
    def notes(self) -> str:
        """What the data set's own files were read as, on one line of at most 500 characters."""
        text = "; ".join(self.dataset.notes)
        text = "".join(sign if sign.isprintable() else "?" for sign in text)
        return text if len(text) <= _NOTES else text[: _NOTES - 4] + " ..."

    @cached_property
    def data_hash(self) -> str:
        """16 hexadecimal digits over content and rows; the same on every machine."""
        digest = hashlib.sha256(self.dataset.fingerprint.encode())
        if self.task != "classification" or self.classes:  # an ordinary run keeps its hash
            digest.update(f"|{self.task}|{self.classes}|".encode())
        for split in (self.train, self.validation, self.test):
            digest.update(len(split).to_bytes(8, "little"))
            digest.update(split.indices.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


def load_client_data(spec: DataSpec, client: int, num_clients: int) -> ClientData:
    """Open one client's share of a partitioned dataset.

    Parameters
    ----------
    spec : DataSpec
        The description, the same on all clients.
    client : int
        Client id, 0..num_clients-1.
    num_clients : int
        Number of clients K.

    Returns
    -------
    data : ClientData
        The same for the same arguments on every machine.

    Raises
    ------
    DataError
        If the id is out of range, the data is missing or the partition cannot be made.
    """
    if not 0 <= client < num_clients:
        raise DataError(
            f"client-id={client} is out of range: with {num_clients} clients, ids go from 0 to "
            f"{num_clients - 1}."
        )
    dataset = load_images(spec)
    rows = partition_indices(spec, dataset, num_clients)[client]
    train, validation, test = (
        Split(dataset, part) for part in (rows.train, rows.validation, rows.test)
    )
    return ClientData(dataset, train, validation, test)


def load_device_data(spec: DataSpec) -> ClientData:
    """Open a device's own data, which is not shared out among clients.

    The dataset's training part (for `imagefolder`, `train/`) is the device's, its test part the
    device's test set; `validation_fraction` is taken out of the training part at random, unless
    the data set brings a validation part (`val/`).
    `partition` and what belongs to it is not used.

    Parameters
    ----------
    spec : DataSpec
        The description.

    Returns
    -------
    data : ClientData
        All of the device's data.

    Raises
    ------
    DataError
        If the data is missing or unreadable.
    """
    dataset = load_images(spec)
    rows = device_indices(spec, dataset)
    train, validation, test = (
        Split(dataset, part) for part in (rows.train, rows.validation, rows.test)
    )
    return ClientData(dataset, train, validation, test)


def device_indices(spec: DataSpec, dataset: Dataset) -> ClientIndices:
    """Return the rows of a device that has a data set of its own; see `load_device_data`.

    Parameters
    ----------
    spec : DataSpec
        Gives `subset`, `validation_fraction` and the seed.
    dataset : Dataset
        The device's.

    Returns
    -------
    rows : ClientIndices
        All of the data set's rows that `subset` leaves.
    """
    train, held, test = official_rows(spec, dataset)
    generator = np.random.default_rng(purpose_seed(spec, "roles"))
    rest, validation = validation_of(spec, train, held, held, generator)
    return ClientIndices(*(np.sort(part) for part in (rest, validation, test)))
