"""Multilayer perceptrons for rows of a table, ``(N, features)``, of several widths."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from models.base import Backbone, TableShape
from models.registry import register_model

_WIDTHS = {"mlp-small": (32, 32), "mlp-medium": (64, 64), "mlp-large": (128, 128, 64)}
"""Widths of the layers of the registered models; the last is the raw width."""


class Perceptron(Backbone):
    """Linear layers with a ReLU behind each: rows ``(N, features)`` to ``(N, widths[-1])``.

    Parameters
    ----------
    shape : TableShape
        Gives the number of features.
    widths : tuple of int
        Output widths of the layers.
    """

    def __init__(self, shape: TableShape, widths: tuple[int, ...]) -> None:
        super().__init__(raw_dim=widths[-1])
        layers: list[nn.Module] = []
        inputs = shape.features
        for width in widths:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.layers = nn.Sequential(*layers)

    def forward(self, rows: Tensor) -> Tensor:
        """Standardised rows ``(N, features)`` to raw features ``(N, raw_dim)``."""
        raw: Tensor = self.layers(rows)
        return raw


for _name, _widths in _WIDTHS.items():
    register_model(
        _name, description=f"perceptron, layers of {', '.join(map(str, _widths))}", modality="table"
    )(partial(Perceptron, widths=_widths))
