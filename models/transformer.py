"""A transformer encoder for short sequences, shared by the small ViT and the small text model.

Pre-norm blocks (Xiong et al., ICML 2020). Written out instead of taken from ``torch.nn``, whose
layers compute differently with and without gradients: here a representation has the same bits in
training, in evaluation and in the contrastive phase. Attention is two plain matrix products, which
at 64 tokens cost what the fused ones do, are deterministic on every device, and are seen by the
counter of operations. There is no dropout.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Self-attention, then a layer of two linear maps, each added to its input.

    Parameters
    ----------
    width : int
        Features of a token.
    heads : int
        Attention heads; must divide `width`.
    expansion : int
        Width of the hidden layer over `width`.
    """

    def __init__(self, width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width)
        )

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Tokens ``(N, T, width)`` to ``(N, T, width)``.

        ``hidden`` (N, T) is True at tokens nobody may attend to; one in each row must be False.
        """
        x = x + self._attend(self.norm1(x), hidden)
        updated: Tensor = x + self.mlp(self.norm2(x))
        return updated

    def _attend(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        count, tokens, width = x.shape
        depth = width // self.heads
        q, k, v = self.qkv(x).view(count, tokens, 3, self.heads, depth).permute(2, 0, 3, 1, 4)
        scores = (q / math.sqrt(depth)) @ k.transpose(-2, -1)  # (N, heads, T, T)
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None, None, :], -math.inf)
        mixed = scores.softmax(-1) @ v
        attended: Tensor = self.out(mixed.transpose(1, 2).reshape(count, tokens, width))
        return attended


class Encoder(nn.Module):
    """Learned positions, blocks and a last norm: ``(N, T, width) -> (N, T, width)``.

    Parameters
    ----------
    tokens : int
        Length T that positions are learned for.
    width, heads, depth, expansion : int
        See `Block`; `depth` is the number of blocks.
    """

    def __init__(self, tokens: int, width: int, heads: int, depth: int, expansion: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(tokens, width))
        nn.init.normal_(self.positions, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads, expansion) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Encode; ``hidden`` as in `Block`."""
        x = x + self.positions
        for block in self.blocks:
            x = block(x, hidden)
        encoded: Tensor = self.norm(x)
        return encoded
