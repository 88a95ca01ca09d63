"""The small model that the clients of FedMRL, FML, FedKD and FedAPEN have in common.

Sources: FedMRL (NeurIPS 2024, arXiv 2406.00488) takes CNN-5, in model-homogeneous runs CNN-1, with
the last hidden layer narrowed to its width d1; HtFLlib (FedRE's comparison) takes FedAvgCNN with
its 512 features pooled to d1. Parameter counts for 3x32x32 images are in
tests/unit/test_models_small.py.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from models.base import Backbone, InputShape, ModelError, Shape, SplitModel
from models.build import modality_of
from models.cnn import ConvNet
from models.mapping import build_mapping
from models.registry import IN_WORDS, model_info

SMALL_MODELS = ("cnn5", "cnn1", "fedavgcnn")
"""Accepted kinds for images; the first is the default."""
SMALL_MODEL_OF = {"text": "text-small", "table": "mlp-small", "series": "cnn1d-small"}
"""The kind for what are no images, by what it reads."""
ALL_SMALL_MODELS = (*SMALL_MODELS, *SMALL_MODEL_OF.values())

_HIDDEN = {"cnn5": 500, "cnn1": 2000}
_FEDAVGCNN_WIDTH = 512


class Narrowed(Backbone):
    """A registered model, then a linear layer and a ReLU: examples to ``(N, width)``.

    Parameters
    ----------
    encoder : Backbone
        Examples to raw features.
    width : int
        Of what it returns.
    """

    def __init__(self, encoder: Backbone, width: int) -> None:
        super().__init__(raw_dim=width)
        self.encoder = encoder
        self.narrow = nn.Linear(encoder.raw_dim, width)

    def forward(self, x: Tensor) -> Tensor:
        """Examples to raw features ``(N, width)``."""
        features: Tensor = F.relu(self.narrow(self.encoder(x)))
        return features


def build_small_model(kind: str, shape: Shape, width: int) -> SplitModel:
    """Build the common small model: examples to features ``(N, width)`` to logits ``(N, C)``.

    Parameters
    ----------
    kind : {"cnn5", "cnn1", "fedavgcnn", "text-small", "mlp-small", "cnn1d-small"}
        For images CNN-5 or CNN-1 whose second linear layer is `width` wide; or FedAvgCNN whose
        features are average-pooled to `width`, which adds no parameters. For all else the model
        of that name with a linear layer to `width` and a ReLU behind it, as CNN-5 ends.
    shape : Shape
        Of the data, equal on all clients.
    width : int
        d1, the width of the features. The head is ``Linear(width, C)``.

    Returns
    -------
    SplitModel
        Freshly initialised from torch's global stream. It has no BatchNorm.

    Raises
    ------
    ModelError
        Unknown kind, one that reads something else, width below 1, or images below 16x16.
    """
    if kind not in ALL_SMALL_MODELS:
        known = ", ".join(ALL_SMALL_MODELS)
        raise ModelError(f"small model {kind!r} is unknown; use one of {known}")
    if width < 1:
        raise ModelError(f"small model {kind!r}: width={width!r}, must be 1 or more")
    reads = model_info(kind).modality
    if reads != modality_of(shape):
        raise ModelError(f"small model {kind!r} reads {IN_WORDS[reads]}, the data has {shape}")
    if not isinstance(shape, InputShape):
        narrowed = Narrowed(model_info(kind).factory(shape), width)  # type: ignore[arg-type]
        return _wrapped(kind, narrowed, width, width, shape.num_classes)
    pooled = kind == "fedavgcnn"
    raw_dim = _FEDAVGCNN_WIDTH if pooled else width
    channels = (32, 64) if pooled else (16, 32)
    widths = (raw_dim,) if pooled else (_HIDDEN[kind], raw_dim)
    try:
        backbone: nn.Module = ConvNet(shape, channels, widths)
    except ModelError as cause:
        raise ModelError(f"small model {kind!r} cannot be built for {shape}: {cause}") from cause
    return _wrapped(kind, backbone, raw_dim, width, shape.num_classes)


def _wrapped(
    kind: str, backbone: nn.Module, raw_dim: int, width: int, num_classes: int
) -> SplitModel:
    return SplitModel(
        f"small {kind}",
        backbone,
        build_mapping("AP", raw_dim, width),
        raw_dim=raw_dim,
        feature_dim=width,
        num_classes=num_classes,
    )
