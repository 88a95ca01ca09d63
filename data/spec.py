"""What a user says about the data: a validated, hashable description.

Nothing here touches a file, so that a wrong value stops a run before any data is loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DATASETS: tuple[str, ...] = (
    "digits",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "svhn",
    "tiny-imagenet",
    "imagefolder",
    "scenes",
    "voc",
    "coco",
    "tsv",
    "tabular",
    "series",
    "toy",
)
TEXT_DATASETS: tuple[str, ...] = ("tsv",)
"""Those of sentences, which have no images."""
CAPTIONED_DATASETS: tuple[str, ...] = ("scenes", "coco")
"""Those whose images have captions; of COCO where its files of captions are there."""
VECTOR_DATASETS: dict[str, str] = {"tabular": "table", "series": "series", "toy": "table"}
"""Those of numbers, and what a model of theirs reads (`models.MODALITIES`)."""
COLUMN_DATASETS: tuple[str, ...] = ("tabular", "series")
"""Those of numbers that are read from files with named columns."""
HUB_PREFIX = "hf:"
"""What stands before the name of a data set of the Hugging Face hub, or of its layout."""
PARTITIONS: tuple[str, ...] = ("dirichlet", "pathological", "class-shares", "iid")
FLWR_PARTITION = "flwr:"
"""What stands before the name of a partitioner of flwr-datasets."""
NATURAL_PARTITION = "natural:"
"""What stands before the name of a column that says whose a row is."""
TEST_SPLITS: tuple[str, ...] = ("personal", "global")


class DataError(ValueError):
    """Data that is missing, unreadable, or asked for in a way that cannot be satisfied.

    The message names the value and its owner (key, dataset, folder or file) and the remedy.
    """


@dataclass(frozen=True)
class DataSpec:
    """Which images a run uses and how its clients share them.

    Parameters
    ----------
    dataset : str (default: "digits")
        One of `DATASETS`, or "hf:ORG/NAME" for one of the Hugging Face hub, "hf:ORG/NAME@REVISION"
        for a state of it.
    data_dir : str (default: "")
        Folder with the dataset's files. Empty means the standard places, then a download where
        the library offers one; a named folder is never replaced by a download.
    partition : str (default: "dirichlet")
        One of `PARTITIONS`, "flwr:NAME" for a partitioner of flwr-datasets, or "natural:COLUMN"
        for one client a value of that column (`tabular`, `series` and `hf:` only).
    partition_options : str (default: "")
        What that takes: "num_shards_per_partition=2, shuffle=false", values in TOML.
    alpha : float (default: 0.1)
        Dirichlet concentration (`dirichlet` only). Larger is closer to uniform.
    classes_per_client : int (default: 2)
        Classes each client holds (`pathological` and `class-shares` only).
    min_examples : int (default: 10)
        Fewest examples a client may hold (`dirichlet`, or with `size_sigma`). Lowered to N/(2K)
        where that is smaller, N examples over K clients. 0 allows empty clients.
    size_sigma : float (default: 0.0)
        How unlike the clients' sizes are, in any scheme: the deviation of the logarithm of a
        log-normal distribution that they are drawn from, at most 5. 0 leaves sizes to the scheme.
        Above it, `min_examples` holds for every scheme. See `data.sizes`.
    partition_seed : int (default: 0)
        Seed of every draw made here. Separate from the run's seed on purpose, so that repeats of
        a run can share one split.
    test_split : str (default: "personal")
        "personal": each client's test examples come from its own pool; "global": every client is
        tested on the whole official test set.
    validation_fraction : float (default: 0.1)
        Share of a client's training examples set aside for validation, in [0, 1). Not used where
        a data set brings a validation set (`val/` of an `imagefolder`).
    subset : float (default: 1.0)
        Share of the dataset that is used, in (0, 1], class by class, of both official parts.
    image_size : int (default: 0)
        Side in pixels to which images are resized when the cache is built. 0 keeps their own.
    label_column, text_column : str (default: "")
        Which columns of a table (`tsv`, `hf:`; the label also of `tabular` and `series`) hold the
        label and the sentence: names in its header, or numbers from 1 (not of `hf:`). Empty to
        find them.
    image_column, data_config, data_split : str (default: "")
        Of `hf:` only: the column of the images, the configuration, and the splits to train, test
        and validate on, with commas between. Empty to find them.

    Raises
    ------
    DataError
        If a value has the wrong type or is out of range.
    """

    dataset: str = "digits"
    data_dir: str = ""
    partition: str = "dirichlet"
    alpha: float = 0.1
    classes_per_client: int = 2
    min_examples: int = 10
    size_sigma: float = 0.0
    partition_seed: int = 0
    test_split: str = "personal"
    validation_fraction: float = 0.1
    subset: float = 1.0
    image_size: int = 0
    label_column: str = ""
    text_column: str = ""
    partition_options: str = ""
    image_column: str = ""
    data_config: str = ""
    data_split: str = ""

    @property
    def natural_column(self) -> str:
        """The column that a natural partition goes by, else an empty text."""
        natural = self.partition.startswith(NATURAL_PARTITION)
        return self.partition.removeprefix(NATURAL_PARTITION).strip() if natural else ""

    def __post_init__(self) -> None:
        for name, (kind, accepts, accepted) in _RULES.items():
            value = getattr(self, name)
            right_type = isinstance(value, kind) and not isinstance(value, bool)
            if not (right_type and accepts(value)):
                key = name.replace("_", "-")
                raise DataError(f"{key}={value!r} is not accepted; give {accepted}.")


def is_dataset(name: str) -> bool:
    """Whether a value of `dataset` may be one; whether the hub has it is seen later."""
    return name in DATASETS or bool(_HUB_NAME.fullmatch(name))


def is_from_hub(name: str) -> bool:
    """Whether a data set is one of the hub's layout."""
    return name.startswith(HUB_PREFIX)


def file_stem(name: str) -> str:
    """Return a data set's name as it may stand in the name of a file."""
    return re.sub(r"[^\w.-]+", "-", name)


_HUB_NAME = re.compile(rf"{HUB_PREFIX}[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")
EXPECTED_DATASET = f"one of {', '.join(DATASETS)}, or {HUB_PREFIX}ORG/NAME"


def is_partition(name: str) -> bool:
    """Whether a value of `partition` may be one; whether flwr-datasets has it is seen later."""
    flower = name.startswith(FLWR_PARTITION) and name.removeprefix(FLWR_PARTITION).isidentifier()
    natural = name.startswith(NATURAL_PARTITION) and name.strip() != NATURAL_PARTITION
    return name in PARTITIONS or flower or natural


EXPECTED_PARTITION = f"one of {', '.join(PARTITIONS)}, flwr:NAME, or natural:COLUMN"


def _one_of(names: tuple[str, ...]) -> tuple[Any, Callable[[Any], bool], str]:
    return str, lambda value: value in names, "one of " + ", ".join(names)


# Field -> (type, test, what is expected). The comparisons also refuse NaN.
_RULES: dict[str, tuple[Any, Callable[[Any], bool], str]] = {
    "dataset": (str, is_dataset, EXPECTED_DATASET),
    "data_dir": (str, lambda value: True, "a folder's path as a string"),
    "partition": (str, is_partition, EXPECTED_PARTITION),
    "partition_options": (str, lambda value: True, "a text"),
    "alpha": ((int, float), lambda value: 0 < value < math.inf, "a number above 0"),
    "classes_per_client": (int, lambda value: value >= 1, "a whole number from 1"),
    "min_examples": (int, lambda value: value >= 0, "a whole number from 0"),
    "size_sigma": ((int, float), lambda value: 0 <= value <= 5, "a number from 0 to 5"),
    "partition_seed": (int, lambda value: value >= 0, "a whole number from 0"),
    "test_split": _one_of(TEST_SPLITS),
    "validation_fraction": ((int, float), lambda value: 0 <= value < 1, "a number in [0, 1)"),
    "subset": ((int, float), lambda value: 0 < value <= 1, "a number in (0, 1]"),
    "label_column": (str, lambda value: True, "a column's name or number as a string"),
    "text_column": (str, lambda value: True, "a column's name or number as a string"),
    "image_column": (str, lambda value: True, "a column's name as a string"),
    "data_config": (str, lambda value: True, "a configuration's name as a string"),
    "data_split": (str, lambda value: True, "names of splits as a string"),
    "image_size": (int, lambda value: value >= 0, "a whole number of pixels, 0 for unchanged"),
}
