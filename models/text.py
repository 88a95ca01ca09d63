"""Small transformer encoders for short texts.

Source: Vaswani et al., Attention Is All You Need (NeurIPS 2017), the encoder, with learned
positions and pre-norm blocks. Inputs are token ids ``(N, length)`` from `models.tokens`; 0 is
padding.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from models.base import Backbone, TextShape
from models.registry import register_model
from models.transformer import Encoder

PADDING = 0
"""The token id that stands for no token, in every text model."""

_SIZES = {"text-small": (64, 2, 2), "text-large": (128, 4, 4)}
"""Width, depth and heads of the registered models."""


class SmallText(Backbone):
    """Embedding, transformer blocks, mean: token ids ``(N, length)`` to ``(N, width)``.

    Parameters
    ----------
    shape : TextShape
        Gives vocabulary and length.
    width, depth, heads, expansion : int
        See `models.transformer.Block`.
    """

    def __init__(
        self, shape: TextShape, width: int, depth: int, heads: int, expansion: int
    ) -> None:
        super().__init__(raw_dim=width)
        self.embed = nn.Embedding(shape.vocabulary, width, padding_idx=PADDING)
        self.encoder = Encoder(shape.length, width, heads, depth, expansion)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids ``(N, length)`` to raw features ``(N, width)``; zeros for an empty text."""
        encoded = self.encoder(self.embed(tokens), unattended(tokens))
        return mean_of_tokens(encoded, tokens)


def unattended(tokens: Tensor) -> Tensor:
    """Return True at padding, ``(N, T)``; False all along a row that holds nothing else.

    A softmax over no token at all would be NaN. The outputs of such a row are not used.
    """
    padding = tokens == PADDING
    return padding & ~padding.all(dim=1, keepdim=True)


def mean_of_tokens(features: Tensor, tokens: Tensor) -> Tensor:
    """Average features ``(N, T, width)`` over the tokens that are no padding: ``(N, width)``.

    A row of padding alone gives zeros.
    """
    keep = (tokens != PADDING).unsqueeze(2)
    total = features.masked_fill(~keep, 0.0).sum(1)
    return total / keep.sum(1).clamp(min=1)


for _name, (_width, _depth, _heads) in _SIZES.items():
    register_model(
        _name, description=f"text transformer: {_depth} blocks of width {_width}", modality="text"
    )(partial(SmallText, width=_width, depth=_depth, heads=_heads, expansion=2))
