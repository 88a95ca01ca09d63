"""Models without weights: what is built inside `skeleton` has shapes and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

_FILLS = frozenset({
    Tensor.normal_, Tensor.uniform_, Tensor.log_normal_, Tensor.exponential_, Tensor.cauchy_,
    Tensor.bernoulli_, Tensor.geometric_, Tensor.random_, Tensor.erfinv_, Tensor.clamp_,
    Tensor.fill_, Tensor.zero_,
    nn.init.normal_, nn.init.uniform_, nn.init.constant_, nn.init.kaiming_uniform_,
})  # fmt: skip
"""What initial values are drawn with; a clamp and erfinv make a truncated normal.

Torch offers a mode the four functions, too, and then not the methods that they call.
"""


_CPU = torch.device("cpu")


class _Unfilled(TorchFunctionMode):
    """Leave out what would fill a tensor that has no memory.

    For some of these torch imports its compiler: 900 modules and 3.6 s of a core in every process
    that answers a device's message.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        filled = args[0] if args else named.get("tensor")
        if func in _FILLS and isinstance(filled, Tensor) and filled.is_meta:
            return filled
        return func(*args, **named)


@contextmanager
def skeleton() -> Iterator[None]:
    """Build modules inside for their shapes alone, on the meta device.

    Nothing is allocated or initialised, and no stream of random numbers moves. To fill a module
    with weights that exist, call ``load_state_dict(weights, assign=True)`` afterwards.
    """
    with torch.device("meta"), _Unfilled():
        yield


class _Method(nn.Module):
    """A method of a module, as a module's forward pass."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, inputs: Tensor) -> Any:
        return getattr(self.module, self.method)(inputs)


def run_blank(
    module: nn.Module, blank: Callable[[torch.device], Tensor], method: str = "__call__"
) -> Any:
    """Run a module without gradients; a skeleton runs on the CPU, with zeros for its weights.

    The zeros of all parameters take no memory. On the meta device itself a forward pass would
    import torch's compiler; only a module with tensors that are neither parameters nor buffers has
    to run there.

    Parameters
    ----------
    module : nn.Module
        What is run, in the mode that it is in.
    blank : callable
        Makes the input on a device.
    method : str, optional
        Which of the module's methods is run.

    Raises
    ------
    Exception
        Whatever the module raises.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    device = next((p.device for p in (*parameters.values(), *buffers.values())), _CPU)
    with torch.no_grad():
        if device.type != "meta" or _hides_tensors(module):
            return getattr(module, method)(blank(device))
        with _CPU:
            zeros = {key: _zero(item).expand(item.shape) for key, item in parameters.items()}
            zeros |= {key: _zero(item).repeat(item.shape) for key, item in buffers.items()}
            named = {f"module.{key}": item for key, item in zeros.items()}
            return functional_call(_Method(module, method), named, (blank(_CPU),))


def _hides_tensors(module: nn.Module) -> bool:
    return any(isinstance(x, Tensor) for part in module.modules() for x in vars(part).values())


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=like.dtype)
