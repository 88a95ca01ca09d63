"""Tasks: what a client learns, on which data; the run-config key ``tasks``.

An entry is ``task@dataset[classes]``: ``multilabel@scenes``, ``classification@fashion-mnist[0-4]``,
``text@tsv``. Without ``@dataset`` the run's ``dataset`` is meant; without ``[classes]`` all classes
of it, else only examples of these labels (``[0-4]``, ``[0+3+7]``, ``[0-2+9]``), which become the
client's label set. ``tasks`` is a group of `TASK_GROUPS` or a comma list, cycled over client ids.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from data.spec import DATASETS, TEXT_DATASETS, VECTOR_DATASETS, DataError, is_dataset

METRIC_OF: dict[str, str] = {
    "classification": "accuracy",
    "multilabel": "map",
    "segmentation": "miou",
    "text": "accuracy",
    "retrieval": "recall",
    "regression": "r2",
}
"""Every task and the metric it is measured by, all at most 1 and higher is better: accuracy, mean
average precision, mean intersection over union, of image-caption pairs R@1, the mean of both
directions, and of numbers R2, the share of their variance that is explained. All are in [0, 1] but
R2, which is below 0 where the mean would have been a better guess."""
UNBOUNDED = ("r2",)
"""Metrics that may be below 0."""
REGRESSION = "regression"

TASKS: tuple[str, ...] = tuple(METRIC_OF)
TASKS_WITH_TEXT = ("text", "retrieval")
"""Those of which an example has a sentence."""

_SETUP_1 = (
    "multilabel@scenes, multilabel@scenes, multilabel@scenes, classification@fashion-mnist[0-4], "
    "classification@fashion-mnist[5-9], classification@fashion-mnist"
)
TASK_GROUPS: dict[str, str] = {
    "setup1": _SETUP_1,
    "setup2": _SETUP_1 + ", segmentation@scenes, segmentation@scenes, text@scenes, text@scenes",
}
"""FedMuscle's two set-ups in their shape, on data that needs no download: six users with three
multi-label tasks and three classifications, and ten with segmentation and text as well."""

_ENTRY = re.compile(
    r"(?P<task>[a-z]+)(?:@(?P<dataset>hf:[\w./@-]+|[a-z0-9-]+))?(?:\[(?P<classes>[0-9+-]+)\])?"
)


@dataclass(frozen=True)
class TaskSpec:
    """One client's task.

    Attributes
    ----------
    task : str
        One of `TASKS`.
    dataset : str
        A name in `data.DATASETS` or of the hub; empty for the run's own.
    classes : tuple of int
        The labels it is restricted to, ascending; empty for all.
    """

    task: str
    dataset: str = ""
    classes: tuple[int, ...] = ()

    @property
    def metric(self) -> str:
        """Name of the metric the task is measured by."""
        return METRIC_OF[self.task]

    def __str__(self) -> str:
        classes = f"[{'+'.join(map(str, self.classes))}]" if self.classes else ""
        return self.task + (f"@{self.dataset}" if self.dataset else "") + classes


def task_name(text: str) -> str:
    """Return what comes before data set and classes: "multilabel" of "multilabel@scenes[0-4]"."""
    return text.partition("@")[0].partition("[")[0]


def parse_task(text: str) -> TaskSpec:
    """Read one entry, see the module's head.

    Raises
    ------
    DataError
        Naming the entry and what is expected.
    """
    found = _ENTRY.fullmatch(text.strip())
    if not found:
        raise DataError(
            f"tasks: {text.strip()!r} is not accepted; write task@dataset[classes], for example "
            "classification@fashion-mnist[0-4]"
        )
    task, dataset = found["task"], found["dataset"] or ""
    if task not in TASKS:
        raise DataError(f"tasks: {task!r} is no task{_nearest(task, TASKS)}")
    if dataset and not is_dataset(dataset):
        raise DataError(f"tasks: {dataset!r} is no data set{_nearest(dataset, DATASETS)}")
    return TaskSpec(task, dataset, _classes(found["classes"] or "", text))


def parse_tasks(text: str) -> tuple[TaskSpec, ...]:
    """Read the value of ``tasks``; none for an empty one, where all clients classify.

    Raises
    ------
    DataError
        Naming the entry and what is expected.
    """
    text = TASK_GROUPS.get(text.strip(), text)
    return tuple(parse_task(entry) for entry in text.split(",")) if text.strip() else ()


def implied_task(dataset: str) -> TaskSpec | None:
    """Return what clients learn on sentences or numbers where a run names no tasks.

    None for images, which are classified without a task.
    """
    if dataset in TEXT_DATASETS:
        return TaskSpec("text", dataset)
    return TaskSpec("classification", dataset) if dataset in VECTOR_DATASETS else None


def assign_task(text: str, client: int) -> TaskSpec | None:
    """Return a client's entry of the value of ``tasks``, or None where all clients classify."""
    tasks = parse_tasks(text)
    return tasks[client % len(tasks)] if tasks else None


def _classes(text: str, entry: str) -> tuple[int, ...]:
    chosen: set[int] = set()
    for part in text.split("+") if text else ():
        first, dash, last = part.partition("-")
        if not first or (dash and not last) or "-" in last or int(last or first) < int(first):
            raise DataError(f"tasks: {entry.strip()!r}: classes are like [0-4], [0+3] or [0-2+9]")
        chosen.update(range(int(first), int(last or first) + 1))
    if len(chosen) == 1:
        raise DataError(f"tasks: {entry.strip()!r}: one class alone is nothing to tell apart")
    return tuple(sorted(chosen))


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
