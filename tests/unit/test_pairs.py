"""Pairs of images and captions: their batches, the model with two towers, loss and R@1 by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from client_app.scores import new_score
from data import DataError, DataSpec, TaskSpec, load_task_data, normalise
from models import (
    InputShape,
    ModelError,
    PairModel,
    PairShape,
    TextShape,
    build_task_model,
    hash_tokens,
    model_info,
    recalls,
    text_shape_of,
)
from models.registry import pair_of
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.common.losses import PAIR_TEMPERATURE, pair_loss, task_loss
from tests.support import run_federation

NAME = "cnn4+text-small"
SHAPE = PairShape(InputShape(1, 16, 10), TextShape(4096, 32, 10))
SPEC = DataSpec(dataset="scenes", image_size=16, subset=0.02, partition="iid", min_examples=1)


def test_a_batch_holds_tokens_and_pixels_as_they_are() -> None:
    data = load_task_data(SPEC, [TaskSpec("retrieval", "scenes")], 0, 2, hash_tokens)
    pairs, tokens = data.train.batch([3, 0])
    rows = data.train.indices[[3, 0]]
    dataset = data.dataset
    captions = [dataset.captions[int(row)] for row in rows]  # type: ignore[attr-defined]
    assert torch.equal(tokens, torch.from_numpy(hash_tokens(captions)))
    assert torch.equal(pairs[:, :32], tokens)
    pixels = torch.from_numpy(dataset.images[rows])  # type: ignore[attr-defined]
    assert torch.equal(pairs[:, 32:], pixels.reshape(2, -1).long())
    assert sum(data.train.class_counts().values()) == len(data.train)
    assert (data.metric, data.channels, data.image_size) == ("recall", 1, 16)


def test_a_model_of_pairs_reads_what_its_towers_read() -> None:
    model = build_task_model(NAME, "retrieval", SHAPE, 8, seed=0)
    assert isinstance(model, PairModel)
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (3, 1, 16, 16), generator=draw, dtype=torch.uint8)
    tokens = torch.randint(1, 4096, (3, 32), generator=draw)
    both = model(torch.cat([tokens, pixels.reshape(3, -1).long()], dim=1))
    images, texts = model.represent(normalise(pixels)), model.represent_text(tokens)
    assert torch.allclose(both, torch.cat([images, texts], dim=1), atol=1e-6)
    assert torch.allclose(both[:, 8:].norm(dim=1), torch.ones(3), atol=1e-5)
    pair_loss(images, texts).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert len(model.representation_parameters()) == len(list(model.parameters()))


def test_the_loss_by_hand() -> None:
    """Two items, images and captions the same two orthogonal vectors: ln(1 + e^(-1/tau))."""
    z = torch.eye(2)
    assert pair_loss(z, z, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-5)
    term = task_loss("retrieval", torch.nn.Identity())(torch.cat([z, z], dim=1), torch.zeros(2, 3))
    wanted = math.log(1 + math.exp(-1 / PAIR_TEMPERATURE))
    assert term["loss_pairs"].item() == pytest.approx(wanted, abs=1e-6)


def test_recall_by_hand() -> None:
    """Image 0 finds its text, 1 that of 0, 2 the text of 3, which reads the same; 3 its own.

    Text 0 finds image 0, text 1 image 0, texts 2 and 3 image 3, which both describe.
    """
    images = torch.tensor([[1.0, 0.0], [0.8, 0.6], [-0.8, 0.6], [-1.0, 0.0]])
    texts = torch.tensor([[1.0, 0.0], [1.0, -0.1], [-0.9, -0.1], [-1.0, 0.1]])
    captions = torch.tensor([[1, 0], [2, 0], [3, 4], [3, 4]])
    assert recalls(images, texts, captions) == (0.75, 0.75)
    score = new_score("retrieval")
    assert score.value() is None
    for part in (slice(0, 3), slice(3, 4)):  # among all at once, however they come
        score.add(torch.cat([images, texts], dim=1)[part], captions[part])
    assert score.value() == 0.75


def test_a_model_that_tells_nothing_apart_guesses() -> None:
    z = torch.ones(10, 4)
    assert recalls(z, z, torch.arange(10)[:, None]) == (0.1, 0.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text-small+text-small", "reads text; write the image model first"),
        ("cnn4+cnn5", "'cnn4.cnn5' is unknown"),
        ("cnn44+text-small", "'cnn44' is unknown; did you mean cnn4"),
    ],
)
def test_wrong_pairs_of_models_are_named(name: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        model_info(name)


def test_a_place_may_have_a_plus_sign() -> None:
    assert pair_of("hf-vit@/a+b+text-small@/c+d") == ("hf-vit@/a+b", "text-small@/c+d")
    assert pair_of("hf-vit@/a+b") is None
    assert pair_of("text-small") is None


def test_a_model_for_one_of_both_is_refused() -> None:
    assert text_shape_of(NAME, 10) == text_shape_of("text-small", 10)
    with pytest.raises(ModelError, match=r"reads images, task retrieval has images and text;.*\+"):
        build_task_model("cnn4", "retrieval", SHAPE, 8)
    with pytest.raises(ModelError, match="reads images and text, task classification has images"):
        build_task_model(NAME, "classification", SHAPE.image, 8)


def test_what_serves_no_pairs_refuses_them() -> None:
    values = {"method": "fedmuscle", "tasks": "retrieval@scenes", "models": NAME}
    with pytest.raises(ConfigError, match=r"'fedmuscle' serves no retrieval.*local"):
        parse_run_config(values)
    with pytest.raises(DataError, match="no retrieval on digits: digits has no captions here"):
        load_task_data(SPEC, [TaskSpec("retrieval", "digits")], 0, 1, hash_tokens)


def test_local_training_on_pairs(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 2, method="local", tasks="retrieval@scenes", models=NAME, num_rounds=1,
        image_size=16, feature_dim=16, subset=0.02, partition="iid",
    )  # fmt: skip
    assert run.metrics(phase="final", client=1, metric="recall")
    assert set(run.summary["scores"]) == {"retrieval"}
    assert {row["vocabulary"] for row in run.rows("clients")} == {"4096"}
