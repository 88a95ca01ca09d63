"""What CreamFL's clients minimise: the local loss with its margin, and on public pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from data import PublicData
from models import PairModel, TaskModel
from strategies.base.client import ClientContext
from strategies.common.flops import StepFlops
from strategies.common.losses import LossFunction, muscle_loss, task_loss
from strategies.common.optimizers import make_optimizer, take_step
from strategies.common.public import PublicItems
from strategies.common.training import TrainingDivergedError, precision
from strategies.creamfl.draws import public_batches

IMAGES, TEXTS = SIDES = ("images", "texts")
"""The two sides of a pair; fields of the payloads are named by them."""

Features = dict[str, NDArray[np.float32]]
"""By side, (P, d) of all public pairs."""


def other_side(side: str) -> str:
    """Return the side that a side is contrasted with."""
    return TEXTS if side == IMAGES else IMAGES


def margin_loss(model: nn.Module, margin: float, centre: float) -> LossFunction:
    """Return cross entropy with a margin, and what keeps the classes' weights apart.

    CE(f(x) - margin onehot(y), y) + centre CE(W W^T, (0, .., C - 1)), W (C, .) the head's weights.
    """

    def loss(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = model(inputs)
        lowered = logits - margin * F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        weight: Tensor = model.head.weight  # type: ignore[union-attr, assignment]
        own = torch.arange(len(weight), device=weight.device)
        apart = centre * F.cross_entropy(weight @ weight.T, own)
        return {"loss_ce": F.cross_entropy(lowered, labels), "loss_centre": apart}

    return loss


def local_loss(context: ClientContext, model: TaskModel) -> LossFunction:
    """Return `margin_loss` where an example has one class, else the task's own loss."""
    config, task = context.config, context.data.task
    if task not in ("classification", "text"):
        return task_loss(task, model)
    return margin_loss(model, config.margin, config.centre)


def inter_loss(z: Tensor, others: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of z . others / tau over all P public pairs at each item's own.

    Parameters
    ----------
    z : Tensor
        (B, d).
    others : Tensor
        (P, d) global features of the other side.
    rows : Tensor
        (B,) int64, which items z is of.
    temperature : float
        tau.
    """
    return F.cross_entropy(z @ others.T / temperature, rows)


def intra_loss(z: Tensor, pulled_to: Tensor, pushed_from: Tensor, temperature: float) -> Tensor:
    """Return -log e^(z.g/tau) / (e^(z.g/tau) + e^(z.o/tau)), averaged over the batch.

    g (B, d) are global features of the same side, o (B, d) the model's own of before the round.
    """
    gap = (z * (pushed_from - pulled_to)).sum(dim=1) / temperature
    return F.softplus(gap).mean()


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of the public pairs as a client's model reads and represents it."""

    items: PublicItems
    represent: Callable[[Tensor], Tensor]


def sides_of(context: ClientContext, model: TaskModel, public: PublicData) -> dict[str, Side]:
    """Return what a client's model represents: images, texts, or both."""

    def side(reads_text: bool, represent: Callable[[Tensor], Tensor]) -> Side:
        return Side(PublicItems(public, context.model_name, reads_text, context), represent)

    if isinstance(model, PairModel):
        return {IMAGES: side(False, model.represent), TEXTS: side(True, model.represent_text)}
    reads_text = context.data.task == "text"
    return {TEXTS if reads_text else IMAGES: side(reads_text, model.represent)}


class PublicPairs:
    """The public pairs at a client: what its model makes of them, and steps on them.

    Parameters
    ----------
    context : ClientContext
        The client.
    model : TaskModel
        Its model; in steps in evaluation mode, so that BatchNorm keeps the local statistics.
    """

    def __init__(self, context: ClientContext, model: TaskModel) -> None:
        self.context, self.model = context, model
        self.sides = sides_of(context, model, context.public)
        self.size = context.run.public_size

    def represent(self) -> Features:
        """Return the representations of all pairs, (P, d) by side that the model reads."""
        every = np.arange(self.size, dtype=np.int32)
        return {
            name: side.items.outputs(self.model, every, side.represent).cpu().numpy()
            for name, side in self.sides.items()
        }

    def contrast(self, towards: Features, before: Features) -> dict[str, float]:
        """Make the inter- and intra-modal steps.

        Parameters
        ----------
        towards : dict of str to ndarray
            Global features of both sides.
        before : dict of str to ndarray
            `represent`, of before the round.
        """
        config, device = self.context.config, self.context.device
        kept = {name: torch.tensor(item, device=device) for name, item in towards.items()}
        old = {name: torch.tensor(item, device=device) for name, item in before.items()}
        tau = config.contrast_temperature

        def terms(rows: NDArray[np.int32]) -> dict[str, Tensor]:
            own = torch.tensor(rows, dtype=torch.int64).to(device)
            inter, intra = [], []
            for name, side in self.sides.items():
                z = side.represent(side.items.batch(rows)).float()
                inter.append(inter_loss(z, kept[other_side(name)], own, tau))
                intra.append(intra_loss(z, kept[name][own], old[name][own], tau))
            weight = config.contrast_weight
            return {
                "loss_inter": weight * torch.stack(inter).sum(),
                "loss_intra": weight * torch.stack(intra).mean(),
            }

        return self._minimise(terms)

    def align(self, others: NDArray[np.float32]) -> dict[str, float]:
        """Make steps on the Muscle loss towards others' features (M, P, d), drawn by batch."""
        config, device = self.context.config, self.context.device

        def terms(rows: NDArray[np.int32]) -> dict[str, Tensor]:
            given = torch.tensor(others[:, rows], device=device)
            found = [
                muscle_loss(
                    side.represent(side.items.batch(rows)), given,
                    config.temperature, config.temperature_others,
                ).mean()
                for side in self.sides.values()
            ]  # fmt: skip
            return {"loss_muscle": torch.stack(found).sum()}

        return self._minimise(terms)

    def _minimise(
        self, terms_of: Callable[[NDArray[np.int32]], dict[str, Tensor]]
    ) -> dict[str, float]:
        """Make a step on every batch of the round; return the terms' means and the operations."""
        context, config = self.context, self.context.config
        parameters = self.model.representation_parameters()
        optimizer = make_optimizer(context, parameters)
        self.model.eval()
        flops = StepFlops(context, ("public", config.alignment, len(self.sides)))
        steps: list[dict[str, Tensor]] = []
        batches = public_batches(context.run, context.server_round) * config.public_epochs
        for rows in batches:
            with flops.counting(len(rows)):
                with precision(context):
                    terms = terms_of(rows)
                optimizer.zero_grad(set_to_none=True)
                torch.stack(list(terms.values())).sum().backward()
                take_step(optimizer)
            steps.append({name: value.detach() for name, value in terms.items()})
        found = {
            name: torch.stack([step[name] for step in steps]).double().cpu() for name in steps[0]
        }
        for name, values in found.items():
            if not values.isfinite().all():
                raise TrainingDivergedError(
                    f"client {context.client_id}, round {context.server_round}: on public pairs "
                    f"{name} became {values[~values.isfinite()][0].item()}; lower lr"
                )
        examples = sum(map(len, batches))
        means = {name: float(values.mean()) for name, values in found.items()}
        return {**means, "flops": flops.total(examples, len(batches))}
