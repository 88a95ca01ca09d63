"""Optimisers of torch without torch's compiler, which they import only to keep it out.

The first optimiser of a process, and its first step, import torch._dynamo: some 900 modules and
1.7 s of a core. On a device every message is answered by a new process, where this would be
a third of what a message costs. Nothing here changes what is computed.
"""

from __future__ import annotations

import inspect
import sys

import torch
from torch.optim import Optimizer

COMPILER = "torch._dynamo"
_DECLINED = "__dynamo_disable"
"""Where torch's wrapper looks for the function that does the same outside the compiler."""


def keep_compiler_out() -> None:
    """Spare the import when the next optimiser is made; to be called before that."""
    if COMPILER in sys.modules:
        return
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        function = inspect.unwrap(getattr(Optimizer, name))
        if not hasattr(function, _DECLINED):
            setattr(function, _DECLINED, function)


def take_step(optimizer: Optimizer) -> None:
    """Do what `optimizer.step()` does, for an optimiser that has no hooks."""
    if COMPILER in sys.modules:
        optimizer.step()
        return
    # Torch's wrappers switch gradients off, and call the compiler and hooks, if there are any.
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)
