"""A model with two towers, for pairs of an image and its caption, and how such models are scored.

A batch of pairs is one tensor of int64, (N, L + C S S): a row is the L token ids of the caption,
then the bytes of the image. So pairs go wherever a batch of images or of tokens does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import PairShape
from models.build import build_backbone, try_backbone
from models.registry import model_info, pair_of
from models.task_model import _LENGTH_FLOOR, TaskModel


class PairModel(TaskModel):
    """An image tower and a text tower, each an encoder with a projection to ``feature_dim``.

    The image tower is what a `TaskModel` has; there are no classes to predict, so no head.

    Parameters
    ----------
    name, feature_dim, raw_dim
        As in `TaskModel`; the width is the image encoder's.
    image, text : nn.Module
        The encoders.
    text_dim : int
        Width of the text encoder's feature.
    shape : PairShape
        How a row of a batch is cut.
    """

    def __init__(
        self,
        name: str,
        image: nn.Module,
        text: nn.Module,
        *,
        raw_dim: int,
        text_dim: int,
        feature_dim: int,
        shape: PairShape,
    ) -> None:
        super().__init__(
            name,
            "retrieval",
            image,
            raw_dim=raw_dim,
            feature_dim=feature_dim,
            num_classes=shape.num_classes,
        )
        self.head = nn.Identity()
        self.text_encoder = text
        self.text_projection = nn.Linear(text_dim, feature_dim)
        self.shape = shape

    def represent_text(self, tokens: Tensor) -> Tensor:
        """Token ids ``(N, L)`` to representations ``(N, feature_dim)``, rows of length 1."""
        projected = self.text_projection(self.text_encoder(tokens)).float()
        return F.normalize(projected, dim=1, eps=_LENGTH_FLOOR)

    def forward(self, x: Tensor) -> Tensor:
        """Pairs ``(N, L + C S S)`` to both representations side by side, ``(N, 2 feature_dim)``."""
        length, image = self.shape.text.length, self.shape.image
        pixels = x[:, length:].reshape(-1, image.channels, image.image_size, image.image_size)
        seen = pixels.float().mul(1 / 127.5).sub(1.0)  # as `data.normalise` does
        seen = seen.contiguous(memory_format=torch.channels_last)
        return torch.cat([self.represent(seen), self.represent_text(x[:, :length])], dim=1)

    def representation_parameters(self) -> list[nn.Parameter]:
        """Return all trainable parameters, in a fixed order."""
        return [p for p in self.parameters() if p.requires_grad]


def build_pair_model(
    name: str, shape: PairShape, feature_dim: int, lora_rank: int = 0
) -> PairModel:
    """Build ``"image-model+text-model"``; works in a `skeleton` too.

    Raises
    ------
    ModelError
        As `models.build_task_model`.
    """
    parts = pair_of(name)
    assert parts is not None, "checked by who calls: its modality is that of pairs"
    about_image, about_text = map(model_info, parts)
    image, raw_dim = build_backbone(about_image, shape.image, lora_rank)
    text, text_dim = build_backbone(about_text, shape.text, lora_rank)
    model = PairModel(
        name, image, text, raw_dim=raw_dim, text_dim=text_dim, feature_dim=feature_dim, shape=shape
    )
    try_backbone(about_image, model, image, shape.image, raw_dim)
    try_backbone(about_text, model, text, shape.text, text_dim)
    return model


def recalls(images: Tensor, texts: Tensor, captions: Tensor) -> tuple[float, float]:
    """Return R@1 from image to text and from text to image.

    The share of images whose most similar text is their caption, and of texts whose most similar
    image has that caption. A caption with the same tokens is as good: nobody could tell which is
    meant. Of equal similarities the first counts, so that a model that maps all to one point gets
    no more than a guess.

    Parameters
    ----------
    images, texts : Tensor
        (N, d) of the same items, in one order.
    captions : Tensor
        (N, L) tokens of them.

    Returns
    -------
    image_to_text, text_to_image : float
        In [0, 1].
    """
    closest = (_closest(images, texts), _closest(texts, images))
    hits = [(captions[found] == captions).all(dim=1) for found in closest]
    return float(hits[0].double().mean()), float(hits[1].double().mean())


def _closest(queries: Tensor, items: Tensor, block: int = 1024) -> Tensor:
    """Return the index of every query's most similar item, (N,); in blocks, for the memory."""
    parts = queries.float().split(block)
    return torch.cat([(part @ items.float().T).argmax(dim=1) for part in parts])
