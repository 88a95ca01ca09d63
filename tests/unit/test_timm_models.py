"""Models of the extra ``timm``: names, weights from a file, segmentation, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from data import normalise
from models import (
    InputShape,
    ModelError,
    build_model,
    build_task_model,
    libraries,
    model_info,
    resolve_models,
    timm_models,
)
from strategies.fedin.features import feature_shape
from tests.unit.layerwise_support import a_server

ROOT = Path(__file__).parents[2]
IMAGES = InputShape(3, 32, 5)
VIT, CNN = "timm/test_vit", "timm/test_resnet"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files as timm writes them, with a classifier for 7 classes; test_vit's are for 160 pixels."""
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(1)
    found = {}
    for name in (VIT, CNN):
        net = timm.create_model(name.removeprefix(timm_models.PREFIX), num_classes=7)
        for parameter in net.parameters():  # some start as zeros: spread them
            torch.nn.init.normal_(parameter, std=0.1)
        found[name] = folder / f"{name.partition('/')[2]}.safetensors"
        save_file(net.state_dict(), found[name])
    return found


def pixels(channels: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, channels, size, size), dtype=torch.uint8, generator=generator)


@torch.no_grad()
@pytest.mark.parametrize(("name", "size"), [(VIT, 160), (CNN, 32)])
def test_features_of_a_file_equal_timms_own(name: str, size: int, weights: dict[str, Path]) -> None:
    import timm

    theirs = timm.create_model(name.removeprefix(timm_models.PREFIX), num_classes=7).eval()
    theirs.load_state_dict(load_file(weights[name]))
    settings = theirs.pretrained_cfg
    mean, deviation = (torch.tensor(settings[key]).view(-1, 1, 1) for key in ("mean", "std"))
    raw = pixels(3, size)
    expected = theirs.forward_head(
        theirs.forward_features((raw / 255 - mean) / deviation), pre_logits=True
    )
    model = build_model(f"{name}@{weights[name]}", InputShape(3, size, 5), 16).eval()
    torch.testing.assert_close(model.backbone(normalise(raw)), expected, rtol=1e-4, atol=1e-4)
    assert all(parameter.requires_grad for parameter in model.parameters())
    grey = build_model(f"{name}@{weights[name]}", InputShape(1, size, 5), 16).eval()
    grey_raw = pixels(1, size)
    torch.testing.assert_close(
        grey.backbone(normalise(grey_raw)), model.backbone(normalise(grey_raw.repeat(1, 3, 1, 1)))
    )


def test_weights_that_do_not_fit_are_named(weights: dict[str, Path], tmp_path: Path) -> None:
    def refused(name: str, message: str, shape: InputShape = IMAGES) -> None:
        with pytest.raises(ModelError, match=message) as error:
            build_model(name, shape)
        assert repr(name) in str(error.value)

    refused(f"{VIT}@{weights[VIT]}", r"pos_embed is \(1, .*if they are for .*set image-size=160")
    refused(f"{CNN}@{weights[VIT]}", r"lack \d+ entries, such as bn1.bias.*weights of another mod")
    refused(f"{CNN}@{tmp_path / 'gone.safetensors'}", "there is no file .*copy the weights there")
    refused(f"{CNN}@{tmp_path}", r"is no \*.safetensors file, and other formats can hold code")
    refused(f"{CNN}@{weights[CNN]}", "reads images of 3 channels", InputShape(2, 32, 5))
    state = load_file(weights[CNN])
    save_file({**state, "more.weight": torch.ones(1)}, tmp_path / "more.safetensors")
    refused(f"{CNN}@{tmp_path}/more.safetensors", "have unknown 1 entries, such as more.weight")
    state["conv1.0.weight"] = state["conv1.0.weight"][:1].clone()
    save_file(state, tmp_path / "cut.safetensors")
    refused(f"{CNN}@{tmp_path}/cut.safetensors", r"conv1.0.weight is \(1, .*, the model has \(")
    (tmp_path / "bad.safetensors").write_bytes(b"damaged")
    refused(f"{CNN}@{tmp_path}/bad.safetensors", "cannot be read .*copy it there again")


def test_a_frozen_base_keeps_weights_and_statistics(weights: dict[str, Path]) -> None:
    name = f"{CNN}@{weights[CNN]}"
    model = build_task_model(name, "multilabel", IMAGES, 8, lora_rank=2, seed=0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):  # A moves from the second step on, because B starts at zero
        optimizer.zero_grad()
        model.train()(normalise(pixels(3, 32))).square().sum().backward()
        optimizer.step()
    moved = {k for k, value in model.state_dict().items() if not torch.equal(value, before[k])}
    adapters = {key for key in before if "lora_" in key}
    assert {key for key in adapters if "lora_B" in key} <= moved
    assert moved <= adapters | {"head.weight", "head.bias"}
    whole = build_task_model(name, "multilabel", IMAGES, 8, lora_rank=0)
    assert all(parameter.requires_grad for parameter in whole.parameters())
    # Random weights are never frozen, whatever lora-rank says.
    fresh = build_task_model(CNN, "multilabel", IMAGES, 8, lora_rank=2)
    assert all(parameter.requires_grad for parameter in fresh.parameters())


@pytest.mark.parametrize("name", [CNN, VIT, "timm/test_convnext", "timm/mobilenetv4_conv_small"])
def test_feature_maps_segment(name: str) -> None:
    pytest.importorskip("timm", reason="needs the extra timm")
    shape = InputShape(1, 64, 3)
    model = build_task_model(name, "segmentation@scenes", shape, 8, seed=0)
    x = normalise(pixels(1, 64))
    logits = model(x)
    assert logits.shape == (2, 4, 64, 64)
    (logits.mean() + model.represent(x).sum()).backward()
    assert not [key for key, item in model.named_parameters() if item.grad is None]
    with torch.device("meta"):
        copy = build_task_model(name, "segmentation@scenes", shape, 8)
    copy.load_state_dict(model.state_dict(), assign=True)
    with torch.no_grad():
        assert torch.equal(copy.eval()(x), model.eval()(x))
        maps = model.encoder.maps(x)
        torch.testing.assert_close(maps.mean((2, 3)), model.encoder(x))


def test_weights_of_a_file_segment_too(weights: dict[str, Path]) -> None:
    name = f"{CNN}@{weights[CNN]}"
    model = build_task_model(name, "segmentation", IMAGES, 8, lora_rank=2)
    assert model(normalise(pixels(3, 32))).shape == (2, 6, 32, 32)
    stored = load_file(weights[CNN])["conv1.0.weight"]
    assert torch.equal(model.encoder.net.net.conv1[0].weight, stored)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm/resnet18dd", r"unknown to timm .*did you mean timm/resnet18d .*wildflower models"),
        ("timm/qqqqqqq", r"unknown to timm [\d.]+\w*; list its models with"),
        ("timm/resnet18d.no_tag", "knows no weights 'no_tag' of resnet18d; its tags are ra2_in1k"),
        ("timm/hf-hub:someone/x", "write timm/NAME with a name of timm"),
        ("timm/", "write timm/NAME with a name of timm"),
        ("timm/resnet18d@", "no place after @; write timm/resnet18d@WEIGHTS.safetensors, or timm"),
        ("timm/convit_tiny", "cannot be used here: it changes its own state"),
        ("other/resnet18", "'other/resnet18' is unknown"),
    ],
)
def test_mistaken_names_say_what_to_do(name: str, message: str) -> None:
    pytest.importorskip("timm", reason="needs the extra timm")
    with pytest.raises(ModelError, match=message):
        model_info(name)


def test_names_in_the_key_models() -> None:
    pytest.importorskip("timm", reason="needs the extra timm")
    text = "timm/resnet18d, cnn1, timm/resnet18d.ra2_in1k@/some/place-1.safetensors"
    assert resolve_models(text) == tuple(text.split(", "))


def test_what_cannot_be_cut_is_refused_by_name() -> None:
    pytest.importorskip("timm", reason="needs the extra timm")
    with torch.device("meta"):
        model = build_model(CNN, IMAGES)
    with pytest.raises(ModelError, match=f"model {CNN} cannot be cut after its stem"):
        feature_shape(model, IMAGES)


def test_unlike_architectures_are_averaged_apart_or_refused_by_name() -> None:
    pytest.importorskip("timm", reason="needs the extra timm")
    models = {0: CNN, 1: "timm/mobilenetv3_small_050"}
    apart = a_server(models)
    assert not apart.state.layerwise
    assert {key.split("/backbone")[0] for key in apart.state.weights} >= set(models.values())
    with pytest.raises(Exception, match=rf"in {CNN}\b.* cannot be averaged by layer"):
        a_server(models, fedavg__aggregation="layerwise")


def test_timm_is_not_imported_unless_named() -> None:
    code = (
        "import sys, client_app.app, server_app.app; from models import *; list_models();"
        "resolve_models('cnn5, lite0, minilm, hf-vit'); build_model('cnn5', InputShape(3, 32, 10));"
        "names = {'timm', 'transformers', 'peft', 'efficientnet_lite_pytorch'};"
        "found = names & set(sys.modules); sys.exit(str(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(libraries.importlib, "import_module", absent)
    monkeypatch.setattr(timm_models, "is_installed", lambda name: False)
    assert resolve_models("timm/some_model") == ("timm/some_model",)  # a client may have it
    with pytest.raises(ModelError, match=r"'timm/some_model'.*timm is missing.*wildflower\[timm\]"):
        build_model("timm/some_model", IMAGES)
