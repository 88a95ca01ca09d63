"""What the clients of a setting compute: their distinct training steps, and how many of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from data.tasks import TaskSpec, assign_task
from deploy.compare.plan import PlannedRun
from models import InputShape
from models.base import PairShape, TextShape
from models.build import build_model, proven
from models.groups import assign_model
from models.skeleton import run_blank, skeleton
from models.task_model import MODALITY_OF, build_task_model
from models.tokens import text_shape_of
from strategies.base.options import ConfigError
from strategies.base.run_config import RunConfig

CLASSIFICATION = "classification"
POOLED = 0.75
"""Share of a client's own pool that it trains on, with personal test splits."""


@dataclasses.dataclass(frozen=True)
class Images:
    """A data set as published: training and test examples, and the shape of one."""

    train: int
    test: int
    shape: InputShape


DATA: Mapping[str, Images] = {
    "digits": Images(1_437, 360, InputShape(1, 32, 10)),
    "fashion-mnist": Images(60_000, 10_000, InputShape(1, 28, 10)),
    "cifar10": Images(50_000, 10_000, InputShape(3, 32, 10)),
    "cifar100": Images(50_000, 10_000, InputShape(3, 32, 100)),
    "svhn": Images(73_257, 26_032, InputShape(3, 32, 10)),
    "tiny-imagenet": Images(100_000, 10_000, InputShape(3, 64, 200)),
    "scenes": Images(12_000, 2_000, InputShape(1, 64, 10)),
    "voc": Images(5_717, 5_823, InputShape(3, 64, 20)),
    "coco": Images(118_287, 5_000, InputShape(3, 64, 80)),
}
"""By name; of VOC the 2012 part, of COCO the 2017 one, both at the size that is the default."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of local training: which model, on what, how many examples.

    Attributes
    ----------
    model, task : str
        Names for `models.build_task_model`.
    shape : InputShape, TextShape or PairShape
        Of the data.
    batch : int
        Examples.
    """

    model: str
    task: str
    shape: InputShape | TextShape | PairShape
    batch: int

    def __str__(self) -> str:
        return f"{self.model}, {self.task}, {self.shape}, batch {self.batch}"

    def build(self, width: int) -> torch.nn.Module:
        """Build the client's model; under ``torch.device("meta")`` nothing is allocated."""
        with proven():
            if self.task == CLASSIFICATION and not isinstance(self.shape, PairShape):
                return build_model(self.model, self.shape, width)
            return build_task_model(self.model, self.task, self.shape, width, lora_rank=0)

    def inputs(self, device: torch.device) -> torch.Tensor:
        """Return a batch of blank examples."""
        if isinstance(self.shape, InputShape):
            side = self.shape.image_size
            return torch.zeros(self.batch, self.shape.channels, side, side, device=device)
        length = self.shape.length if isinstance(self.shape, TextShape) else _length(self.shape)
        return torch.ones(self.batch, length, dtype=torch.long, device=device)

    def outputs(self, width: int) -> tuple[int, ...]:
        """Return the shape that the model's scores must have; of pairs, both representations."""
        if self.task == "retrieval":
            return self.batch, 2 * width
        if self.task == "segmentation":
            assert isinstance(self.shape, InputShape)
            side = self.shape.image_size
            return self.batch, self.shape.num_classes + 1, side, side
        return self.batch, self.shape.num_classes


def _length(pair: PairShape) -> int:
    """Return the length of a row of `models.PairModel`'s input."""
    return pair.text.length + pair.image.channels * pair.image.image_size**2


def check_shapes(step: Step, width: int) -> None:
    """Build a step's model without weights and compare the shape of its scores.

    Raises
    ------
    ConfigError
        If it is not what the task asks for.
    """
    small = dataclasses.replace(step, batch=2)
    with skeleton():
        model = small.build(width).eval()
    scores = run_blank(model, small.inputs)
    if tuple(scores.shape) != small.outputs(width):
        wanted = small.outputs(width)
        raise ConfigError(f"{step}: scores of shape {tuple(scores.shape)}, not {wanted}")


def steps_a_round(planned: PlannedRun, clients: int) -> dict[Step, float]:
    """Return how many steps of each kind all clients together take in an average round.

    Every client is taken to hold an equal share of the training examples of its data set.
    """
    run = planned.run
    entries = [assign_task(run.tasks, client) for client in range(clients)]
    found: dict[Step, float] = {}
    for client, entry in enumerate(entries):
        task, dataset = (entry.task, entry.dataset or run.dataset) if entry else (
            CLASSIFICATION, run.dataset,
        )  # fmt: skip
        sharing = sum(_dataset(other, run) == dataset for other in entries)
        examples = trained_on(dataset, run) / sharing
        model = assign_model(run.models, client)
        batch = max(1, min(run.batch_size, math.floor(examples)))
        step = Step(model, task, shape_of(dataset, task, model, run), batch)
        steps = run.local_epochs * math.ceil(examples / run.batch_size) * run.sample_fraction
        found[step] = found.get(step, 0.0) + steps
    return found


def _dataset(entry: TaskSpec | None, run: RunConfig) -> str:
    return (entry.dataset if entry else "") or run.dataset


def trained_on(dataset: str, run: RunConfig) -> float:
    """Return how many examples of a data set all its clients train on."""
    known = DATA[dataset]
    pool = (known.train + known.test) * POOLED if run.test_split == "personal" else known.train
    return pool * run.subset * (1 - run.validation_fraction)


def shape_of(
    dataset: str, task: str, model: str, run: RunConfig
) -> InputShape | TextShape | PairShape:
    """Return the shape of a data set's examples for a task."""
    shape, reads = DATA[dataset].shape, MODALITY_OF[task]
    if reads == "text":
        return text_shape_of(model, shape.num_classes)
    images = dataclasses.replace(shape, image_size=run.image_size or shape.image_size)
    text = text_shape_of(model, shape.num_classes) if reads == "pair" else None
    return images if text is None else PairShape(images, text)
