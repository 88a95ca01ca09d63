"""Print all models: ``python -m models``."""

from __future__ import annotations

import torch

from models import GROUPS, InputShape, build_model, count_parameters, list_models, model_info


def main() -> None:
    """Print one line a model, with its size for 3x32x32 images and 10 classes."""
    shape = InputShape(channels=3, image_size=32, num_classes=10)
    print(f"{'name':<14} {'parameters':>11} {'raw width':>9}  description ({shape})")
    for name in list_models():
        with torch.device("meta"):
            model = build_model(name, shape)
        parameters = count_parameters(model)
        print(f"{name:<14} {parameters:>11,} {model.raw_dim:>9}  {model_info(name).description}")
    print("\ngroups, cycled over client ids:")
    for group, members in GROUPS.items():
        print(f"{group:<14} {', '.join(members)}")


if __name__ == "__main__":
    main()
