"""The small text transformers: parameters by hand, padding, and whether they can learn."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from models import (
    InputShape,
    ModelError,
    TaskModel,
    TextShape,
    build_model,
    build_task_model,
    count_parameters,
    hash_tokens,
    list_models,
)
from models.text import mean_of_tokens, unattended

SIZES = {"text-small": (64, 2), "text-large": (128, 4)}
SHAPE = TextShape(vocabulary=50, length=7, num_classes=3)


def model(name: str = "text-small", shape: TextShape = SHAPE) -> TaskModel:
    return build_task_model(name, "text@tsv", shape, 16, seed=0)


def test_all_small_text_models_are_covered() -> None:
    assert list_models("text-*") == list_models("text-*", modality="text") == tuple(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_parameters(name: str) -> None:
    width, depth = SIZES[name]
    with torch.device("meta"):
        text = model(name)
    block = 4 * width + 4 * (width * width + width) + 4 * width * width + 3 * width
    encoder = 50 * width + 7 * width + depth * block + 2 * width
    assert count_parameters(text.encoder) == encoder
    assert count_parameters(text) == encoder + (width * 16 + 16) + (width * 3 + 3)


def test_the_mean_is_over_tokens_by_hand() -> None:
    features = torch.tensor([[[1.0], [5.0], [float("nan")]], [[7.0], [8.0], [9.0]]])
    tokens = torch.tensor([[4, 4, 0], [0, 0, 0]])
    assert mean_of_tokens(features, tokens).tolist() == [[3.0], [0.0]]
    assert unattended(tokens).tolist() == [[False, False, True], [False, False, False]]


@torch.no_grad()
@pytest.mark.parametrize("name", SIZES)
def test_padding_changes_nothing(name: str) -> None:
    """A text is encoded the same beside any others and with any amount of padding behind it."""
    text = model(name).eval()
    short = model(name, TextShape(50, 4, 3)).eval()
    state = text.state_dict()
    state["encoder.encoder.positions"] = state["encoder.encoder.positions"][:4]
    short.load_state_dict(state)
    tokens = torch.tensor([[3, 9, 2, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7]])
    torch.testing.assert_close(text.encoder(tokens)[:1], short.encoder(tokens[:1, :4]))


def test_an_empty_text_is_zeros_with_finite_gradients() -> None:
    text = model()
    tokens = torch.tensor([[0] * 7, [1, 2, 3, 0, 0, 0, 0]])
    raw = text.encoder(tokens)
    assert raw[0].tolist() == [0.0] * 64
    assert bool(raw[1].any())
    (text.represent(tokens).sum() + text(tokens).sum()).backward()
    assert all(bool(p.grad.isfinite().all()) for p in text.parameters() if p.grad is not None)


def test_the_order_of_words_matters() -> None:
    raw = model().encoder(torch.tensor([[1, 2, 3, 0, 0, 0, 0], [3, 2, 1, 0, 0, 0, 0]]))
    assert not torch.allclose(raw[0], raw[1])


def test_a_split_model_of_text_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'text-small' reads text.*key tasks"):
        build_model("text-small", InputShape(3, 32, 10))


def test_it_learns_which_word_is_there() -> None:
    words = ["bag", "shirt", "boot"]
    texts = [f"a {w} on the {p}" for w in words for p in ("left", "right", "chair", "floor")]
    labels = torch.arange(3).repeat_interleave(4)
    tokens = torch.from_numpy(hash_tokens(texts, 200, 8))
    text = model("text-small", TextShape(200, 8, 3))
    optimizer = torch.optim.AdamW(text.parameters(), lr=3e-3)
    for _ in range(15):
        optimizer.zero_grad()
        F.cross_entropy(text(tokens), labels).backward()
        optimizer.step()
    unseen = torch.from_numpy(hash_tokens([f"one {w} near the wall" for w in words], 200, 8))
    assert text(unseen).argmax(1).tolist() == [0, 1, 2]
