"""Contrastive steps on public items, for FedMuscle and its alternatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import TaskModel, model_info
from strategies.base.client import ClientContext
from strategies.base.options import AUTO
from strategies.common.augmentation import drop_tokens, resized_view
from strategies.common.flops import StepFlops
from strategies.common.losses import muscle_loss
from strategies.common.optimizers import (
    make_adam,
    optimizer_state,
    restore_optimizer,
    take_step,
)
from strategies.common.public import PublicInputs
from strategies.common.training import TrainingDivergedError, precision, to_inputs
from strategies.fedmuscle.contrastive import (
    gramian_loss,
    information_bound,
    nt_xent,
    pairwise_loss,
)

PRETRAINED_RATE, SCRATCH_RATE = 1e-4, 1e-3
"""Rates of the alignment for encoders with pretrained first weights, and for all others."""


def public_rate(public_lr: float | str, model_name: str) -> float:
    """Return the alignment's learning rate for a user's model, resolving "auto".

    1e-4 for encoders with pretrained weights, which higher rates spoil where all of them are
    trained; 1e-3 for those that start from nothing. Measured: deploy/comparisons/fedmuscle.md.
    """
    if public_lr != AUTO:
        return float(public_lr)
    return PRETRAINED_RATE if model_info(model_name).starts_trained else SCRATCH_RATE


@dataclasses.dataclass
class Alignment:
    """A user's contrastive steps: each updates w^n alone, on one public batch.

    Attributes
    ----------
    context : ClientContext
        The user.
    model : TaskModel
        Its model; kept in evaluation mode, so that BatchNorm keeps the local statistics.
    public : PublicInputs
        The public items.
    """

    context: ClientContext
    model: TaskModel
    public: PublicInputs

    def towards(
        self, indices: NDArray[np.int32], others: NDArray[np.float32], moments: dict[str, Tensor]
    ) -> dict[str, float]:
        """Align with others' representations (m, u, d) of items (u,), B at a time.

        `moments` is AdamW's state before, and after: it is changed in place.
        """
        config, device = self.context.config, self.context.device
        size, count = config.batch_size, len(others)
        losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "muscle": lambda z, o: muscle_loss(z, o, config.tau, config.temperature_others),
            "pairwise": lambda z, o: pairwise_loss(z, o, config.tau),
            "gramian": lambda z, o: gramian_loss(z, o, config.tau, config.label_smoothing),
        }

        def loss(start: int) -> Tensor:
            part = slice(start, start + size)
            z = self.model.represent(self.public.batch(indices[part]))
            other = torch.tensor(others[:, part], device=device)
            return losses[config.loss](z, other).mean()

        steps = range(0, len(indices), size)
        metrics = self._minimise([partial(loss, start) for start in steps], count, moments)
        if config.loss != "gramian":
            bound = information_bound(metrics["loss_alignment"], count, size)
            metrics["mutual_information"] = bound
        return metrics

    def with_itself(self, batches: NDArray[np.int32]) -> dict[str, float]:
        """SimCLR: align two random views of the items of every batch (T, B)."""
        generator = self.context.generator("views")

        def view(raw: Tensor) -> Tensor:
            if self.public.reads_text:
                return drop_tokens(raw, generator).to(self.context.device)
            return resized_view(to_inputs(raw, self.context.device), generator)

        def loss(indices: NDArray[np.int32]) -> Tensor:
            raw = self.public.raw(indices)
            z = [self.model.represent(view(raw)) for _ in range(2)]
            return nt_xent(z[0], z[1], self.context.config.tau).mean()

        return self._minimise([partial(loss, indices) for indices in batches], 0, {})

    def _minimise(
        self, losses: Sequence[Callable[[], Tensor]], users: int, moments: dict[str, Tensor]
    ) -> dict[str, float]:
        """Make one step of AdamW on w^n for every loss; return their mean and the operations."""
        context = self.context
        self.model.eval()
        parameters = self.model.representation_parameters()
        optimizer = make_adam(
            torch.optim.AdamW,
            parameters,
            lr=public_rate(context.config.public_lr, context.model_name),
            weight_decay=context.run.training.weight_decay,
        )
        restore_optimizer(optimizer, parameters, moments)
        flops = StepFlops(context, ("public", users))
        values = []
        for loss_of in losses:
            with flops.counting(context.config.batch_size):
                with precision(context):
                    loss = loss_of()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                take_step(optimizer)
            values.append(loss.detach())
        moments.update(optimizer_state(optimizer, parameters))
        found = torch.stack(values).double().cpu()
        if not found.isfinite().all():
            raise TrainingDivergedError(
                f"client {context.client_id}, round {context.server_round}: the alignment loss "
                f"became {found[~found.isfinite()][0].item()}; lower fedmuscle.public-lr"
            )
        examples = len(losses) * context.config.batch_size
        total = flops.total(examples, len(losses))
        return {"loss_alignment": float(found.mean()), "flops": total}
