"""The list of models: names, sizes and widths, filtered by a pattern."""

from __future__ import annotations

import fnmatch

from models.base import (
    InputShape,
    ModelError,
    SeriesShape,
    Shape,
    SplitModel,
    TableShape,
    count_parameters,
)
from models.build import build_model
from models.groups import GROUPS
from models.libraries import is_installed
from models.registry import list_models, model_info
from models.skeleton import skeleton
from models.task_model import TaskModel, build_task_model
from models.timm_models import PREFIX, timm_names
from models.tokens import text_shape_of

CLASSES = 10
SHAPE = InputShape(channels=3, image_size=32, num_classes=CLASSES)
_SHAPES: dict[str, Shape | None] = {
    "image": SHAPE,
    "text": None,  # by the tokeniser
    "table": TableShape(features=30, num_classes=CLASSES),
    "series": SeriesShape(channels=9, steps=128, num_classes=CLASSES),
}
LONGEST = 24
"""Matching models of timm that are built for their size; more are listed by name alone."""


def print_models(pattern: str = "") -> int:
    """Print one line a model, with its size for one shape of what it reads, and 10 classes.

    Parameters
    ----------
    pattern : str
        Names that match it are listed, timm's as ``timm/NAME``. Without ``*``, ``?`` or ``[``:
        names that contain it. Empty: all but timm's, and the groups.

    Returns
    -------
    int
        How many models were listed.
    """
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = {kind: list_models(wanted, modality=kind) for kind in _SHAPES}
    others = _of_timm(wanted) if pattern else []
    for kind, names in found.items():
        if names:
            print(_row("name", "parameters", "raw width", f"description ({_shape(kind)})"))
        for name in names:
            print(_line(name))
        if names:
            print()
    if others:
        print(f"{len(others)} of timm:")
        for name in others:
            print(_line(name) if len(others) <= LONGEST else name)
    if not pattern:
        print("groups, cycled over client ids:")
        for group, members in GROUPS.items():
            print(f"{group:<14} {', '.join(members)}")
        print(f"\ntimm: {_about_timm()}")
    return sum(map(len, found.values())) + len(others)


def _of_timm(wanted: str) -> list[str]:
    """Return timm's names that match; all patterns but those for other models need its import."""
    if not is_installed("timm"):
        return []
    return fnmatch.filter(timm_names(), wanted)


def _about_timm() -> str:
    if not is_installed("timm"):
        return "not installed; pip install 'wildflower[timm]'"
    return f"list its models with `wildflower models '{PREFIX}*'`, or any other pattern"


def _row(name: str, parameters: str, width: str, description: str) -> str:
    return f"{name:<14} {parameters:>11} {width:>9}  {description}"


def _line(name: str) -> str:
    info = model_info(name)
    if not info.is_installed:
        missing = f"{info.description} (not installed; pip install 'wildflower[{info.extra}]')"
        return _row(name, "", "", missing)
    try:
        with skeleton():
            model = _skeleton(name)
    except ModelError as error:
        return _row(name, "", "", str(error).rpartition("; ")[2])
    return _row(name, f"{count_parameters(model):,}", str(model.raw_dim), info.description)


def _shape(kind: str) -> Shape:
    return _SHAPES[kind] or text_shape_of("text-small", CLASSES)


def _skeleton(name: str) -> SplitModel | TaskModel:
    kind = model_info(name).modality
    if kind != "text":
        return build_model(name, _shape(kind))
    return build_task_model(name, "text", text_shape_of(name, CLASSES), 512, lora_rank=0)
