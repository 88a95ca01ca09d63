"""Models for windows of time series, ``(N, channels, steps)``: 1-D convolutions, and GRUs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from models.base import Backbone, SeriesShape
from models.registry import register_model

_CHANNELS = {"cnn1d-small": (16, 32), "cnn1d-medium": (32, 64), "cnn1d-large": (32, 64, 128)}
"""Output channels of the convolutions; the raw width is twice the last."""
_HIDDEN = {"gru-small": (32, 1), "gru-medium": (64, 1), "gru-large": (64, 2)}
"""Width of the state, which is the raw width, and number of layers."""
_KERNEL = 5


class Convolutions(Backbone):
    """Convolutions over time, halved between them, then the mean and maximum over what is left.

    Any number of steps will do: the ends are padded with zeros, and a window of one step is not
    halved.

    Parameters
    ----------
    shape : SeriesShape
        Gives the number of channels.
    channels : tuple of int
        Output channels of the convolutions.
    """

    def __init__(self, shape: SeriesShape, channels: tuple[int, ...]) -> None:
        super().__init__(raw_dim=2 * channels[-1])
        layers: list[nn.Module] = []
        inputs = shape.channels
        for width in channels:
            layers += [nn.Conv1d(inputs, width, _KERNEL, padding=_KERNEL // 2), nn.ReLU()]
            layers.append(nn.MaxPool1d(2, ceil_mode=True))
            inputs = width
        self.layers = nn.Sequential(*layers[:-1])
        self.mean, self.most = nn.AdaptiveAvgPool1d(1), nn.AdaptiveMaxPool1d(1)

    def forward(self, windows: Tensor) -> Tensor:
        """Standardised windows ``(N, channels, steps)`` to raw features ``(N, raw_dim)``."""
        maps = self.layers(windows)
        return torch.cat([self.mean(maps), self.most(maps)], dim=1).flatten(1)


class Recurrent(Backbone):
    """A gated recurrent unit over time: its last state, ``(N, width)``.

    Parameters
    ----------
    shape : SeriesShape
        Gives the number of channels.
    width, depth : int
        Width of the state, and number of layers.
    """

    def __init__(self, shape: SeriesShape, width: int, depth: int) -> None:
        super().__init__(raw_dim=width)
        self.cells = nn.GRU(shape.channels, width, depth, batch_first=True)

    def forward(self, windows: Tensor) -> Tensor:
        """Standardised windows ``(N, channels, steps)`` to raw features ``(N, raw_dim)``."""
        states, _ = self.cells(windows.transpose(1, 2))
        last: Tensor = states[:, -1]
        return last


for _name, _widths in _CHANNELS.items():
    register_model(
        _name,
        description=f"1-D convolutions of {', '.join(map(str, _widths))} channels",
        modality="series",
    )(partial(Convolutions, channels=_widths))
for _name, (_width, _depth) in _HIDDEN.items():
    register_model(_name, description=f"GRU, {_depth} layers of width {_width}", modality="series")(
        partial(Recurrent, width=_width, depth=_depth)
    )
