"""The local training loop and the passes over local data that methods share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from data import Split, normalise
from models import SplitModel
from strategies.base.client import ClientContext
from strategies.base.kept import GROWTH, loss_growth
from strategies.base.run_config import RunConfig
from strategies.common.augmentation import augment
from strategies.common.flops import StepFlops
from strategies.common.losses import LossFunction
from strategies.common.optimizers import KeptOptimizer, learning_rate, make_optimizer, take_step

GradientHook = Callable[[], dict[str, Tensor]]
"""Called between the backward pass and the optimiser's step; may change gradients, and returns
named values of the step to be recorded."""

EVALUATION_BATCH = 256


class Place(Protocol):
    """Where something is computed, and for which run; a `ClientContext` is one."""

    @property
    def run(self) -> RunConfig:
        """The run's configuration."""

    @property
    def device(self) -> torch.device:
        """The device."""


class TrainingDivergedError(RuntimeError):
    """A loss became NaN or infinite."""


def train_epochs(
    context: ClientContext,
    modules: Sequence[nn.Module],
    loss_function: LossFunction,
    *,
    clip_norm: float | None = None,
    epochs: int | None = None,
    split: Split | None = None,
    lr_factor: float = 1.0,
    gradient_hook: GradientHook | None = None,
    step_cost: Hashable = None,
) -> dict[str, float]:
    """Train modules on the client's training examples.

    Every epoch visits every example once in a new order drawn from (seed, client, round); the
    last batch is not dropped, except a single left-over example where a module has BatchNorm. A
    client whose only batch is one example trains with BatchNorm in evaluation mode.

    Parameters
    ----------
    context : ClientContext
        Gives data, device, and the run's optimiser settings.
    modules : sequence of nn.Module
        What is optimised; put in training mode here and in evaluation mode at the end.
    loss_function : callable
        Returns the loss terms of a batch; their sum is minimised.
    clip_norm : float, optional
        Each module's gradient is scaled down to at most this norm, separately.
    epochs : int, optional
        Default: the run's `local-epochs`.
    split : Split, optional
        Examples to train on; default: all the client's training examples.
    lr_factor : float
        Scales the learning rate, for methods with a schedule over rounds.
    gradient_hook : callable, optional
        For methods that work on gradients: called in every step after clipping. What it returns
        is recorded like a loss term, but is not part of "loss".
    step_cost : Hashable, optional
        What else the operations of a step depend on, such as the size of what `gradient_hook`
        works on; steps of one value are counted once.

    Returns
    -------
    dict
        Mean of every loss term per example over all steps, their sum as "loss"; the means of what
        `gradient_hook` returned;
        "examples_seen", the number of examples in all steps; "flops", the floating-point
        operations of all steps, forward and backward (see `strategies.common.flops`); "lr" where
        the rate varies over rounds; and "loss_growth" where the loss has grown so much since the
        client's first step of the run that training diverged (see `strategies.base.kept`).

    Raises
    ------
    TrainingDivergedError
        Naming client, round, loss term and its last finite value.
    """
    split = context.data.train if split is None else split
    drop_singletons = _enter_training(modules, min(len(split), context.run.batch_size))
    parameters = [p for m in modules for p in m.parameters()]
    optimizer = make_optimizer(context, parameters, lr_factor)
    lasting = (
        KeptOptimizer(context.kept, optimizer, parameters) if context.run.keep_optimizer else None
    )
    flops = StepFlops(context, (len(parameters), step_cost))
    hook = None if gradient_hook is None else flops.apart(gradient_hook)
    step_count = 0
    generator = context.generator("batches")
    totals: dict[str, float] = {}
    last: dict[str, str] = {}
    firsts: dict[str, float] = {}
    objective: set[str] = set()
    seen = 0
    for epoch in range(context.run.local_epochs if epochs is None else epochs):
        steps: list[dict[str, Tensor]] = []
        sizes: list[int] = []
        for images, labels in device_batches(
            context, split, context.run.batch_size, generator, drop_singletons
        ):
            # Tokens cannot be shifted or mirrored, and a mask would have to move along.
            recipe = context.run.augment if labels.dim() < 3 and images.dim() == 4 else "none"
            seen_by_model = augment(recipe, images, generator)
            with flops.counting(len(labels)):
                terms, observed = _step(
                    context, optimizer, modules, loss_function, seen_by_model, labels, clip_norm,
                    hook,
                )  # fmt: skip
            objective |= terms.keys()
            steps.append(terms | observed)
            sizes.append(len(labels))
        # One look at the losses an epoch: on a GPU a look at every step would stall it.
        _add_epoch(context, epoch, steps, sizes, totals, last, firsts)
        seen += sum(sizes)
        step_count += len(sizes)
    for module in modules:
        module.eval()
    means = {name: total / seen for name, total in totals.items()}
    counters = {"examples_seen": float(seen), "flops": flops.total(seen, step_count)}
    loss = sum(mean for name, mean in means.items() if name in objective)
    if lasting is not None:
        _keep_optimizer(context, lasting)
    noted = _noted(context, loss, sum(firsts[name] for name in objective), lr_factor)
    return {"loss": loss, **means, **counters, **noted}


def _keep_optimizer(context: ClientContext, lasting: KeptOptimizer) -> None:
    """Keep an optimiser for the next round; one that overflowed would spoil all rounds to come."""
    broken = lasting.keep()
    if broken:
        raise TrainingDivergedError(
            f"client {context.client_id}, round {context.server_round}: after training the "
            f"optimiser's {broken[0]} holds NaN or infinite values; lower lr"
        )


def _noted(context: ClientContext, loss: float, first: float, lr_factor: float) -> dict[str, float]:
    """Return what is recorded where there is something to say: a varying rate, a divergence."""
    kept, noted = context.kept, {}
    if context.run.lr_by_round.varies:
        noted["lr"] = learning_rate(context, lr_factor)
    if kept.first_loss is None:
        kept.first_loss = first
    growth = loss_growth(loss, kept.first_loss, context.data.num_classes)
    return noted if growth is None else {**noted, GROWTH: growth}


def device_batches(
    context: ClientContext,
    split: Split,
    batch_size: int,
    generator: torch.Generator | None = None,
    drop_singletons: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield model inputs and targets on the client's device; see `to_inputs`.

    Shuffled with `generator`, else in order.
    """
    for inputs, targets in split.batches(batch_size, generator, drop_singletons):
        yield (
            to_inputs(inputs, context.device),
            targets.to(context.device, non_blocking=True),
        )


def to_inputs(raw: Tensor, device: torch.device) -> Tensor:
    """Return what a model reads: images (B, C, H, W) normalised and channels last, or token ids.

    Only uint8 pixels cross to the device; token ids (B, L) int64 stay as they are.
    """
    moved = raw.to(device, non_blocking=True)
    if moved.dtype != torch.uint8:
        return moved
    return normalise(moved).to(memory_format=torch.channels_last)


@torch.no_grad()
def collect_representations(context: ClientContext, model: SplitModel) -> tuple[Tensor, Tensor]:
    """Return representations (n, d) and labels (n,) of the whole training set, on the CPU.

    Evaluation mode, fixed order, nothing dropped.
    """
    model.eval()
    parts = [
        (model.features(images).float().cpu(), labels.cpu())
        for images, labels in device_batches(context, context.data.train, EVALUATION_BATCH)
    ]
    return torch.cat([r for r, _ in parts]), torch.cat([y for _, y in parts])


@contextmanager
def precision(context: Place) -> Iterator[None]:
    """Compute in bfloat16 where `amp = "bf16"` allows it; weights stay float32."""
    with torch.autocast(
        context.device.type, dtype=torch.bfloat16, enabled=context.run.amp == "bf16"
    ):
        yield


def _step(
    context: ClientContext,
    optimizer: torch.optim.Optimizer,
    modules: Sequence[nn.Module],
    loss_function: LossFunction,
    images: Tensor,
    labels: Tensor,
    clip_norm: float | None,
    gradient_hook: GradientHook | None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Make one step; return the loss terms, and what the hook observed."""
    with precision(context):
        terms = loss_function(images, labels)
    optimizer.zero_grad(set_to_none=True)
    torch.stack([term.float() for term in terms.values()]).sum().backward()
    if clip_norm is not None:
        for module in modules:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
    observed = gradient_hook() if gradient_hook is not None else {}
    take_step(optimizer)
    return _detached(terms), _detached(observed)


def _detached(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: term.detach().float() for name, term in terms.items()}


def _add_epoch(
    context: ClientContext,
    epoch: int,
    steps: list[dict[str, Tensor]],
    sizes: list[int],
    totals: dict[str, float],
    last: dict[str, str],
    firsts: dict[str, float],
) -> None:
    """Add the epoch's loss terms to `totals`, weighted by examples, after checking them.

    `last` keeps the epoch's last values in words, for the message of a later one; `firsts` the
    values of the first step of all.
    """
    weights = torch.tensor(sizes, dtype=torch.float64)
    for name in steps[0]:
        values = torch.stack([terms[name] for terms in steps]).double().cpu()
        finite = values.isfinite()
        if not finite.all():
            step = int((~finite).nonzero()[0])
            known = last.get(name, "none in this round")
            if step:
                known = f"{values[step - 1].item():.4g} in the step before"
            raise TrainingDivergedError(
                f"client {context.client_id}, round {context.server_round}, epoch {epoch + 1}: "
                f"{name} became {values[step].item()} in step {step + 1} of {len(steps)}; last "
                f"finite value: {known}; lower lr"
            )
        firsts.setdefault(name, values[0].item())
        last[name] = f"{values[-1].item():.4g} in the epoch before"
        totals[name] = totals.get(name, 0.0) + float(values @ weights)


def _enter_training(modules: Sequence[nn.Module], largest_batch: int) -> bool:
    """Put modules in training mode; return whether a left-over example must be dropped."""
    for module in modules:
        module.train()
    norms = [layer for m in modules for layer in m.modules() if isinstance(layer, _BatchNorm)]
    if largest_batch > 1:
        return bool(norms)
    # Batch statistics of one example are undefined: use the running ones.
    for layer in norms:
        layer.eval()
    return False
