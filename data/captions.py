"""Captions of scenes: every item with a size word, in random order, in one of a few sentences.

The class to predict is that of the largest item. All classes present are named, so no single
word tells which it is: a reader has to bind the size word to the noun that follows it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOUNS: dict[str, tuple[str, ...]] = {
    "fashion-mnist": (
        *("tee", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "boot"),
    ),
    "digits": (
        *("zero", "one", "two", "three", "four"),
        *("five", "six", "seven", "eight", "nine"),
    ),
}
"""What each class is called, by source; each is one word that no other class has."""

LARGE = ("large", "big", "huge")
MIDDLE = ("medium", "middling", "moderate")
SMALL = ("small", "little", "tiny")
"""Words for the largest item, for those above `MIDDLE_SHARE` of its pixels, and for the rest."""

MIDDLE_SHARE = 0.6

SENTENCES = (
    "a picture of {}",
    "{} on a grey ground",
    "this scene shows {}",
    "here we see {} and nothing else",
    "{} can be found here",
)
JOINTS = (" and ", " next to ", ", ", " beside ")


def scene_captions(
    source: str,
    classes: NDArray[np.int64],
    areas: NDArray[np.int64],
    generator: np.random.Generator,
) -> list[str]:
    """Describe scenes.

    Parameters
    ----------
    source : str
        A key of `NOUNS`.
    classes : NDArray[np.int64]
        (N, 4) class of each item.
    areas : NDArray[np.int64]
        (N, 4) its pixels in the picture; 0 where there is no such item.
    generator : np.random.Generator
        Draws order and words.

    Returns
    -------
    captions : list[str]
        (N,).
    """
    order = np.argsort(generator.random(areas.shape), axis=1)
    words = np.floor(generator.random(areas.shape) * 3).astype(np.int64)
    joints = np.floor(generator.random(areas.shape) * len(JOINTS)).astype(np.int64)
    sentences = np.floor(generator.random(len(areas)) * len(SENTENCES)).astype(np.int64)
    largest = areas.argmax(axis=1)
    # In whole tenths: 0.6 is no exact float, and a caption must not depend on a rounding.
    middle = 10 * areas >= round(10 * MIDDLE_SHARE) * areas.max(axis=1)[:, None]
    captions = []
    for scene in range(len(areas)):
        text = ""
        for slot in order[scene][areas[scene][order[scene]] > 0]:
            others = MIDDLE if middle[scene, slot] else SMALL
            sizes = LARGE if slot == largest[scene] else others
            joint = JOINTS[joints[scene, slot]] if text else ""
            noun = NOUNS[source][classes[scene, slot]]
            text += f"{joint}a {sizes[words[scene, slot]]} {noun}"
        captions.append(SENTENCES[sentences[scene]].format(text))
    return captions
