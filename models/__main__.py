"""Print all models: ``python -m models``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch

from models import (
    GROUPS,
    InputShape,
    SplitModel,
    TaskModel,
    build_model,
    build_task_model,
    count_parameters,
    list_models,
    model_info,
    text_shape_of,
)

CLASSES = 10
SHAPE = InputShape(channels=3, image_size=32, num_classes=CLASSES)


def main() -> None:
    """Print one line a model, with its size for 3x32x32 images or texts, and 10 classes."""
    print(f"{'name':<14} {'parameters':>11} {'raw width':>9}  description ({SHAPE})")
    for name in list_models(modality="image"):
        _line(name, lambda name: build_model(name, SHAPE))
    texts = text_shape_of("text-small", CLASSES)
    print(f"\n{'name':<14} {'parameters':>11} {'raw width':>9}  description ({texts})")
    for name in list_models(modality="text"):
        _line(name, lambda name: build_task_model(name, "text", texts, 512, lora_rank=0))
    print("\ngroups, cycled over client ids:")
    for group, members in GROUPS.items():
        print(f"{group:<14} {', '.join(members)}")


def _line(name: str, build: Callable[[str], SplitModel | TaskModel]) -> None:
    info = model_info(name)
    if info.pretrained and find_spec("transformers") is None:
        print(f"{name:<14} {'':>11} {'':>9}  {info.description} (not installed)")
        return
    with torch.device("meta"):
        model = build(name)
    parameters = count_parameters(model)
    print(f"{name:<14} {parameters:>11,} {model.raw_dim:>9}  {info.description}")


if __name__ == "__main__":
    main()
