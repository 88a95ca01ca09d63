"""From sentences to token ids ``(N, L)``, for the text model that will read them; 0 is padding."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from models.base import ModelError, TextShape
from models.pretrained import load_tokeniser, text_limits
from models.registry import ModelInfo, list_models, model_info, pair_of

Tokenise = Callable[[Sequence[str]], NDArray[np.int64]]
"""Sentences to token ids ``(N, L)``, 0 for padding."""

VOCABULARY = 4096
LENGTH = 32

_WORD = re.compile(r"\w+")
# Letters of Thai, Lao, Tibetan, Burmese, Khmer, kana and Han.
_UNSPACED = re.compile(
    "[\u0e01-\u0e5b\u0e81-\u0edf\u0f40-\u0f6c\u1000-\u109f\u1780-\u17b3\u3005-\u3007"
    "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_PROBE = (
    "A quick brown fox; it jumps over 13 lazy dogs!",
    "naïve café, don't re-read: unfathomably tokenised words",
    "",
)


def hash_tokens(
    sentences: Sequence[str], vocabulary: int = VOCABULARY, length: int = LENGTH
) -> NDArray[np.int64]:
    """Give words numbers by a hash, so that no vocabulary has to be agreed on or shared.

    A word is a run of letters, digits and underscores in lower case; its id is
    ``1 + crc32(word in UTF-8) mod (vocabulary - 1)``. Two words may share an id. In scripts that
    are written without spaces (Chinese, Japanese, Thai, ...) every character is a word, for a
    whole sentence would be one that never comes again; so is a pictograph, such as an emoji. Marks
    belong to the letter before them, however an accent is encoded.

    Parameters
    ----------
    sentences : sequence of str
        N texts.
    vocabulary : int, default 4096
        Ids are below it; 2 or more.
    length : int, default 32
        Words kept of a text, the first ones; shorter texts are filled up with 0.

    Returns
    -------
    NDArray of int64, ``(N, length)``

    Raises
    ------
    ModelError
        A vocabulary below 2 or a length below 1.
    """
    if vocabulary < 2 or length < 1:
        raise ModelError(
            f"tokens: vocabulary={vocabulary!r} must be 2 or more, length={length!r} 1 or more"
        )
    tokens = np.zeros((len(sentences), length), np.int64)
    for row, sentence in zip(tokens, sentences, strict=True):
        words = _words(sentence.lower())[:length]
        row[: len(words)] = [1 + zlib.crc32(w.encode()) % (vocabulary - 1) for w in words]
    return tokens


def _words(sentence: str) -> list[str]:
    if sentence.isascii():
        return _WORD.findall(sentence)
    words: list[str] = []
    open_word = False  # whether a letter would go on with the last word
    for char in unicodedata.normalize("NFC", sentence):
        alone = _UNSPACED.match(char) is not None or _is_pictograph(char)
        letter = char.isalnum() or char == "_"
        if alone or (letter and not open_word):
            words.append(char)
        elif letter or (unicodedata.category(char)[0] == "M" and open_word):
            words[-1] += char
        open_word = not alone and (letter or (open_word and unicodedata.category(char)[0] == "M"))
    return words


def _is_pictograph(char: str) -> bool:
    return char >= "\u2600" and unicodedata.category(char) == "So"


def tokeniser_of(model_name: str) -> Tokenise:
    """Return the tokeniser of a text model: its own if it is pretrained, else `hash_tokens`.

    Raises
    ------
    ModelError
        The model is unknown or reads images, or its place holds no tokeniser that fits.
    """
    info = _text_model(model_name)
    return load_tokeniser(info) if info.place else hash_tokens


def text_shape_of(model_name: str, num_classes: int) -> TextShape:
    """Return what a text model reads, by its tokeniser.

    Raises
    ------
    ModelError
        As `tokeniser_of`.
    """
    info = _text_model(model_name)
    vocabulary, length = text_limits(info) if info.place else (VOCABULARY, LENGTH)
    return TextShape(vocabulary, length, num_classes)


def tokeniser_fingerprint(model_name: str) -> str:
    """Return 16 hexadecimal digits that are equal where sentences become the same tokens.

    Judged by what the tokeniser makes of some words, numbers and signs, and by its limits: two
    vocabularies of one size may number the same words otherwise.
    """
    shape = text_shape_of(model_name, 1)
    digest = hashlib.sha256(f"{shape.vocabulary}|{shape.length}|".encode())
    digest.update(tokeniser_of(model_name)(_PROBE).astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def _text_model(name: str) -> ModelInfo:
    info = model_info((pair_of(name) or (name,))[-1])
    if info.modality != "text":
        raise ModelError(
            f"model {name!r} reads images and has no tokeniser; text models are "
            f"{', '.join(list_models(modality='text'))}"
        )
    return info
