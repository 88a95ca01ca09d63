"""Low-rank adapters on a frozen base, through peft.

Source: Hu et al., LoRA (ICLR 2022), rank 16 in FedMuscle. Adapters are scaled by 1 (alpha equal to
the rank); the weights beneath are frozen.
"""

from __future__ import annotations

import re

from torch import nn

from models.base import ModelError
from models.libraries import library


def add_adapters(net: nn.Module, rank: int, targets: list[str] | None = None) -> nn.Module:
    """Freeze a network and put low-rank adapters into it.

    Parameters
    ----------
    net : nn.Module
        Changed in place.
    rank : int
        Of the adapters; 0 changes nothing and leaves all weights to be trained.
    targets : list of str, optional
        Last parts of the names of the layers that get one; None: every linear map, and every
        convolution of 1x1 pixels that reads all channels, which is one too.

    Raises
    ------
    ModelError
        peft is missing, or the network has no such layer.
    """
    if not rank:
        return net
    chosen: list[str] | str | None = targets
    if chosen is None:
        names = [name for name, module in net.named_modules() if _is_linear(module)]
        if not names:
            raise ModelError(
                "it has no linear map and no 1x1 convolution to put adapters on; set lora-rank=0"
            )
        chosen = "|".join(map(re.escape, names))
    peft = library("peft")
    adapters = peft.LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=chosen)
    peft.inject_adapter_in_model(adapters, net)  # freezes all else
    return net


def _is_linear(module: nn.Module) -> bool:
    # Of these classes exactly: peft makes adapters of the layer's own class, and a subclass may
    # take other arguments or do something else with its weight.
    if type(module) is nn.Conv2d:
        return set(module.kernel_size) == {1} and module.groups == 1
    return type(module) is nn.Linear
