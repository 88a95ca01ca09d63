"""Token ids by hash, and which tokeniser belongs to which model."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from models import ModelError, TextShape, hash_tokens, text_shape_of, tokeniser_of


def test_hand_computed_ids() -> None:
    tokens = hash_tokens(["A dog, a DOG!", "", "one two three four five"], 100, 4)
    a, dog = (1 + zlib.crc32(word) % 99 for word in (b"a", b"dog"))
    assert tokens.dtype == np.int64
    assert tokens[0].tolist() == [a, dog, a, dog]
    assert tokens[1].tolist() == [0, 0, 0, 0]
    assert tokens[2, 3] == 1 + zlib.crc32(b"four") % 99


def test_ids_are_the_same_on_every_machine() -> None:
    """0xCBF43926 is CRC-32's published check value; Python's own hash differs by process."""
    assert hash_tokens(["123456789"], 4096, 2).tolist() == [[1 + 0xCBF43926 % 4095, 0]]


def test_words_of_other_scripts_and_digits_count() -> None:
    tokens = hash_tokens(["Über 9 straße 日本"], 4096, 6)[0]
    words = ["über", "9", "straße", "日", "本"]
    assert tokens.tolist() == [*(1 + zlib.crc32(w.encode()) % 4095 for w in words), 0]


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("这部电影很好。", "这 部 电 影 很 好"),
        ("映画です", "映 画 で す"),
        ("ok这部film_1", "ok 这 部 film_1"),
        ("हिन्दी में", "हिन्दी में"),
        ("cafe\u0301 na\u00efve", "caf\u00e9 na\u00efve"),
        ("좋은 영화", "좋은 영화"),
        ("great 😀😀 film ❤\ufe0f!", "great 😀 😀 film ❤"),
        ("½ don\u2019t © x²", "½ don t x²"),
    ],
)
def test_no_script_is_read_as_one_word_or_in_pieces(sentence: str, words: str) -> None:
    expected = [1 + zlib.crc32(word.encode()) % 4095 for word in words.split()]
    assert hash_tokens([sentence], 4096, len(expected) + 1)[0].tolist() == [*expected, 0]


def test_ids_fill_the_vocabulary_and_are_never_padding() -> None:
    tokens = hash_tokens([f"w{i}" for i in range(2000)], 16, 1)
    assert sorted(set(tokens.ravel().tolist())) == list(range(1, 16))


def test_no_sentences_keep_their_shape() -> None:
    assert hash_tokens([], 100, 5).shape == (0, 5)


@pytest.mark.parametrize("numbers", [(1, 8), (100, 0)])
def test_impossible_sizes_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ModelError, match=rf"vocabulary={numbers[0]}.*length={numbers[1]}"):
        hash_tokens(["a"], *numbers)


def test_a_text_model_reads_what_its_tokeniser_makes() -> None:
    shape = text_shape_of("text-small", 7)
    assert shape == TextShape(4096, 32, 7)
    tokens = tokeniser_of("text-small")(["a white shirt"] * 3)
    assert tokens.shape == (3, shape.length)
    assert tokens.max() < shape.vocabulary


def test_an_image_model_has_no_tokeniser() -> None:
    for ask in (tokeniser_of, lambda name: text_shape_of(name, 2)):
        with pytest.raises(ModelError, match=r"'cnn5' reads images.*text-small, text-large"):
            ask("cnn5")


def test_an_impossible_text_shape_is_refused() -> None:
    with pytest.raises(ModelError, match="text shape: length=0, must be 1 or more"):
        TextShape(100, 0, 2)
