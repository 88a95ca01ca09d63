"""Print all models: ``python -m models``."""

from __future__ import annotations

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
        with torch.device("meta"):
            _line(name, build_model(name, SHAPE))
    texts = text_shape_of("text-small", CLASSES)
    print(f"\n{'name':<14} {'parameters':>11} {'raw width':>9}  description ({texts})")
    for name in list_models(modality="text"):
        with torch.device("meta"):
            _line(name, build_task_model(name, "text", texts, 512))
    print("\ngroups, cycled over client ids:")
    for group, members in GROUPS.items():
        print(f"{group:<14} {', '.join(members)}")


def _line(name: str, model: SplitModel | TaskModel) -> None:
    parameters = count_parameters(model)
    print(f"{name:<14} {parameters:>11,} {model.raw_dim:>9}  {model_info(name).description}")


if __name__ == "__main__":
    main()
