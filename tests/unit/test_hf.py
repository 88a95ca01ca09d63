"""Models of the extra ``hf``: adapters, and weights that these tests write to a folder first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data import normalise
from models import (
    InputShape,
    ModelError,
    TaskModel,
    build_model,
    build_task_model,
    count_parameters,
    libraries,
    model_info,
    resolve_models,
    text_shape_of,
    tokeniser_of,
)
from models import pretrained as places

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("transformers", "peft")), reason="needs the extra hf"
)

IMAGES = InputShape(1, 28, 5)
SIZE = 64  # 2x2 positions in SegFormer's last stage; a single one gives attention no gradient
MEAN, DEVIATION = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "white", "shirt", "boot", "##s", "on"]
SENTENCES = ["A white shirt", "boots on a unicorn", ""]
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def hf() -> Any:
    """Import transformers when a test runs, not when tests are collected: it takes seconds."""
    return places.library("transformers")


@pytest.fixture(autouse=True, scope="module")
def no_network() -> Iterator[None]:
    """The hub's client reads HF_HUB_OFFLINE when it is imported, which may have been earlier."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a tiny model of each family with random weights, as save_pretrained does."""
    root = tmp_path_factory.mktemp("places")
    torch.manual_seed(1)
    text = {"vocab_size": 20, "max_position_embeddings": 9}
    made = {
        "bert": hf().BertForSequenceClassification(
            hf().BertConfig(**SMALL, **text, intermediate_size=40)
        ),
        "distilbert": hf().DistilBertModel(
            hf().DistilBertConfig(dim=24, n_layers=2, n_heads=2, hidden_dim=40, **text)
        ),
        "vit": hf().ViTForImageClassification(
            hf().ViTConfig(**SMALL, intermediate_size=40, image_size=32, patch_size=8)
        ),
        "segformer": hf().SegformerModel(
            hf().SegformerConfig(
                depths=[1, 1, 1, 1],
                hidden_sizes=[8, 16, 16, 24],
                num_attention_heads=[1, 2, 2, 2],
                decoder_hidden_size=16,
            )
        ),
    }
    for family, model in made.items():
        for parameter in model.parameters():  # their defaults are near zero: spread them
            torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(root / family)
    for family in ("bert", "distilbert"):
        (root / family / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        (root / family / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    for family, size in (("vit", {"height": 32, "width": 32}), ("segformer", 64)):
        settings = {"do_normalize": True, "image_mean": MEAN, "image_std": DEVIATION, "size": size}
        (root / family / "preprocessor_config.json").write_text(json.dumps(settings))
    return {family: root / family for family in made}


def text_model(name: str, lora_rank: int = 16) -> TaskModel:
    shape = text_shape_of(name, 3)
    return build_task_model(name, "text@tsv", shape, 8, lora_rank=lora_rank, seed=0)


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_text_in_a_folder_equals_transformers_own(family: str, folders: dict[str, Path]) -> None:
    name = f"hf-{family}@{folders[family]}"
    shape = text_shape_of(name, 3)
    assert (shape.vocabulary, shape.length) == (20, 9)
    tokens = tokeniser_of(name)(SENTENCES)
    a, white, shirt, boot, s, on = range(5, 11)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [
        [2, a, white, shirt, 3, 0, 0, 0, 0],
        [2, boot, s, on, a, 1, 3, 0, 0],
        [2, 3, 0, 0, 0, 0, 0, 0, 0],
    ]
    theirs = hf().AutoModel.from_pretrained(folders[family]).eval()
    tokeniser = hf().AutoTokenizer.from_pretrained(folders[family])
    for n, sentence in enumerate(SENTENCES):  # one by one, without any padding
        expected = theirs(**tokeniser(sentence, return_tensors="pt")).last_hidden_state.mean(1)[0]
        ours = text_model(name).eval().encoder(torch.from_numpy(tokens))[n]
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def pixels(channels: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, channels, size, size), dtype=torch.uint8, generator=generator)


@torch.no_grad()
def test_images_in_a_folder_equal_transformers_own(folders: dict[str, Path]) -> None:
    folder = folders["vit"]
    model = build_task_model(f"hf-vit@{folder}", "multilabel", InputShape(3, 32, 5), 8).eval()
    raw = pixels(3, 32)
    processor = hf().AutoImageProcessor.from_pretrained(folder, use_fast=True)
    theirs = hf().ViTModel.from_pretrained(folder).eval()
    hidden = theirs(**processor(list(raw), return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(model.encoder(normalise(raw)), hidden[:, 0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_feature_maps_in_a_folder_come_from_transformers_own(folders: dict[str, Path]) -> None:
    name = f"hf-segformer@{folders['segformer']}"
    model = build_task_model(name, "segmentation@scenes", IMAGES, 8, seed=0).eval()
    x = normalise(pixels(1, 28))
    wide = torch.nn.functional.interpolate(x, (64, 64), mode="bilinear").repeat(1, 3, 1, 1)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, DEVIATION))
    theirs = hf().SegformerModel.from_pretrained(folders["segformer"]).eval()
    stages = theirs((wide * 0.5 + 0.5 - mean) / deviation, output_hidden_states=True).hidden_states
    total = sum(
        torch.nn.functional.interpolate(layer(stage), (16, 16), mode="bilinear")
        for layer, stage in zip(model.encoder.decode, stages, strict=True)
    )
    maps = model.encoder.maps(x)
    torch.testing.assert_close(maps, model.encoder.norm(total).relu(), rtol=1e-4, atol=1e-5)
    assert tuple(model(x).shape) == (2, 6, 28, 28)


@torch.no_grad()
@pytest.mark.parametrize("size", [16, 48])
def test_images_are_brought_to_the_pretrained_size(folders: dict[str, Path], size: int) -> None:
    shape = InputShape(1, size, 5)
    encoder = build_task_model(f"hf-vit@{folders['vit']}", "multilabel", shape, 8).encoder.eval()
    x = torch.full((2, 1, size, size), 0.2)
    expected = (torch.tensor([0.6] * 3) - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    prepared = encoder.prepare(x)
    torch.testing.assert_close(prepared, expected.view(1, 3, 1, 1).expand(2, 3, 32, 32))


@pytest.mark.parametrize("name", ["hf-vit", "hf-segformer", "hf-bert", "hf-distilbert"])
def test_adapters_alone_are_trained(name: str) -> None:
    model = any_model(name, 16)
    # Queries and values: A (16 x in) and B (out x 16), in 2 layers of width 32 or in 4 stages.
    widths = [16, 32, 48, 64] if name == "hf-segformer" else [32, 32]
    expected = 2 * sum(2 * 16 * width for width in widths)
    if name == "hf-segformer":  # and the decoder, which is never pretrained
        expected += sum(width * 64 + 64 for width in widths) + 2 * 64
    trained = [p for p in model.encoder.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == expected
    plain = any_model(name, 0)
    assert all(p.requires_grad for p in plain.parameters())
    adapters = 2 * sum(2 * 16 * width for width in widths)
    assert count_parameters(model) == count_parameters(plain) + adapters


@pytest.mark.parametrize("name", ["hf-vit", "hf-segformer", "hf-bert", "hf-distilbert"])
def test_a_contrastive_step_moves_adapters_and_leaves_base_and_head(name: str) -> None:
    model = any_model(name, 4)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.representation_parameters(), lr=0.01)
    for _ in range(2):  # A moves from the second step on, because B starts at zero
        optimizer.zero_grad()
        (model.represent(any_input(name)) @ torch.arange(8.0)).sum().backward()
        optimizer.step()
    moved = {
        key for key, value in model.state_dict().items() if not torch.equal(value, before[key])
    }
    own = ("lora_", "encoder.decode", "encoder.norm", "projection")
    trained = {key for key in before if key.startswith("projection") or "lora_" in key}
    assert trained <= moved
    assert all(any(part in key for part in own) for key in moved)


@torch.no_grad()
@pytest.mark.parametrize("family", ["vit", "segformer", "bert", "distilbert"])
def test_a_skeleton_needs_no_weights(
    family: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"hf-{family}@{folders[family]}"
    model = any_model(name, 16).eval()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights were read for a skeleton")

    monkeypatch.setattr(hf().PreTrainedModel, "from_pretrained", refuse)
    with torch.device("meta"):
        copy = any_model(name, 16, seed=None).eval()
    assert all(p.is_meta for p in copy.parameters())
    copy.load_state_dict(model.state_dict(), assign=True)
    assert not any(item.is_meta for item in (*copy.parameters(), *copy.buffers()))
    x = any_input(name)
    assert torch.equal(copy.represent(x), model.represent(x))
    assert torch.equal(copy(x), model(x))


@torch.no_grad()
@pytest.mark.parametrize("family", ["vit", "segformer", "bert", "distilbert"])
def test_dropout_of_the_place_is_switched_off(family: str, folders: dict[str, Path]) -> None:
    name = f"hf-{family}@{folders[family]}"
    model, x = any_model(name, 16), any_input(name)
    assert torch.equal(model.train()(x), model.eval()(x))


def any_model(name: str, lora_rank: int, seed: int | None = 0) -> TaskModel:
    is_text = model_info(name).modality == "text"
    task = "text" if is_text else "segmentation" if "segformer" in name else "multilabel"
    shape = text_shape_of(name, 3) if is_text else InputShape(1, SIZE, 5)
    return build_task_model(name, task, shape, 8, lora_rank=lora_rank, seed=seed)


def any_input(name: str) -> Tensor:
    if model_info(name).modality == "text":
        return torch.from_numpy(tokeniser_of(name)(SENTENCES))
    return normalise(pixels(1, SIZE))


def test_an_empty_text_is_zeros() -> None:
    raw = text_model("hf-bert").encoder(torch.tensor([[0] * 32, [7, 8, *[0] * 30]]))
    assert raw[0].tolist() == [0.0] * 32
    assert bool(raw.isfinite().all())
    assert bool(raw[1].any())


def test_all_weights_are_trained_in_a_split_model(folders: dict[str, Path]) -> None:
    model = build_model(f"hf-vit@{folders['vit']}", IMAGES, 24)
    assert all(p.requires_grad for p in model.parameters())
    assert not any("lora" in key for key in model.state_dict())


def test_places_in_the_key_models() -> None:
    name = "hf-vit@/some/folder-1.0/vit_b"
    assert resolve_models(f"cnn5, {name}") == ("cnn5", name)
    assert resolve_models(f"0={name}, *=hf-bert@org/name") == (name, "hf-bert@org/name")
    for text, message in (
        ("cnn5@x", r"'cnn5' loads no pretrained weights; those that do are hf-vit, hf-seg"),
        ("hf-vit@", r"no place after @; write hf-vit@FOLDER"),
    ):
        with pytest.raises(ModelError, match=message):
            resolve_models(text)


def test_mistakes_name_model_and_remedy(folders: dict[str, Path], tmp_path: Path) -> None:
    def refused(name: str, message: str, **changes: Any) -> None:
        arguments = {"task": "multilabel", "shape": IMAGES, **changes}
        with pytest.raises(ModelError, match=message) as error:
            build_task_model(name, feature_dim=8, **arguments)
        assert repr(name) in str(error.value)

    refused(f"hf-vit@{folders['bert']}", "holds a model of type 'bert', not 'vit'")
    refused(f"hf-vit@{tmp_path / 'gone'}", "there is no folder '.*gone' on this machine")
    refused("hf-vit@nobody/nothing", "is no folder on this machine, and the hub did not give it")
    refused(f"hf-vit@{tmp_path}", "no config.json; name a folder")
    coloured = InputShape(2, 28, 5)
    refused(f"hf-vit@{folders['vit']}", "reads images of 3 channels; give it", shape=coloured)

    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((folders["vit"] / "config.json").read_text())
    torch.save({}, pickled / "pytorch_model.bin")
    refused(f"hf-vit@{pickled}", r"no \*.safetensors file.*save_pretrained")

    partial = tmp_path / "partial"
    whole = hf().BertModel.from_pretrained(folders["bert"])
    state = {k: v for k, v in whole.state_dict().items() if "layer.1" not in k}
    whole.save_pretrained(partial, state_dict=state)
    with pytest.raises(ModelError, match=r"lacks 16 weights of BertModel, such as encoder.layer.1"):
        text_model(f"hf-bert@{partial}")
    with pytest.raises(ModelError, match=r"'hf-bert@.*no tokeniser; put its .*vocab.txt"):
        tokeniser_of(f"hf-bert@{partial}")
    (partial / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"'hf-bert@.*cannot be read .*copy it there again"):
        tokeniser_of(f"hf-bert@{partial}")
    (partial / "tokenizer.json").unlink()
    (partial / "vocab.txt").write_text("\n".join([*WORDS, *"bcdefghijkl"]) + "\n")
    with pytest.raises(ModelError, match=r"has 22 tokens and padding 0; at most the model's 20"):
        tokeniser_of(f"hf-bert@{partial}")


@torch.no_grad()
def test_a_hub_name_is_read_from_the_hubs_cache(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--someone--tiny-bert"
    snapshot = cached / "snapshots" / "0123"
    shutil.copytree(folders["bert"], snapshot)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    named, placed = "hf-bert@someone/tiny-bert", f"hf-bert@{folders['bert']}"
    tokens = torch.from_numpy(tokeniser_of(named)(SENTENCES))
    assert torch.equal(text_model(named).encoder(tokens), text_model(placed).encoder(tokens))
    (snapshot / "model.safetensors").unlink()  # as after a download that was cut short
    with pytest.raises(ModelError, match=r"'someone/tiny-bert' has no \*.safetensors file"):
        text_model(named)


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(libraries.importlib, "import_module", absent)
    with pytest.raises(ModelError, match=r"'hf-vit'.*transformers is missing.*wildflower\[hf\]"):
        build_task_model("hf-vit", "multilabel", IMAGES, 8)
