"""Architectures by name, all with the same cut: backbone, mapping, head.

>>> from models import InputShape, build_model
>>> model = build_model("cnn1", InputShape(channels=3, image_size=32, num_classes=10))
>>> model.raw_dim, model.feature_dim, model.head
(500, 512, Linear(in_features=512, out_features=10, bias=True))

``python -m models`` prints all names. Your own architecture needs a function that takes an
`InputShape` and returns an ``nn.Module`` with the attribute ``raw_dim``, the width of the flat
feature vector ``(N, raw_dim)`` that it returns. It has no last layer: the head is added for you.

.. code-block:: python

    # my_app/nets.py
    class TinyNet(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.raw_dim = 128
            self.layers = nn.Sequential(
                nn.Conv2d(channels, 128, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
            )

        def forward(self, x):
            return self.layers(x)


    def tiny(shape: InputShape) -> nn.Module:
        return TinyNet(shape.channels)

Then write its address where a name is expected: ``models="my_app.nets:tiny, resnet18"``.
The rules, which `tests/contract/test_models.py` checks for every registered model:

- building it and running it depend on shapes only, not on values: a client builds its model on
  torch's ``meta`` device before it loads the weights;
- the forward pass uses every parameter;
- buffers are persistent, so that the ``state_dict`` is the whole model;
- subclass `SplittableBackbone` (``stem``, ``body``) to let FedIN cut the model, `ChannelBackbone`
  to let parts of its width be cut;
- a method ``maps``, images to ``(N, raw_dim, h, w)`` whose mean over h and w is ``forward``, lets
  the model segment.

Clients with tasks of their own (the key ``tasks``) get a `TaskModel` from `build_task_model`
instead: the same backbones, a projection to the width of the shared representations, and the
task's head. Text models read token ids; register yours with ``modality="text"``, its function then
takes a `TextShape`; ``modality="table"`` goes with a `TableShape`, ``"series"`` with a
`SeriesShape`.

To contribute a model with a name of its own, put ``@register_model("tiny", description="...")``
above the function in a file of this package and import that file below; the contract test then
covers it with no new test code. ``adapter=False`` keeps the raw width: no mapping is added, and a
method that needs another width refuses the client at the registration.
"""

from models import (  # noqa: F401  (they register)
    cnn,
    hf,
    lite,
    mlp,
    resnet,
    segmentation,
    series,
    text,
    timm_models,
    vision,
    vit,
)
from models.base import (
    Backbone,
    ChannelBackbone,
    InputShape,
    ModelError,
    PairShape,
    SeriesShape,
    Shape,
    SplitModel,
    Splittable,
    SplittableBackbone,
    TableShape,
    TextShape,
    count_parameters,
)
from models.build import build_model
from models.groups import FORMER_GROUPS, GROUPS, assign_model, current_group, resolve_models
from models.mapping import MAPPINGS, build_mapping
from models.pair_model import PairModel, recalls
from models.registry import ModelInfo, list_models, model_info, register_model
from models.task_model import TaskModel, build_task_model
from models.tokens import (
    Tokenise,
    hash_tokens,
    text_shape_of,
    tokeniser_fingerprint,
    tokeniser_of,
)

__all__ = [
    "FORMER_GROUPS",
    "GROUPS",
    "MAPPINGS",
    "Backbone",
    "ChannelBackbone",
    "InputShape",
    "ModelError",
    "ModelInfo",
    "PairModel",
    "PairShape",
    "SeriesShape",
    "Shape",
    "SplitModel",
    "Splittable",
    "SplittableBackbone",
    "TableShape",
    "TaskModel",
    "TextShape",
    "Tokenise",
    "assign_model",
    "build_mapping",
    "build_model",
    "build_task_model",
    "count_parameters",
    "current_group",
    "hash_tokens",
    "list_models",
    "model_info",
    "recalls",
    "register_model",
    "resolve_models",
    "text_shape_of",
    "tokeniser_fingerprint",
    "tokeniser_of",
]
