"""GoogLeNet, MobileNetV2 and Vision Transformers from torchvision, without their last layer.

torchvision is imported when such a model is built, not before: it costs every worker process about
a second. Dropout that torchvision applies before its last layer is part of the backbone.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from models.base import Backbone, InputShape
from models.registry import register_model


class WrappedBackbone(Backbone):
    """A network that returns raw features, with zero padding of the images in front.

    Parameters
    ----------
    net : nn.Module
        Images to raw features ``(N, raw_dim)``.
    raw_dim : int
        Width of the features.
    padding : int, default 0
        Pixels added to height and width together, half on each side.
    """

    def __init__(self, net: nn.Module, raw_dim: int, padding: int = 0) -> None:
        super().__init__(raw_dim)
        self.net = net
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``."""
        if self.padding:
            before, after = self.padding // 2, self.padding - self.padding // 2
            x = F.pad(x, (before, after, before, after))
        raw: Tensor = self.net(x)
        return raw


def _with_channels(conv: nn.Conv2d, channels: int) -> nn.Conv2d:
    """Return the first convolution for images with this many channels.

    A new one has He's normal initialisation (fan out), which does not depend on the channels.
    """
    if conv.in_channels == channels:
        return conv
    # One by one: nn.Conv2d stores these as tuples, its constructor takes ints or pairs.
    kernel, stride, padding = conv.kernel_size, conv.stride, conv.padding
    fresh = nn.Conv2d(
        channels,
        conv.out_channels,
        (kernel[0], kernel[1]),
        (stride[0], stride[1]),
        padding if isinstance(padding, str) else (padding[0], padding[1]),
        bias=conv.bias is not None,
    )
    nn.init.kaiming_normal_(fresh.weight, mode="fan_out", nonlinearity="relu")
    if fresh.bias is not None:
        nn.init.zeros_(fresh.bias)
    return fresh


@register_model("googlenet", description="GoogLeNet without auxiliary heads (torchvision)")
def googlenet(shape: InputShape) -> Backbone:
    """Build GoogLeNet's feature extractor, ``raw_dim`` 1024."""
    from torchvision.models import GoogLeNet

    # init_weights=True draws through scipy's truncated normal, many seconds for the same effect:
    # every convolution is followed by BatchNorm.
    net = GoogLeNet(num_classes=1, aux_logits=False, init_weights=False)
    net.conv1.conv = _with_channels(net.conv1.conv, shape.channels)
    net.fc = nn.Identity()
    return WrappedBackbone(net, raw_dim=1024)


@register_model("mobilenetv2", description="MobileNetV2 (torchvision)")
def mobilenetv2(shape: InputShape) -> Backbone:
    """Build MobileNetV2's feature extractor, ``raw_dim`` 1280."""
    from torchvision.models import MobileNetV2

    net = MobileNetV2(num_classes=1)
    net.features[0][0] = _with_channels(net.features[0][0], shape.channels)
    net.classifier[1] = nn.Identity()
    return WrappedBackbone(net, raw_dim=net.last_channel)


def vision_transformer(shape: InputShape, patch_size: int) -> Backbone:
    """Build a ViT-Base feature extractor for the actual image size, ``raw_dim`` 768.

    Images whose size is no multiple of the patch are padded with zeros, so 28 pixels and patches
    of 16 give 2x2 patches.
    """
    from torchvision.models import VisionTransformer

    width = 768
    padding = -shape.image_size % patch_size
    net = VisionTransformer(
        image_size=shape.image_size + padding,
        patch_size=patch_size,
        num_layers=12,
        num_heads=12,
        hidden_dim=width,
        mlp_dim=4 * width,
        num_classes=1,
    )
    net.conv_proj = _with_channels(net.conv_proj, shape.channels)
    net.heads = nn.Identity()
    return WrappedBackbone(net, width, padding)


for _patch in (16, 32):
    register_model(
        f"vit-b{_patch}", description=f"ViT-Base, {_patch}x{_patch} patches (torchvision)"
    )(partial(vision_transformer, patch_size=_patch))
