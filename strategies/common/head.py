"""The shared classification head: payload, state, first weights, loading, and training.

Used by every method in which the server owns one Linear(d, C) for all clients.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from models import SplitModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo
from strategies.base.payload import array
from strategies.base.server import LOSS_AFTER, LOSS_BEFORE, ServerContext, ServerHalf
from strategies.base.treatments import UPDATE
from strategies.common.optimizers import keep_compiler_out, take_step


@dataclasses.dataclass
class HeadPayload:
    """A head on the wire: weight W (C, d) and bias b (C,), C*d + C scalars."""

    head_weight: NDArray[np.float32] = array("C", "d", protect=UPDATE)
    head_bias: NDArray[np.float32] = array("C", protect=UPDATE)


@dataclasses.dataclass
class HeadState:
    """A server's state that is the head alone: weight W (C, d) and bias b (C,)."""

    head_weight: Tensor
    head_bias: Tensor


class HasModel(Protocol):
    """A client state with the client's own model in it."""

    model: SplitModel


S = TypeVar("S", bound=HasModel)
H = TypeVar("H", bound=HeadPayload)
U = TypeVar("U")


class HeadClient(ClientHalf[S, H, U]):
    """A client half that starts from the server's head and predicts with its own model."""

    def receive(self, context: ClientContext, state: S, downlink: H) -> None:
        """Load the received head; everything before it stays the client's own."""
        load_head(state.model.head, downlink.head_weight, downlink.head_bias)

    def predict(self, state: S, downlink: H, images: Tensor) -> dict[str, Tensor]:
        """Return the logits of the client's own model."""
        return {"accuracy": state.model(images)}


class HeadServer(ServerHalf[HeadState, HeadPayload]):
    """A server half that broadcasts one head to all clients; `aggregate` is the method's."""

    def train_as_configured(
        self, context: ServerContext, state: HeadState, inputs: Tensor, targets: Tensor
    ) -> dict[str, float]:
        """Train the head on what arrived, inputs (N, d) and soft labels (N, C); return its losses.

        For methods with the options `server_lr`, `server_epochs`, `server_batch_size`, `reduction`
        and `mask_absent`.
        """
        config = context.config
        classes = targets.sum(dim=0).nonzero().flatten() if config.mask_absent else None
        before = head_loss(state.head_weight, state.head_bias, inputs, targets, classes)
        state.head_weight, state.head_bias, loss = train_head(
            state.head_weight,
            state.head_bias,
            inputs,
            targets,
            lr=config.server_lr,
            epochs=config.server_epochs,
            batch_size=config.server_batch_size,
            generator=context.generator("server-batches"),
            reduction=config.reduction,
            classes=classes,
        )
        after = head_loss(state.head_weight, state.head_bias, inputs, targets, classes)
        return {"server_loss": loss, LOSS_BEFORE: before, LOSS_AFTER: after}

    def initial_state(self, context: ServerContext) -> HeadState:
        """Draw the first head from the run's seed."""
        dims = context.dims
        return HeadState(*initial_linear(dims["C"], dims["d"], context.generator("head")))

    def downlink(
        self, context: ServerContext, state: HeadState, client: ClientInfo | None
    ) -> HeadPayload:
        """Return the current head, the same for all."""
        return HeadPayload(state.head_weight.numpy(), state.head_bias.numpy())


def initial_linear(classes: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a head's first weight (C, d) and bias (C,): uniform in +-1/sqrt(d), as torch does."""
    bound = 1 / math.sqrt(width)
    weight = torch.empty(classes, width).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(classes).uniform_(-bound, bound, generator=generator)
    return weight, bias


def load_head(head: nn.Linear, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> None:
    """Copy a received head into a model's; nothing is aliased."""
    with torch.no_grad():
        head.weight.copy_(torch.tensor(weight))
        head.bias.copy_(torch.tensor(bias))


def head_arrays(head: nn.Linear) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return copies of a head's weight (C, d) and bias (C,) for an uplink."""
    weight, bias = head.weight.detach().cpu(), head.bias.detach().cpu()
    return weight.numpy().copy(), bias.numpy().copy()


@torch.no_grad()
def head_loss(
    weight: Tensor, bias: Tensor, inputs: Tensor, targets: Tensor, classes: Tensor | None = None
) -> float:
    """Return a head's mean cross entropy per example; arguments as in `train_head`."""
    return _summed_loss(weight, bias, inputs, targets, classes).item() / len(inputs)


def _summed_loss(
    weight: Tensor, bias: Tensor, inputs: Tensor, targets: Tensor, classes: Tensor | None
) -> Tensor:
    logits = F.linear(inputs, weight, bias)
    if classes is not None:
        logits, targets = logits[:, classes], targets[:, classes]
    return F.cross_entropy(logits, targets, reduction="sum")


def stable_rate(inputs: Tensor, lr: float) -> float:
    """Return the rate that no step on the summed loss of inputs (B, d) raises it at, at most `lr`.

    It is 1 / L, where L = lambda_max(X X^T) / 2 with X = [inputs, 1] bounds the eigenvalues of the
    loss's Hessian in (W, b): those of the softmax's, diag(p) - p p^T, are at most 1/2 (Boehning,
    1992). With it a step of gradient descent lowers the loss, whatever the labels.
    """
    gram = inputs.double() @ inputs.double().T + 1.0
    curvature = float(torch.linalg.eigvalsh(gram)[-1]) / 2
    return min(lr, 1 / curvature)


def train_head(
    weight: Tensor,
    bias: Tensor,
    inputs: Tensor,
    targets: Tensor,
    *,
    lr: float,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
    reduction: str = "sum",
    classes: Tensor | None = None,
) -> tuple[Tensor, Tensor, float]:
    """Train a head by plain SGD on cross entropy with (soft) labels.

    Parameters
    ----------
    weight, bias : Tensor
        Head, (C, d) and (C,); not changed.
    inputs : Tensor
        Representations, (N, d).
    targets : Tensor
        Label distributions, (N, C), rows sum to 1.
    lr, epochs, batch_size
        Of the SGD.
    generator : torch.Generator
        Shuffles the batches.
    reduction : str
        "sum" or "mean" of the loss over a batch. With "sum" the step grows with the batch, and
        with the inputs; "stable" is the sum with a rate that they bound, see `stable_rate`.
    classes : Tensor, optional
        Ids of the only classes whose logits take part; the rest of the head stays as it is.

    Returns
    -------
    tuple
        New weight, new bias, and the mean loss per example during the last epoch, or before
        training where `epochs` is 0.
    """
    weight = weight.clone().requires_grad_()
    bias = bias.clone().requires_grad_()
    keep_compiler_out()
    optimizer = torch.optim.SGD([weight, bias], lr=lr)

    mean_loss = 0.0 if epochs else head_loss(weight, bias, inputs, targets, classes)
    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(inputs), generator=generator).split(batch_size):
            loss = _summed_loss(weight, bias, inputs[rows], targets[rows], classes)
            if reduction == "stable":
                optimizer.param_groups[0]["lr"] = stable_rate(inputs[rows], lr)
            optimizer.zero_grad()
            (loss / len(rows) if reduction == "mean" else loss).backward()
            take_step(optimizer)
            total += loss.item()
        mean_loss = total / len(inputs)
    return weight.detach(), bias.detach(), mean_loss
