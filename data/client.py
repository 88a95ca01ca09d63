"""What one client sees: its three splits and what they are splits of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data.dataset import ImageDataset, load_dataset
from data.partition import official_rows, partition_indices, purpose_seed, take_out
from data.spec import DataError, DataSpec
from data.split import Split


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's data.

    Attributes
    ----------
    dataset : ImageDataset
        The dataset all its splits view.
    train, validation, test : Split
        Its examples; any of them may be empty.
    """

    dataset: ImageDataset
    train: Split
    validation: Split
    test: Split

    @property
    def num_classes(self) -> int:
        """Number of classes of the dataset, not of this client."""
        return self.dataset.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per label."""
        return self.dataset.class_names

    @property
    def channels(self) -> int:
        """Number of image channels."""
        return self.dataset.channels

    @property
    def image_size(self) -> int:
        """Side of the square images in pixels."""
        return self.dataset.image_size

    @cached_property
    def data_hash(self) -> str:
        """16 hexadecimal digits over content and rows; the same on every machine."""
        digest = hashlib.sha256(self.dataset.fingerprint.encode())
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
    dataset = load_dataset(spec)
    rows = partition_indices(spec, dataset, num_clients)[client]
    splits = (Split(dataset, part) for part in (rows.train, rows.validation, rows.test))
    return ClientData(dataset, *splits)


def load_device_data(spec: DataSpec) -> ClientData:
    """Open a device's own data, which is not shared out among clients.

    The dataset's training part (for `imagefolder`, `train/`) is the device's, its test part the
    device's test set; `validation_fraction` is taken out of the training part at random.
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
    dataset = load_dataset(spec)
    train, test = official_rows(spec, dataset)
    generator = np.random.default_rng(purpose_seed(spec, "roles"))
    rest, validation = take_out(train, spec.validation_fraction, generator)
    splits = (Split(dataset, np.sort(part)) for part in (rest, validation, test))
    return ClientData(dataset, *splits)
