"""ViT, SegFormer, BERT and DistilBERT from transformers, with low-rank adapters through peft.

Sources: Dosovitskiy et al. (ICLR 2021), Xie et al. (SegFormer, NeurIPS 2021), Devlin et al. (BERT,
NAACL 2019), Sanh et al. (DistilBERT, 2019), the families FedMuscle names; Hu et al., LoRA (ICLR
2022), rank 16 in FedMuscle. Adapters sit on the queries and values of every attention, scaled by 1
(alpha equal to the rank); the weights beneath are frozen.

``hf-vit`` alone is a tiny network with random weights, for tests and trials: 2 blocks of width 32
(SegFormer: 4 stages of one block, widths 16 to 64). With a random base, train all of it:
``lora-rank = 0``. ``hf-vit@PLACE`` loads pretrained weights, see `models.pretrained`. All dropout
is switched off. The state dict holds base and adapters: a saved state never needs the place's
weights again, only its small files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.base import Backbone, InputShape, ModelError, TextShape
from models.pretrained import Pixels, library, load_network, pixels_of, settings_of
from models.registry import register_model
from models.text import mean_of_tokens, unattended

_ATTENTION = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin")
"""What the families call their queries and values, in older and newer releases."""

_NO_DROPOUT: dict[str, dict[str, float]] = {
    "vit": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "segformer": {
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
    },
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "distilbert": {"dropout": 0.0, "attention_dropout": 0.0},
}


class ImageNetwork(Backbone):
    """A network of transformers for images, with their preparation in front.

    Images have pixels in [-1, 1]. Where the network was pretrained they are given three channels,
    enlarged or reduced to its own size, and normalised as its image processor would.
    """

    mean: Tensor | None
    deviation: Tensor | None

    def __init__(
        self, net: nn.Module, raw_dim: int, channels: int, size: int | None, pixels: Pixels
    ) -> None:
        super().__init__(raw_dim)
        self.net = net
        self.channels, self.size = channels, size
        for name, values in (("mean", pixels.mean), ("deviation", pixels.deviation)):
            constant = None if values is None else torch.tensor(values).view(-1, 1, 1)
            self.register_buffer(name, constant)

    def prepare(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to what the network was trained on."""
        if x.shape[1] == 1 and self.channels > 1:
            x = x.expand(-1, self.channels, -1, -1)
        if self.size is not None and x.shape[-1] != self.size:
            shrinks = x.shape[-1] > self.size
            size = (self.size, self.size)
            x = F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=shrinks)
        if self.mean is not None and self.deviation is not None:
            x = ((x + 1) / 2 - self.mean) / self.deviation
        return x


class ViT(ImageNetwork):
    """ViTModel; the raw feature is the class token's, after the last norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``."""
        hidden: Tensor = self.net(self.prepare(x)).last_hidden_state
        return hidden[:, 0]


class SegFormer(ImageNetwork):
    """SegformerModel and a decoder after its all-linear one, which is never pretrained.

    Every stage is brought to ``raw_dim`` channels by a linear map and enlarged to the first stage's
    size, a quarter of the image's; their sum is normalised in groups instead of batches, and
    rectified. The original concatenates and maps once more, which is a sum of linear maps as well.
    """

    def __init__(self, net: nn.Module, raw_dim: int, widths: list[int], *rest: Any) -> None:
        super().__init__(net, raw_dim, *rest)
        self.decode = nn.ModuleList(nn.Conv2d(width, raw_dim, 1) for width in widths)
        self.norm = nn.GroupNorm(math.gcd(8, raw_dim), raw_dim)

    def maps(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to feature maps ``(N, raw_dim, S/4, S/4)``."""
        stages = self.net(self.prepare(x), output_hidden_states=True).hidden_states
        size = stages[0].shape[2:]
        total: Tensor = self.decode[0](stages[0])
        for decode, stage in zip(list(self.decode)[1:], stages[1:], strict=True):
            total = total + F.interpolate(decode(stage), size, mode="bilinear", align_corners=False)
        return F.relu(self.norm(total))

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``, the mean of `maps`."""
        return self.maps(x).mean((2, 3))


class TextNetwork(Backbone):
    """BertModel or DistilBertModel; the raw feature is the mean over tokens that are no padding."""

    def __init__(self, net: nn.Module, raw_dim: int) -> None:
        super().__init__(raw_dim)
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids ``(N, T)`` to raw features ``(N, raw_dim)``; zeros for an empty text."""
        # What is added to the attention scores (N, heads, T, T). From a mask of zeros and ones
        # transformers would make the same, but looks at its values, which the meta device has not.
        mask = torch.zeros(tokens.shape, device=tokens.device)
        mask = mask.masked_fill(unattended(tokens), torch.finfo(mask.dtype).min)[:, None, None]
        hidden = self.net(input_ids=tokens, attention_mask=mask).last_hidden_state
        return mean_of_tokens(hidden, tokens)


def _configure(family: str, config: str, place: str, tiny: dict[str, Any]) -> Any:
    """Make the configuration: a tiny one, or the place's; without dropout, with plain attention."""
    kind = getattr(library("transformers"), config)
    values = settings_of(place, family) if place else tiny
    # Plain attention is deterministic on every device, and the counter of operations sees it.
    return kind.from_dict({**values, **_NO_DROPOUT[family]}, attn_implementation="eager")


def _finish(net: nn.Module, lora_rank: int) -> nn.Module:
    """Add adapters, and make the buffers part of the state."""
    for module in net.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, buffer.clone(), persistent=True)
    if lora_rank:
        peft = library("peft")
        adapters = peft.LoraConfig(
            r=lora_rank, lora_alpha=lora_rank, lora_dropout=0.0, target_modules=list(_ATTENTION)
        )
        peft.inject_adapter_in_model(adapters, net)  # freezes all else
    return net


def _network(place: str, name: str, config: Any, lora_rank: int, **extra: Any) -> nn.Module:
    network = getattr(library("transformers"), name)
    return _finish(load_network(place, network, config, **extra), lora_rank)


def _channels(config: Any, shape: InputShape, place: str) -> int:
    channels = int(config.num_channels)
    if shape.channels not in (1, channels):
        raise ModelError(
            f"{place!r} reads images of {channels} channels; give it those, or grey ones"
        )
    return channels


@register_model("hf-vit", description="ViT of transformers, extra hf", pretrained=True)
def vit(shape: InputShape, *, place: str = "", lora_rank: int = 0) -> Backbone:
    """Build ViT; images are brought to the size it was pretrained on."""
    tiny = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "num_channels": shape.channels,
        "image_size": shape.image_size,
        "patch_size": math.ceil(shape.image_size / 8),
    }
    config = _configure("vit", "ViTConfig", place, tiny)
    net = _network(place, "ViTModel", config, lora_rank, add_pooling_layer=False)
    pixels = pixels_of(place) if place else Pixels()
    return ViT(
        net, config.hidden_size, _channels(config, shape, place), int(config.image_size), pixels
    )


@register_model("hf-segformer", description="SegFormer of transformers, extra hf", pretrained=True)
def segformer(shape: InputShape, *, place: str = "", lora_rank: int = 0) -> Backbone:
    """Build SegFormer; images are brought to the size that its image processor names, if any."""
    tiny = {
        "num_channels": shape.channels,
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [16, 32, 48, 64],
        "num_attention_heads": [1, 2, 3, 4],
        "sr_ratios": [2, 2, 1, 1],
        "decoder_hidden_size": 64,
    }
    config = _configure("segformer", "SegformerConfig", place, tiny)
    net = _network(place, "SegformerModel", config, lora_rank)
    pixels = pixels_of(place) if place else Pixels()
    channels = _channels(config, shape, place)
    return SegFormer(
        net, config.decoder_hidden_size, config.hidden_sizes, channels, pixels.size, pixels
    )


def _text(family: str, prefix: str, tiny: dict[str, Any], **extra: Any) -> Callable[..., Backbone]:
    """Return the factory of a family of text models."""

    def factory(shape: TextShape, *, place: str = "", lora_rank: int = 0) -> Backbone:
        sizes = {"vocab_size": shape.vocabulary, "max_position_embeddings": shape.length}
        config = _configure(family, f"{prefix}Config", place, {**sizes, **tiny})
        for name, wanted in sizes.items():
            if wanted > getattr(config, name):
                raise ModelError(
                    f"{place!r} has {name} {getattr(config, name)}, below the data's {wanted}; use "
                    "models.text_shape_of and models.tokeniser_of for this model"
                )
        net = _network(place, f"{prefix}Model", config, lora_rank, **extra)
        return TextNetwork(net, config.hidden_size)

    return factory


register_model(
    "hf-bert", description="BERT of transformers, extra hf", modality="text", pretrained=True
)(
    _text(
        "bert",
        "Bert",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
        },
        add_pooling_layer=False,
    )
)
register_model(
    "hf-distilbert",
    description="DistilBERT of transformers, extra hf",
    modality="text",
    pretrained=True,
)(
    _text(
        "distilbert",
        "DistilBert",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    )
)
