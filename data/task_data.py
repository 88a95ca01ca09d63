"""A client's data for its task: which rows it has, and what inputs and targets they make.

Clients whose entries name one data set share its rows among them, each row once; where a data set
has masks for some pictures only (Pascal VOC), the segmentation clients share those and the other
clients the rest. A restriction to classes then leaves a client only examples of these classes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.annotated import IGNORE, AnnotatedDataset, TextDataset
from data.client_data import ClientData, device_indices
from data.dataset import load_dataset
from data.entries import AnyDataset
from data.image_dataset import Dataset, ImageDataset
from data.partition import ClientIndices, partition_indices
from data.spec import DataError, DataSpec
from data.split import PairSplit, TaskSplit, Values, mask_presence
from data.tasks import REGRESSION, TASKS_WITH_TEXT, TaskSpec
from data.vectors import VectorDataset

Tokenise = Callable[[Sequence[str]], NDArray[np.int64]]
"""Sentences to token ids (N, L), 0 = padding."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Part(Dataset):
    """Some rows of a data set as a data set of its own, for `partition_indices`."""

    name: str
    labels: NDArray[np.int64]
    train_size: int
    class_names: tuple[str, ...]
    fingerprint: str


def load_task_data(
    spec: DataSpec,
    entries: Sequence[TaskSpec],
    client: int,
    num_clients: int,
    tokenise: Tokenise | None,
) -> ClientData:
    """Open one client's share of the data set that its task is on.

    Parameters
    ----------
    spec : DataSpec
        The description, the same on all clients; an entry may name another data set.
    entries : Sequence[TaskSpec]
        The run's tasks, cycled over client ids.
    client : int
        Client id, 0..num_clients-1.
    num_clients : int
        Number of clients.
    tokenise : Tokenise | None
        Turns sentences into token ids; needed by a text task only.

    Returns
    -------
    data : ClientData
        Its splits are `TaskSplit`. The same for the same arguments on every machine.

    Raises
    ------
    DataError
        If an id is out of range, data is missing, or the task cannot be had on this data; names
        the client, its entry and the remedy.
    """
    if not 0 <= client < num_clients or not entries:
        raise DataError(
            f"client-id={client} is out of range: with {num_clients} clients and {len(entries)} "
            f"tasks, ids go from 0 to {num_clients - 1}."
        )
    dataset, rows = client_rows(spec, entries, client, num_clients)
    entry = entries[client % len(entries)]
    owner = f"client {client} ({entry})"
    return _client_data(dataset, entry, rows, tokenise, owner, _spec_of(spec, entry))


def client_rows(
    spec: DataSpec, entries: Sequence[TaskSpec], client: int, num_clients: int
) -> tuple[AnyDataset, ClientIndices]:
    """Return a client's data set and its share of it, before a restriction to classes."""
    entry = entries[client % len(entries)]
    own = _spec_of(spec, entry)
    dataset = load_dataset(own)
    owner = f"client {client} ({entry})"
    _check_task(dataset, entry, owner)
    chosen = [entries[other % len(entries)] for other in range(num_clients)]
    group = [
        other
        for other, task in enumerate(chosen)
        if (task.dataset or spec.dataset) == own.dataset
        and _uses_masked(dataset, task) == _uses_masked(dataset, entry)
    ]
    masked = _uses_masked(dataset, entry)
    # Where no client segments, the pictures with masks are for the others too.
    alone = not any(_uses_masked(dataset, task) for task in chosen)
    pool = None if masked is None or alone else _rows_where(dataset, masked)
    return dataset, _share(own, dataset, pool, group, client, owner)


def load_device_task_data(spec: DataSpec, entry: TaskSpec, tokenise: Tokenise | None) -> ClientData:
    """Open a device's own data for its task; the counterpart of `load_device_data`.

    Parameters
    ----------
    spec : DataSpec
        The description.
    entry : TaskSpec
        The device's task.
    tokenise : Tokenise | None
        As in `load_task_data`.

    Returns
    -------
    data : ClientData
        All of the device's data that its task can use.

    Raises
    ------
    DataError
        If the data is missing or unreadable, or the task cannot be had on it.
    """
    own = _spec_of(spec, entry)
    dataset = load_dataset(own)
    owner = f"this device ({entry})"
    _check_task(dataset, entry, owner)
    rows = device_indices(own, dataset)
    if _uses_masked(dataset, entry):
        rows = _keep(rows, _masked(dataset))
    return _client_data(dataset, entry, rows, tokenise, owner, own)


def _spec_of(spec: DataSpec, entry: TaskSpec) -> DataSpec:
    return dataclasses.replace(spec, dataset=entry.dataset or spec.dataset)


def _check_task(dataset: Dataset, entry: TaskSpec, owner: str) -> None:
    """Refuse a task that the data set has no targets or inputs for."""
    name = dataset.name
    remedy = ""
    if isinstance(dataset, VectorDataset):
        remedy = _unfit_for_numbers(dataset, entry)
    elif entry.task == REGRESSION:
        remedy = f"{name} has no numbers to predict; write regression@tabular or regression@series"
    elif isinstance(dataset, TextDataset):
        if entry.task != "text":
            remedy = f"{name} has sentences and no images; write text@{name}"
    elif entry.task in TASKS_WITH_TEXT and getattr(dataset, "captions", None) is None:
        other = "text@tsv" if entry.task == "text" else "retrieval@coco"
        remedy = f"{name} has no captions here; write {entry.task}@scenes or {other}"
    elif entry.task == "multilabel" and getattr(dataset, "presence", None) is None:
        remedy = f"{name} has one label an image; write classification@{name} or multilabel@scenes"
    elif entry.task == "segmentation" and getattr(dataset, "masks", None) is None:
        remedy = f"{name} has no masks here; write segmentation@scenes"
    if remedy:
        raise DataError(f"{owner}: no {entry.task} on {name}: {remedy}.")
    if entry.classes and entry.classes[-1] >= dataset.num_classes:
        raise DataError(
            f"{owner}: class {entry.classes[-1]} is out of range: {name} has "
            f"{dataset.num_classes} classes, 0 to {dataset.num_classes - 1}."
        )


def _unfit_for_numbers(dataset: VectorDataset, entry: TaskSpec) -> str:
    """Return why a task cannot be had on a table or a series, and the remedy; else nothing."""
    if entry.task == REGRESSION:
        if dataset.targets is None:
            return "the label is a word, or the same everywhere; set label-column to a number"
        return "a regression has no classes to choose from" if entry.classes else ""
    if entry.task != "classification":
        return f"it has numbers; write classification@{dataset.name} or regression@{dataset.name}"
    if dataset.continuous:
        return (
            f"the label is a number with many different values; set tasks='regression@"
            f"{dataset.name}', or write classes as words"
        )
    return ""


def _masked(dataset: Dataset) -> NDArray[np.bool_] | None:
    return dataset.masked if isinstance(dataset, AnnotatedDataset) else None


def _uses_masked(dataset: Dataset, task: TaskSpec) -> bool | None:
    """Whether a task takes the pictures with masks, where only some have one; else None."""
    return None if _masked(dataset) is None else task.task == "segmentation"


def _rows_where(dataset: Dataset, masked: bool) -> Rows:
    flags = _masked(dataset)
    assert flags is not None, "asked only where some pictures have masks"
    return np.flatnonzero(flags == masked)


def _share(
    spec: DataSpec,
    dataset: Dataset,
    pool: Rows | None,
    group: list[int],
    client: int,
    owner: str,
) -> ClientIndices:
    """Partition a data set, or the rows `pool` of it, over the group."""
    part: Dataset = dataset
    if pool is not None:
        part = _Part(
            dataset.name,
            dataset.labels[pool],
            int(np.count_nonzero(pool < dataset.train_size)),
            dataset.class_names,
            hashlib.sha256(dataset.fingerprint.encode() + pool.tobytes()).hexdigest()[:16],
        )
    try:
        rows = partition_indices(spec, part, len(group))[group.index(client)]
    except DataError as error:
        raise DataError(
            f"{owner}: {dataset.name} is shared by the {len(group)} clients {group}: {error}"
        ) from error
    if pool is None:
        return rows
    return ClientIndices(*(pool[one] for one in (rows.train, rows.validation, rows.test)))


def _keep(rows: ClientIndices, flags: NDArray[np.bool_] | None) -> ClientIndices:
    if flags is None:
        return rows
    return ClientIndices(*(r[flags[r]] for r in (rows.train, rows.validation, rows.test)))


def _client_data(
    dataset: AnyDataset,
    entry: TaskSpec,
    rows: ClientIndices,
    tokenise: Tokenise | None,
    owner: str,
    spec: DataSpec,
) -> ClientData:
    kept = _keep(rows, _restriction(dataset, entry, rows)) if entry.classes else rows
    if entry.classes and not len(kept.train):
        raise DataError(
            f"{owner}: none of the client's {len(rows.train)} training examples of "
            f"{dataset.name} is of its classes (partition={spec.partition}); set partition=iid, a "
            "larger alpha or subset, or other classes."
        )
    targets, lookup = _targets(dataset, entry)
    kind: type[TaskSplit]
    inputs, kind = _inputs(dataset, entry, kept, tokenise, owner), TaskSplit
    if entry.task == "retrieval":
        assert isinstance(dataset, ImageDataset), "checked by _check_task"
        targets, inputs, kind = inputs, dataset.images, PairSplit
    train, validation, test = (
        kind(dataset, one, inputs, targets, lookup)
        for one in (kept.train, kept.validation, kept.test)
    )
    return ClientData(dataset, train, validation, test, entry.task, entry.classes)


def _restriction(dataset: Dataset, entry: TaskSpec, rows: ClientIndices) -> NDArray[np.bool_]:
    """Tell which rows have an example of the entry's classes; False for others' rows."""
    flags = np.zeros(len(dataset), dtype=np.bool_)
    mine = np.concatenate([rows.train, rows.validation, rows.test])
    classes = list(entry.classes)
    if isinstance(dataset, AnnotatedDataset) and entry.task == "segmentation":
        assert dataset.masks is not None, "checked by _check_task"
        flags[mine] = mask_presence(dataset.masks, mine)[:, classes].any(axis=1)
    elif isinstance(dataset, AnnotatedDataset) and entry.task == "multilabel":
        assert dataset.presence is not None, "checked by _check_task"
        flags[mine] = dataset.presence[mine][:, classes].any(axis=1)
    else:
        flags[mine] = np.isin(dataset.labels[mine], classes)
    return flags


def _targets(dataset: AnyDataset, entry: TaskSpec) -> tuple[Values, NDArray[np.uint8] | None]:
    """Return targets by row, and for masks what each value becomes."""
    classes = np.array(entry.classes, dtype=np.int64)
    if isinstance(dataset, VectorDataset) and entry.task == REGRESSION:
        assert dataset.targets is not None, "checked by _check_task"
        return dataset.targets, None
    if isinstance(dataset, AnnotatedDataset) and entry.task == "segmentation":
        assert dataset.masks is not None, "checked by _check_task"
        lookup = np.zeros(256, dtype=np.uint8)  # what is none of its classes is background
        lookup[1 + classes], lookup[IGNORE] = 1 + np.arange(len(classes)), IGNORE
        return dataset.masks, lookup if len(classes) else None
    if isinstance(dataset, AnnotatedDataset) and entry.task == "multilabel":
        assert dataset.presence is not None, "checked by _check_task"
        return dataset.presence[:, classes] if len(classes) else dataset.presence, None
    if not len(classes):
        return dataset.labels, None
    renumbered = np.full(dataset.num_classes, -1, dtype=np.int64)
    renumbered[classes] = np.arange(len(classes))
    return renumbered[dataset.labels], None  # the rows that are kept have none of the -1


def _inputs(
    dataset: AnyDataset,
    entry: TaskSpec,
    rows: ClientIndices,
    tokenise: Tokenise | None,
    owner: str,
) -> Values:
    """Return images or numbers, or the tokens (N, L) of the client's rows, zero in all others."""
    if isinstance(dataset, VectorDataset):
        return dataset.inputs
    if isinstance(dataset, ImageDataset) and entry.task not in TASKS_WITH_TEXT:
        return dataset.images
    if tokenise is None:
        raise DataError(
            f"{owner}: a {entry.task} task needs a text model, which turns words to numbers."
        )
    sentences = dataset.sentences if isinstance(dataset, TextDataset) else _captions(dataset)
    mine = np.concatenate([rows.train, rows.validation, rows.test])
    tokens = tokenise([sentences[int(row)] for row in mine])
    if tokens.ndim != 2 or len(tokens) != len(mine) or tokens.dtype != np.int64:
        raise DataError(
            f"{owner}: the tokeniser gave {tokens.dtype} {tokens.shape} for {len(mine)} "
            "sentences; expected are int64 token ids (N, L)."
        )
    inputs = np.zeros((len(dataset), tokens.shape[1]), dtype=np.int64)
    inputs[mine] = tokens
    return inputs


def _captions(dataset: ImageDataset) -> Sequence[str]:
    assert isinstance(dataset, AnnotatedDataset)
    assert dataset.captions is not None, "checked by _check_task"
    return dataset.captions
