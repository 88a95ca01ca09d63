"""Small convolutional networks: FedAvgCNN and CNN-1 to CNN-5.

Sources: FedAvgCNN as in HtFLlib (FedRE's experiments); CNN-1 to CNN-5 of FedMRL (NeurIPS 2024,
arXiv 2406.00488) and FedGH. Exact parameter counts are in tests/unit/test_models_counts.py.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from models.base import ChannelBackbone, InputShape, ModelError
from models.registry import register_model

_KERNEL = 5
_STEM = 3  # layers of `conv` up to the first pooling
_SMALLEST_IMAGE = 16  # leaves one pixel after two rounds of 5x5 convolution and halving


class ConvNet(ChannelBackbone):
    """Two 5x5 convolutions without padding, each with ReLU and 2x2 max pooling, then linear layers.

    FedIN's cut is after the first convolution's pooling: CNN-1 to CNN-5 have that stem in common.

    Parameters
    ----------
    shape : InputShape
        Gives the image channels and the width after flattening.
    conv_channels : tuple of two int
        Output channels of the two convolutions.
    linear_widths : tuple of int
        Output widths of the linear layers, each followed by ReLU; the last is ``raw_dim``.
    """

    def __init__(
        self,
        shape: InputShape,
        conv_channels: tuple[int, int],
        linear_widths: tuple[int, ...],
    ) -> None:
        super().__init__(raw_dim=linear_widths[-1])
        if shape.image_size < _SMALLEST_IMAGE:
            raise ModelError(
                f"two 5x5 convolutions need images of at least {_SMALLEST_IMAGE}x"
                f"{_SMALLEST_IMAGE} pixels"
            )
        layers: list[nn.Module] = []
        channels, size = shape.channels, shape.image_size
        for width in conv_channels:
            layers += [nn.Conv2d(channels, width, _KERNEL), nn.ReLU(), nn.MaxPool2d(2)]
            channels, size = width, (size - _KERNEL + 1) // 2
        self.conv = nn.Sequential(*layers)

        layers = []
        inputs = channels * size * size
        for width in linear_widths:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.linear = nn.Sequential(*layers)

    def stem(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to ``(N, c, s, s)``, s = (S - 4) / 2 rounded down."""
        s_in: Tensor = self.conv[:_STEM](x)
        return s_in

    def body(self, s: Tensor) -> Tensor:
        """Feature maps of the stem to raw features ``(N, raw_dim)``."""
        raw: Tensor = self.linear(self.conv[_STEM:](s).flatten(1))
        return raw

    def feature_levels(self) -> list[nn.Module]:
        """Return what computes the maps after either convolution."""
        return [layer for layer in self.conv if isinstance(layer, nn.MaxPool2d)]


_CNNS: dict[str, tuple[tuple[int, int], tuple[int, ...], str]] = {
    "fedavgcnn": ((32, 64), (512,), "FedAvgCNN of HtFLlib: 2 convolutions, 1 linear layer"),
    "cnn1": ((16, 32), (2000, 500), "CNN-1 of FedMRL/FedGH, the largest of five"),
    "cnn2": ((16, 16), (2000, 500), "CNN-2 of FedMRL/FedGH: fewer filters"),
    "cnn3": ((16, 32), (1000, 500), "CNN-3 of FedMRL/FedGH: narrower linear layer"),
    "cnn4": ((16, 32), (800, 500), "CNN-4 of FedMRL/FedGH: narrower linear layer"),
    "cnn5": ((16, 32), (500, 500), "CNN-5 of FedMRL/FedGH, the smallest of five"),
}

for _name, (_conv_channels, _linear_widths, _description) in _CNNS.items():
    register_model(_name, description=_description)(
        partial(ConvNet, conv_channels=_conv_channels, linear_widths=_linear_widths)
    )
