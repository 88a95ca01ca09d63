"""LPIPS with weights from a file; those of ImageNet cannot be had here, so that they are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from deploy.attack.perceptual import Perceptual
from deploy.cli import main
from models.base import ModelError

pytest.importorskip("lpips", reason="needs the extra attack")

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 32, 32)).astype(np.uint8)
Weights = dict[str, torch.Tensor]


def near(image: np.ndarray, by: int) -> np.ndarray:
    """Return an image with noise of so many bytes at most."""
    noise = np.random.default_rng(1).integers(-by, by + 1, image.shape)
    return np.clip(image.astype(int) + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def weights() -> Weights:
    """AlexNet's convolutions as torchvision initialises them, and an entry of its classifier."""
    from torchvision.models import alexnet

    torch.manual_seed(0)
    found = alexnet(weights=None).features.state_dict(prefix="features.")
    return {**found, "classifier.1.weight": torch.zeros(1)}


@pytest.fixture(scope="module")
def metric(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Perceptual:
    path = tmp_path_factory.mktemp("alexnet") / "alexnet.pth"
    torch.save(weights, path)
    return Perceptual(path)


def test_it_grows_with_the_difference(metric: Perceptual) -> None:
    assert metric.distance(IMAGE, IMAGE) == 0
    values = [metric.distance(near(IMAGE, by), IMAGE) for by in (10, 40, 160)]
    assert 0 < values[0] < values[1] < values[2]


def test_it_is_what_the_library_makes_of_the_same_weights(
    metric: Perceptual, weights: Weights
) -> None:
    """On images that are large enough, by the library's own way to fill its trunk."""
    import lpips

    net = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)
    for name, parameter in net.net.named_parameters():
        _, place, kind = name.split(".")
        parameter.data.copy_(weights[f"features.{place}.{kind}"])
    one = np.kron(IMAGE, np.ones((1, 3, 3), np.uint8))
    other = near(one, 30)
    pair = (torch.from_numpy(image).float()[None] / 127.5 - 1 for image in (one, other))
    with torch.no_grad():
        assert metric.distance(one, other) == pytest.approx(net(*pair).item(), rel=1e-5)


def test_grey_and_small_images(metric: Perceptual) -> None:
    grey = IMAGE[:1, :8, :8]
    other = near(grey, 50)
    found = metric.distance(grey, other)
    in_colours = (np.repeat(image, 3, axis=0) for image in (grey, other))
    assert found == pytest.approx(metric.distance(*in_colours), rel=1e-5)
    assert found > 0


def test_safetensors_are_read_alike(metric: Perceptual, weights: Weights, tmp_path: Path) -> None:
    save_file(weights, tmp_path / "alexnet.safetensors")
    same = Perceptual(tmp_path / "alexnet.safetensors")
    assert same.distance(near(IMAGE, 30), IMAGE) == metric.distance(near(IMAGE, 30), IMAGE)


def test_other_files_are_refused_by_name(
    weights: Weights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.pth").write_text("no weights")
    torch.save(torch.zeros(1), tmp_path / "one.pth")
    torch.save({name: weights[name] for name in list(weights)[1:]}, tmp_path / "part.pth")
    for name, said in (
        ("none.pth", "there is no file"),
        ("text.pth", "is no file of tensors alone"),
        ("one.pth", "holds no weights by name"),
        ("part.pth", "lack 1 entries.*torchvision's AlexNet"),
    ):
        with pytest.raises(ModelError, match=said):
            Perceptual(tmp_path / name)
    # Before the run is looked at
    assert main(["attack", str(tmp_path), "--lpips", str(tmp_path / "none.pth")]) == 2
    assert "--lpips: there is no file" in capsys.readouterr().err
