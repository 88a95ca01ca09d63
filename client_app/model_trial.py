"""One step of training with a user's own model, at the registration instead of in every round.

The models of Wildflower are proven by its tests and are not tried here. A model of the user's own
is built with weights, run, trained one step, saved and loaded in memory. All draws are private.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models import ModelError, TextShape, model_info
from models.build import blank
from strategies.base.client import ClientContext
from strategies.base.method import Method
from strategies.base.rng import derive_seed, isolated_torch_rng
from strategies.base.state import fill_module, separate_entries
from strategies.common.optimizers import keep_compiler_out, take_step

STEPS = 3
"""A layer that is left out at random gets a gradient in one of so many steps, as good as surely."""

ANY_NUMBER = "it must take any number of examples, in training and in evaluation mode"
KEEP = "keep all that it computes with in parameters and buffers, in the usual types"
"""Remedies."""

_TRIED: set[Hashable] = set()


def try_own_model(context: ClientContext, method: Method, skeleton: nn.Module) -> None:
    """Try a user's own model once in a process for every data shape and method.

    Parameters
    ----------
    context : ClientContext
        The client's, at the registration.
    method : Method
        The running method, whose client half builds the model.
    skeleton : nn.Module
        The model on the meta device; it is filled with weights here.

    Raises
    ------
    ModelError
        Naming the model, what failed, and the remedy.
    """
    info = model_info(context.model_name)
    if info.comes_with_wildflower or info.modality == "pair":  # its towers are tried when built
        return
    shape = (context.shape, context.data.num_classes)
    trial = (info.factory, method.name, context.data.task, shape, context.run.feature_dim)
    if trial not in _TRIED:
        Trial(context, method, skeleton).run()
        _TRIED.add(trial)


class Trial:
    """One model on trial; `run` raises `ModelError` for the first thing that does not work."""

    def __init__(self, context: ClientContext, method: Method, skeleton: nn.Module) -> None:
        self.context = context
        self.seed = derive_seed(context.run.seed, context.client_id, 0, "trial")
        self.skeleton = skeleton
        with self._step("building it with weights", "build it from shapes alone"):
            self.model: Any = _with_weights(context, method).to(context.device)

    def run(self) -> None:
        """Evaluate, train, save, load, and evaluate again."""
        self.model.eval()
        for count in (1, 2, 3):  # a left-over batch may be of any size
            self._forward(count, "evaluation")
        self.model.train()
        self._train()
        if not any(isinstance(layer, _BatchNorm) for layer in self.model.modules()):
            self._forward(1, "training")  # with BatchNorm a single left-over example is dropped
        self._save_and_load()

    def _train(self) -> None:
        named = {k: p for k, p in _own_part(self.model).named_parameters() if p.requires_grad}
        keep_compiler_out()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        unreached = set(named)
        for _ in range(STEPS):
            self._forward(2, "training")
            with self._step("a step of training", "its output must depend on its weights"):
                optimizer.zero_grad()
                self.model(self._inputs(2)).float().square().mean().backward()
                unreached -= {key for key, item in named.items() if item.grad is not None}
                take_step(optimizer)
            if not unreached:
                return
        raise self._error(
            f"training gives no gradient to {_some(unreached)}",
            "use them in forward, without detach() and no_grad(), or set requires_grad = False",
        )

    def _save_and_load(self) -> None:
        """Compare the model with one that has only what its saved state holds."""
        kept = self.model.state_dict()
        lost = [key for key, _ in self.model.named_buffers() if key not in kept]
        if lost:
            raise self._error(
                f"{_some(lost)} would be lost when the state is saved", "use persistent buffers"
            )
        strange = [key for key, item in kept.items() if not isinstance(item, Tensor)]
        if strange:
            raise self._error(
                f"{_some(strange)} of its state_dict is no tensor, so that it cannot be saved",
                "keep it in buffers instead of get_extra_state",
            )
        with self._step("saving and loading its state", KEEP):
            fill_module(self.skeleton, load(save(separate_entries(kept))))
        self.model.eval()
        expected, model = self._forward(2, "evaluation"), self.model
        self.model = self.skeleton.to(self.context.device).eval()
        found = self._forward(2, "evaluation of what was saved", KEEP)
        self.model = model
        if not torch.allclose(expected, found, rtol=1e-4, atol=1e-5):
            raise self._error("with its saved state it computes something else", KEEP)

    @torch.no_grad()
    def _forward(self, count: int, phase: str, remedy: str = ANY_NUMBER) -> Tensor:
        """Return the features of `count` examples, checked for shape and finiteness."""
        examples = f"{count} example{'s' * (count > 1)} in {phase}"
        with self._step(examples, remedy):
            found = _own_part(self.model)(self._inputs(count))
        wanted = count, self.model.raw_dim
        if not isinstance(found, Tensor) or tuple(found.shape) != wanted:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise self._error(f"{examples} gave {got}, expected a tensor {wanted}", remedy)
        if not (found.is_floating_point() and bool(found.isfinite().all())):
            raise self._error(
                f"{examples} gave {'NaN or infinite' if found.is_floating_point() else found.dtype}"
                " values",
                "look for a division by zero or by a deviation of one example, and for log(0)",
            )
        return found

    def _inputs(self, count: int) -> Tensor:
        """Make noise as images or numbers, or texts of one word: the same examples every time."""
        shape = self.context.shape
        if isinstance(shape, TextShape):
            return torch.ones(count, shape.length, dtype=torch.int64, device=self.context.device)
        size = tuple(blank(shape, torch.device("meta")).shape[1:])
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(count, *size, generator=generator).to(self.context.device)

    @contextmanager
    def _step(self, what: str, remedy: str) -> Iterator[None]:
        """Name the model and the step in whatever the user's code raises; draw privately."""
        try:
            with isolated_torch_rng(self.seed, self.context.device):
                yield
        except ModelError:
            raise
        except Exception as cause:  # a user's code may raise anything
            text = f"{what} failed ({type(cause).__name__}: {cause})"
            raise self._error(text, remedy) from cause

    def _error(self, problem: str, remedy: str) -> ModelError:
        return ModelError(f"model {self.context.model_name!r}: {problem}; {remedy}")


def _with_weights(context: ClientContext, method: Method) -> nn.Module:
    """Return the client's model as the method builds it, with weights."""
    model: nn.Module = method.client().build(context).model
    if any(item.is_meta for item in model.parameters()):  # its weights come from the server
        return context.build_model(context.config.mapping)
    return model


def _own_part(model: Any) -> nn.Module:
    """Return what the user's factory made, without what is put around it."""
    part: nn.Module = getattr(model, "backbone", None) or model.encoder
    return part


def _some(names: Any) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")
