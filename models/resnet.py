"""ResNets that FedIN can cut, at any depth and width.

Sources: He et al., Deep Residual Learning (CVPR 2016); the family of five of FedIN (arXiv
2304.00759). Names, shapes and initialisation of the parameters are torchvision's, so its
checkpoints load; every key of a shallower net of the family exists, with the same shape, in every
deeper one. Written out here because the family needs depths, widths and a cut that torchvision does
not offer.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from models.base import ChannelBackbone, InputShape
from models.registry import register_model


class HeConv2d(nn.Conv2d):
    """Convolution without bias, initialised once as torchvision's ResNet does after the fact."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(
            inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False
        )

    def reset_parameters(self) -> None:
        """Draw the weights from He's normal distribution (fan out)."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Make the projection of a block whose input and output differ in shape, else None."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(HeConv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions: ``(N, inputs, s, s) -> (N, width, s/stride, s/stride)``."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = HeConv2d(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = HeConv2d(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        activated: Tensor = self.relu(out)
        return activated


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1: ``(N, inputs, s, s) -> (N, 4 width, s/stride, s/stride)``.

    The stride sits in the 3x3 convolution, as in torchvision (ResNet v1.5), not in the first 1x1.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = HeConv2d(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = HeConv2d(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = HeConv2d(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        activated: Tensor = self.relu(out)
        return activated


Depths = tuple[int, int, int, int]
"""Blocks in each of the four stages."""


class ResNet(ChannelBackbone):
    """Residual network: stem of stride 4, four stages, global average pooling.

    Parameters
    ----------
    shape : InputShape
        Only the image channels matter; any image size runs.
    block : type
        `BasicBlock` or `Bottleneck`.
    depths : tuple of four int
        Blocks per stage.
    width : int, default 64
        Channels of the stem and of the first stage; they double from stage to stage.
    """

    def __init__(
        self,
        shape: InputShape,
        block: type[BasicBlock | Bottleneck],
        depths: Depths,
        width: int = 64,
    ) -> None:
        super().__init__(raw_dim=8 * width * block.expansion)
        self.conv1 = HeConv2d(shape.channels, width, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        out = width * block.expansion  # channels after the first stage
        self.layer1 = _stage(block, width, width, depths[0], stride=1)
        self.layer2 = _stage(block, out, 2 * width, depths[1], stride=2)
        self.layer3 = _stage(block, 2 * out, 4 * width, depths[2], stride=2)
        self.layer4 = _stage(block, 4 * out, 8 * width, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def stem(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to ``(N, width, S/4, S/4)``, after the max pooling."""
        s_in: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return s_in

    def body(self, s: Tensor) -> Tensor:
        """Feature maps ``(N, width, S/4, S/4)`` to raw features ``(N, raw_dim)``."""
        out = self.layer4(self.layer3(self.layer2(self.layer1(s))))
        pooled: Tensor = self.avgpool(out)
        return pooled.flatten(1)

    def feature_levels(self) -> list[nn.Module]:
        """Return what computes the stem's maps and those of every stage but the last."""
        return [self.maxpool, self.layer1, self.layer2, self.layer3]


def _stage(
    block: type[BasicBlock | Bottleneck], inputs: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    """Make one stage; its first block changes channels and resolution."""
    outputs = width * block.expansion
    rest = [block(outputs, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(block(inputs, width, stride), *rest)


_FEDIN: dict[str, Depths] = {
    "resnet10": (1, 1, 1, 1),
    "resnet14": (1, 1, 2, 2),
    "resnet18": (2, 2, 2, 2),
    "resnet22": (2, 2, 3, 3),
    "resnet26": (3, 3, 3, 3),
}
_DEEP: dict[str, tuple[type[BasicBlock | Bottleneck], Depths]] = {
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}

for _name, _depths in _FEDIN.items():
    register_model(_name, description=f"ResNet, BasicBlock x {_depths}, FedIN's family")(
        partial(ResNet, block=BasicBlock, depths=_depths)
    )
for _name, _depths in _FEDIN.items():
    register_model(f"{_name}-w4", description=f"{_name} at a quarter of the widths")(
        partial(ResNet, block=BasicBlock, depths=_depths, width=16)
    )
for _name, (_block, _depths) in _DEEP.items():
    register_model(_name, description=f"ResNet, {_block.__name__} x {_depths}")(
        partial(ResNet, block=_block, depths=_depths)
    )
