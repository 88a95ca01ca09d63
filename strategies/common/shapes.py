"""What a client's data asks of a model, as the server knows it."""

from __future__ import annotations

from models import InputShape, SeriesShape, Shape, TableShape, TextShape
from strategies.base.messages import ClientInfo


def shape_of(info: ClientInfo) -> Shape:
    """Return the shape of a client's examples; of sentences as its tokeniser cuts them."""
    if info.vocabulary:
        return TextShape(info.vocabulary, info.text_length, info.num_classes)
    if info.steps:
        return SeriesShape(info.features, info.steps, info.num_classes)
    if info.features:
        return TableShape(info.features, info.num_classes)
    return InputShape(info.channels, info.image_size, info.num_classes)
