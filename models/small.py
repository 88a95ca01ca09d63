"""The small model that the clients of FedMRL, FML, FedKD and FedAPEN have in common.

Sources: FedMRL (NeurIPS 2024, arXiv 2406.00488) takes CNN-5, in model-homogeneous runs CNN-1, with
the last hidden layer narrowed to its width d1; HtFLlib (FedRE's comparison) takes FedAvgCNN with
its 512 features pooled to d1. Parameter counts for 3x32x32 images are in
tests/unit/test_models_small.py.
"""

from __future__ import annotations

from torch import nn

from models.base import InputShape, ModelError, SplitModel
from models.cnn import ConvNet
from models.mapping import build_mapping

SMALL_MODELS = ("cnn5", "cnn1", "fedavgcnn")
"""Accepted kinds; the first is the default."""

_HIDDEN = {"cnn5": 500, "cnn1": 2000}
_FEDAVGCNN_WIDTH = 512


def build_small_model(kind: str, shape: InputShape, width: int) -> SplitModel:
    """Build the common small model: images to features ``(N, width)`` to logits ``(N, C)``.

    Parameters
    ----------
    kind : {"cnn5", "cnn1", "fedavgcnn"}
        CNN-5 or CNN-1 whose second linear layer is `width` wide; or FedAvgCNN whose features are
        average-pooled to `width`, which adds no parameters.
    shape : InputShape
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
        Unknown kind, width below 1, or images below 16x16.
    """
    if kind not in SMALL_MODELS:
        raise ModelError(f"small model {kind!r} is unknown; use one of {', '.join(SMALL_MODELS)}")
    if width < 1:
        raise ModelError(f"small model {kind!r}: width={width!r}, must be 1 or more")
    pooled = kind == "fedavgcnn"
    raw_dim = _FEDAVGCNN_WIDTH if pooled else width
    channels = (32, 64) if pooled else (16, 32)
    widths = (raw_dim,) if pooled else (_HIDDEN[kind], raw_dim)
    try:
        backbone: nn.Module = ConvNet(shape, channels, widths)
    except ModelError as cause:
        raise ModelError(f"small model {kind!r} cannot be built for {shape}: {cause}") from cause
    return SplitModel(
        f"small {kind}",
        backbone,
        build_mapping("AP", raw_dim, width),
        raw_dim=raw_dim,
        feature_dim=width,
        num_classes=shape.num_classes,
    )
