"""What a client's data asks of a model, as the server knows it."""

from __future__ import annotations

from models import InputShape, TextShape
from strategies.base.messages import ClientInfo


def shape_of(info: ClientInfo) -> InputShape | TextShape:
    """Return the shape of a client's examples: images, or sentences as its tokeniser cuts them."""
    if info.vocabulary:
        return TextShape(info.vocabulary, info.text_length, info.num_classes)
    return InputShape(info.channels, info.image_size, info.num_classes)
