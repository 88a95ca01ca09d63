"""Optimisers of torch: how they are made, what lasts of them, and none of torch's compiler.

Adam and AdamW take a step in one pass over a parameter (torch's `fused`), a sixth to two fifths of
the time on a CPU: with the gradient, a step of CNN-1 (16 images) takes 9.6 ms instead of 16.8, of a
ResNet18 (32 images) 130 instead of 154. SGD without momentum gains nothing.

The first optimiser of a process, and its first step, import torch._dynamo: some 900 modules and
1.7 to 3.6 s of a core. On a device every message is answered by a new process, where this would
be a third of what a message costs. Keeping it out changes nothing of what is computed.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from strategies.base.client import ClientContext
from strategies.base.kept import Kept

COMPILER = "torch._dynamo"
_DECLINED = "__dynamo_disable"
"""Where torch's wrapper looks for the function that does the same outside the compiler."""


def keep_compiler_out() -> None:
    """Spare the import when the next optimiser is made; to be called before that."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        decline_compiler(getattr(Optimizer, name))


def decline_compiler(wrapped: Callable[..., Any]) -> None:
    """Spare the import when a function is called that torch has wrapped against its compiler."""
    function = inspect.unwrap(wrapped)
    if COMPILER not in sys.modules and not hasattr(function, _DECLINED):
        setattr(function, _DECLINED, function)


def take_step(optimizer: Optimizer) -> None:
    """Do what `optimizer.step()` does, for an optimiser that has no hooks."""
    if optimizer.defaults.get("fused"):
        _lay_out_gradients(optimizer)
    if COMPILER in sys.modules:
        optimizer.step()
        return
    # Torch's wrappers switch gradients off, and call the compiler and hooks, if there are any.
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def make_adam(
    kind: type[torch.optim.Adam], parameters: Iterable[nn.Parameter], **settings: Any
) -> torch.optim.Adam:
    """Return an Adam or AdamW for `take_step`, fused where torch can."""
    parameters = list(parameters)
    keep_compiler_out()
    return kind(parameters, fused=all(map(_can_fuse, parameters)), **settings)


def _can_fuse(parameter: nn.Parameter) -> bool:
    """Whether torch has a fused step for it: dense floating-point numbers on a CPU or with CUDA."""
    dense = torch.empty_like(parameter).stride() == parameter.stride()
    return dense and parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda")


def _lay_out_gradients(optimizer: Optimizer) -> None:
    """Give gradients the memory layout of their parameters, which autograd does and others may not.

    On a CPU, torch 2.14 pairs both up as they lie in memory, and says nothing where they differ.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)


def make_optimizer(
    context: ClientContext, parameters: Sequence[nn.Parameter], lr_factor: float = 1.0
) -> torch.optim.Optimizer:
    """Return a fresh optimiser: the run's settings where they are given, else the method's.

    Its rate is `learning_rate`'s.
    """
    settings, decay = context.run.training, context.run.training.weight_decay
    lr = learning_rate(context, lr_factor)
    if settings.optimizer == "sgd":
        keep_compiler_out()
        momentum = settings.momentum
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return make_adam(kind, parameters, lr=lr, weight_decay=decay)


def learning_rate(context: ClientContext, lr_factor: float = 1.0) -> float:
    """Return the learning rate of the round: the run's or the method's, by `lr-schedule`."""
    run = context.run
    return lr_factor * run.training.lr * run.lr_by_round.share(context.server_round)


def optimizer_state(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> dict[str, Tensor]:
    """Return moments and step counts by the parameter's number and their name, uncopied.

    Of SGD the momentum; nothing where there is none.
    """
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(parameters)
        for name, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], entries: Mapping[str, Tensor]
) -> None:
    """Give a fresh optimiser the entries of `optimizer_state`; none leave it as it is.

    Nothing is aliased. Moments go to their parameter's device and take its memory layout,
    without which a step is slower.
    """
    for key, value in entries.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        if name == "step":  # the count of steps stays on the CPU, unless the step is fused
            place = parameter.device if optimizer.defaults.get("fused") else "cpu"
            optimizer.state[parameter][name] = value.to(place, copy=True)
        else:
            optimizer.state[parameter][name] = torch.empty_like(parameter).detach().copy_(value)


class KeptOptimizer:
    """The optimiser of one training, with what the client's last training of this kind left.

    A kind is known by the shapes of what is trained and, where a message trains equal shapes
    several times, by the how manieth time it is. So the exchanges of a round, and rounds with
    others between them, go on with one state.
    """

    def __init__(
        self, kept: Kept, optimizer: Optimizer, parameters: Sequence[nn.Parameter]
    ) -> None:
        shapes = ";".join(str(tuple(p.shape)) for p in parameters)
        kind = hashlib.sha256(shapes.encode()).hexdigest()[:12]
        number = kept.trained[kind] = kept.trained.get(kind, 0) + 1
        self._prefix = f"{kind}-{number}/"
        self._kept, self._optimizer, self._parameters = kept, optimizer, parameters
        start = len(self._prefix)
        entries = kept.optimizers.items()
        own = {key[start:]: item for key, item in entries if key.startswith(self._prefix)}
        restore_optimizer(optimizer, parameters, own)

    def keep(self) -> list[str]:
        """Keep the state as it is now; return the entries that hold NaN or infinite values."""
        entries = optimizer_state(self._optimizer, self._parameters)
        self._kept.optimizers |= {self._prefix + key: item for key, item in entries.items()}
        return [key for key, item in entries.items() if not bool(item.isfinite().all())]
