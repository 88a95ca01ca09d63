"""Datasets by name, partitioners, and each client's splits.

>>> from data import DataSpec, load_client_data
>>> client = load_client_data(DataSpec(dataset="digits", alpha=0.5), client=0, num_clients=5)
>>> images, labels = next(client.train.batches(batch_size=8))
>>> tuple(images.shape), images.dtype
((8, 1, 32, 32), torch.uint8)

Images stay uint8 and memory-mapped, so that all worker processes share one copy; `normalise`
turns a batch into floats on its device. Importing this package is cheap: torch, torchvision,
scikit-learn and flwr-datasets are imported where they are first used.
"""

from data import dataset as _dataset
from data import partition as _partition
from data import public as _public
from data.annotated import AnnotatedDataset, TextDataset
from data.client_data import ClientData, load_client_data, load_device_data
from data.dataset import ImageDataset, load_dataset
from data.partition import ClientIndices, partition_indices
from data.public import PublicData, load_public
from data.shares import Shares
from data.spec import (
    CAPTIONED_DATASETS,
    DATASETS,
    PARTITIONS,
    TEST_SPLITS,
    TEXT_DATASETS,
    VECTOR_DATASETS,
    DataError,
    DataSpec,
)
from data.split import Split, TaskSplit, normalise
from data.task_data import Tokenise, load_device_task_data, load_task_data
from data.tasks import METRIC_OF, TASK_GROUPS, TaskSpec, assign_task, parse_task, parse_tasks
from data.vectors import VectorDataset


def clear_memory() -> None:
    """Forget the datasets and splits this process has open; cache files stay."""
    _dataset.clear_memory()
    _partition.clear_memory()
    _public.clear_memory()


__all__ = [
    "CAPTIONED_DATASETS",
    "DATASETS",
    "METRIC_OF",
    "PARTITIONS",
    "TASK_GROUPS",
    "TEST_SPLITS",
    "TEXT_DATASETS",
    "VECTOR_DATASETS",
    "AnnotatedDataset",
    "ClientData",
    "ClientIndices",
    "DataError",
    "DataSpec",
    "ImageDataset",
    "PublicData",
    "Shares",
    "Split",
    "TaskSpec",
    "TaskSplit",
    "TextDataset",
    "Tokenise",
    "VectorDataset",
    "assign_task",
    "clear_memory",
    "load_client_data",
    "load_dataset",
    "load_device_data",
    "load_device_task_data",
    "load_public",
    "load_task_data",
    "normalise",
    "parse_task",
    "parse_tasks",
    "partition_indices",
]
