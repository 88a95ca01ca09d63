"""A client's model for any task: encoder, projection for alignment, and the task's head.

Source: FedMuscle (ICLR 2026, arXiv 2602.01626). There the model of user n is its representation
model w^n (`TaskModel.encoder` and `TaskModel.projection`) and its task head phi^n
(`TaskModel.head`). Where the projection sits is not in the paper: here it hangs beside the head,
which reads the encoder's own feature, unless ``in_path`` is set.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from models.base import ModelError, PairShape, SeriesShape, Shape, TableShape
from models.build import build_backbone, modality_of, private_stream, try_backbone
from models.registry import IN_WORDS, list_models, model_info

MODALITY_OF: dict[str, str] = {
    "classification": "image",
    "multilabel": "image",
    "segmentation": "image",
    "text": "text",
    "retrieval": "pair",
    "regression": "table",
}
"""Every task and what its examples are; of classification and regression, what they usually are."""
_OF_NUMBERS = ("classification", "regression")
"""Tasks on tables and series."""

_LENGTH_FLOOR = 1e-6
"""A vector shorter than this is divided by it: all zeros stay zeros instead of becoming NaN."""


class TaskModel(nn.Module):
    """Encoder, projection and head of one client.

    Parameters
    ----------
    name : str
        The name it was built from, as in the run configuration.
    task : str
        One of `MODALITY_OF`.
    encoder : nn.Module
        Examples to raw features ``(N, raw_dim)``; for segmentation it has ``maps`` too.
    raw_dim, feature_dim : int
        Width of the encoder's feature, and d, the width of the representations that are aligned.
    num_classes : int
        Classes of the data, without the background of a segmentation.
    in_path : bool
        Whether the head reads the projection (before it is normalised) instead of the encoder's
        feature. Not for segmentation.

    Attributes
    ----------
    projection : nn.Linear
        ``Linear(raw_dim, feature_dim)``.
    head : nn.Linear or nn.Conv2d
        ``Linear(raw_dim or feature_dim, num_classes)``; for segmentation a 1x1 convolution with
        ``num_classes + 1`` outputs, the background first.
    """

    encoder: Any

    def __init__(
        self,
        name: str,
        task: str,
        encoder: nn.Module,
        *,
        raw_dim: int,
        feature_dim: int,
        num_classes: int,
        in_path: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.task = task
        self.raw_dim = raw_dim
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.in_path = in_path
        self.encoder = encoder
        self.projection = nn.Linear(raw_dim, feature_dim)
        self.head: nn.Module = (
            nn.Conv2d(raw_dim, num_classes + 1, 1)
            if task == "segmentation"
            else nn.Linear(feature_dim if in_path else raw_dim, num_classes)
        )

    def represent(self, x: Tensor) -> Tensor:
        """Examples to representations ``(N, feature_dim)``: rows of length 1, always float32."""
        return F.normalize(self.projection(self.encoder(x)).float(), dim=1, eps=_LENGTH_FLOOR)

    def forward(self, x: Tensor) -> Tensor:
        """Examples to class scores (logits).

        Images ``(N, channels, S, S)`` or token ids ``(N, length)`` to ``(N, num_classes)``; for
        segmentation images to ``(N, num_classes + 1, S, S)``, the background first, enlarged to
        the images' size without aligning corners.
        """
        if self.task == "segmentation":
            coarse = self.head(self.encoder.maps(x))
            return F.interpolate(coarse, x.shape[2:], mode="bilinear", align_corners=False)
        raw = self.encoder(x)
        logits: Tensor = self.head(self.projection(raw) if self.in_path else raw)
        return logits

    def representation_parameters(self) -> list[nn.Parameter]:
        """Return w^n: the trainable parameters of encoder and projection, in a fixed order."""
        parts = (self.encoder, self.projection)
        return [p for part in parts for p in part.parameters() if p.requires_grad]


def build_task_model(
    name: str,
    task: str,
    shape: Shape | PairShape,
    feature_dim: int,
    *,
    in_path: bool = False,
    lora_rank: int = 16,
    seed: int | None = None,
) -> TaskModel:
    """Build a client's model for its task; works in a `skeleton` too.

    Parameters
    ----------
    name : str
        A name for `models.model_info`.
    task : str
        A task of `MODALITY_OF`, alone or as written in the key ``tasks``
        ("multilabel@scenes").
    shape : Shape or PairShape
        What the data asks for; for text see `models.tokens.text_shape_of`. The last gives a
        `models.pair_model.PairModel`.
    feature_dim : int
        Width d of the representations, common to all clients.
    in_path : bool, default False
        See `TaskModel`.
    lora_rank : int, default 16
        For models of the extra ``hf``: the base is frozen, and low-rank adapters of this rank are
        trained on its attention. 0 trains all weights. Other models have no adapters.
    seed : int, optional
        As in `models.build_model`.

    Returns
    -------
    TaskModel
        In training mode.

    Raises
    ------
    ModelError
        Unknown name or task, a model that does not read what the task has, a segmentation with a
        model that has no feature maps or with `in_path`, or a number out of range.
    """
    info = model_info(name)
    kind = re.split(r"[@\[]", task, maxsplit=1)[0]
    _check_fit(name, info.modality, task, kind, shape)
    if kind == "segmentation" and in_path:
        raise ModelError(
            f"model {name!r}, task {task}: the head of a segmentation reads feature maps, not the "
            "projection; set in-path to false"
        )
    for key, value, minimum in (("feature-dim", feature_dim, 1), ("lora-rank", lora_rank, 0)):
        if value < minimum:
            raise ModelError(f"model {name!r}: {key}={value!r}, must be {minimum} or more")
    if isinstance(shape, PairShape):
        from models.pair_model import build_pair_model  # which is a kind of `TaskModel`

        with nullcontext() if seed is None else private_stream(seed):
            return build_pair_model(name, shape, feature_dim, lora_rank)
    with nullcontext() if seed is None else private_stream(seed):
        encoder, raw_dim = build_backbone(info, shape, lora_rank, maps=kind == "segmentation")
        if kind == "segmentation" and not callable(getattr(encoder, "maps", None)):
            raise ModelError(
                f"model {name!r} has no feature maps, which task {task} needs; use seg-small, "
                "seg-large, vit-tiny, vit-small or hf-segformer, or give your backbone a method "
                "maps(x) -> (N, raw_dim, h, w) whose mean over h and w is its forward(x)"
            )
        model = TaskModel(
            name,
            kind,
            encoder,
            raw_dim=raw_dim,
            feature_dim=feature_dim,
            num_classes=shape.num_classes,
            in_path=in_path,
        )
    try_backbone(info, model, encoder, shape, raw_dim, maps=kind == "segmentation")
    return model


def _check_fit(name: str, reads: str, task: str, kind: str, shape: Shape | PairShape) -> None:
    """Refuse a model or a shape of the wrong modality."""
    if kind not in MODALITY_OF:
        raise ModelError(
            f"model {name!r}: task {task!r} is unknown; tasks are {', '.join(MODALITY_OF)}"
        )
    given = "pair" if isinstance(shape, PairShape) else modality_of(shape)
    numbers = kind in _OF_NUMBERS and isinstance(shape, TableShape | SeriesShape)
    wanted = given if numbers else MODALITY_OF[kind]
    has = IN_WORDS[wanted]
    if reads != wanted:
        raise ModelError(
            f"model {name!r} reads {IN_WORDS[reads]}, task {task} has {has}; choose a model for "
            f"{has}, such as {', '.join(_examples(wanted))}"
        )
    if given != wanted:
        raise ModelError(
            f"model {name!r}: task {task} has {has}, but its data gives {shape}; choose a data set "
            f"with {has}"
        )


def _examples(modality: str) -> tuple[str, ...]:
    if modality == "pair":
        return ("cnn5+text-small", "vit-tiny+text-small")
    if modality == "image":
        return ("cnn5", "resnet10-w4", "vit-tiny")
    return list_models("text-*") if modality == "text" else list_models(modality=modality)
