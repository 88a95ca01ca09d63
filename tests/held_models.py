"""A model whose training waits, so that a test finds a run in a round of its choice."""

from __future__ import annotations

LONGEST_WAIT = 600.0

_MODULE = """
import os
import time
from pathlib import Path

from torch import nn

HERE = Path(__file__).parent


def waits():
    return {condition}


class Held(nn.Module):
    def forward(self, images):
        deadline = time.monotonic() + {limit}
        # Two noise images are the trial of an own model at the registration.
        on_data = self.training and not images.is_meta and len(images) > 2
        while on_data and waits() and time.monotonic() < deadline:
            time.sleep(0.1)
        return images


def held(shape):
    pixels = shape.channels * shape.image_size**2
    body = nn.Sequential(Held(), nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU())
    body.raw_dim = 64
    return body
"""


def held_models(condition: str) -> str:
    """Return the text of a module with a model `held`.

    Parameters
    ----------
    condition : str
        A Python expression: while it is true, the model does not go on with its training. It knows
        `os`, `Path`, and `HERE`, the folder that the module lies in.
    """
    return _MODULE.format(condition=condition, limit=LONGEST_WAIT)
