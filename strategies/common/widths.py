"""Parts that differ in width: rates, static BatchNorm, scaler and masked cross entropy.

What HeteroFL and FedRolex have in common; they differ in which channels a part has. ScaleFL reads
its widths as they read rates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models import SplitModel
from models.channels import Part
from strategies.base.client import ClientContext
from strategies.base.options import option
from strategies.base.rng import numpy_generator
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext
from strategies.common.layerwise import WeightsPayload
from strategies.common.losses import LossFunction, cross_entropy_of
from strategies.common.parts import PartClient, PartClientState, PartConfig, Parts
from strategies.common.parts_server import PartServer
from strategies.common.training import (
    EVALUATION_BATCH,
    device_batches,
    precision,
    train_epochs,
)


@dataclasses.dataclass(frozen=True)
class WidthConfig(PartConfig):
    """Options of methods whose parts differ in width.

    Attributes
    ----------
    rates : str
        Shares of every layer's channels, dealt out to the clients in the order of their ids, over
        and over. A device's `rate` in its node-config wins; it must be one of these.
    draw : str
        "fixed": a client keeps its rate; "dynamic": it draws one in every round, each with equal
        probability, unless its device has its own.
    norm : str
        "static": BatchNorm has no running statistics; a client computes them anew from its own
        training examples before it is evaluated. "running": they are kept, sent and averaged.
    scaler : bool
        Whether convolutions' outputs are divided by the rate in training.
    mask_absent : bool
        Whether a client sets the logits of classes that it has no example of to 0 in training, and
        has no part in these classes' rows of the head.
    """

    rates: str = option("1, 0.5, 0.25, 0.125, 0.0625", hint="numbers above 0, at most 1, by commas")
    draw: str = option("fixed", "dynamic")
    norm: str = option("static", "running")
    scaler: bool = option(True)
    mask_absent: bool = option(True)

    @property
    def buffers(self) -> str:
        """Static statistics never travel."""
        return "local" if self.norm == "static" else "average"


def parse_rates(text: str) -> tuple[float, ...]:
    """Return the numbers of a text; raises `ValueError` unless all are above 0 and at most 1."""
    rates = tuple(float(entry) for entry in text.split(","))
    if not all(0 < rate <= 1 for rate in rates):  # NaN is refused as well
        raise ValueError(text)
    return rates


def unfit_options(run: RunConfig) -> str | None:
    """Return what in a run's options cannot be meant, or None; see `Method.refuses`."""
    config, name = run.method_config, run.chosen_method.name
    try:
        parse_rates(config.rates)
    except ValueError:
        return f"{name}.rates = {config.rates!r}: expected numbers above 0, at most 1, by commas"
    if config.norm == "running" and config.scaler and min(parse_rates(config.rates)) < 1:
        return (
            f"{name}.norm = 'running': expected 'static' with {name}.scaler = true, which scales "
            "what running statistics are of in training and not in evaluation; or set "
            f"{name}.scaler=false"
        )
    return None


@dataclasses.dataclass(frozen=True)
class Windows(Parts):
    """A window of every layer's channels, by rate.

    Attributes
    ----------
    rolling : bool
        Whether it moves on by a channel in every round; else it begins with the first.
    """

    rolling: bool = False

    def rates(self, run: RunConfig) -> Sequence[float]:
        """Return the rates of the run."""
        return parse_rates(run.method_config.rates)

    def part(self, run: RunConfig, client_id: int, server_round: int, own: float) -> Part:
        """Return a client's part; at the registration, round 0, a client that draws has most."""
        rates = self.rates(run)
        rate = own or rates[client_id % len(rates)]
        if not own and run.method_config.draw == "dynamic":
            generator = numpy_generator(run.seed, client_id, server_round, "rate")
            rate = rates[int(generator.integers(len(rates)))] if server_round else max(rates)
        return Part(rate, max(server_round - 1, 0) if self.rolling else 0)


def scale(model: SplitModel, rate: float) -> None:
    """Divide the outputs of a model's convolutions by the rate, in training alone."""

    def scaled(layer: nn.Module, _: Any, output: Tensor) -> Tensor:
        return output / rate if layer.training else output

    if rate < 1:
        for layer in model.backbone.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(scaled)


def masked_cross_entropy(model: nn.Module, classes: Iterable[int], total: int) -> LossFunction:
    """Return cross entropy in which the logits of all other classes are 0, named `loss_ce`."""
    absent = torch.ones(total, dtype=torch.bool)
    absent[list(classes)] = False

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits: Tensor = model(images)
        masked = logits.masked_fill(absent.to(logits.device), 0)
        return {"loss_ce": F.cross_entropy(masked, labels)}

    return loss


@torch.no_grad()
def compute_statistics(context: ClientContext, model: SplitModel) -> None:
    """Give BatchNorm layers the mean statistics of the client's training batches, unscaled.

    Means and variances start from those before any example, 0 and 1, and stay so where the client
    has no two examples.
    """
    norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if not norms:
        return
    usual = norms[0].momentum
    model.eval()  # nothing is scaled
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative mean
        layer.train()
    with precision(context):
        for images, _ in device_batches(
            context, context.data.train, EVALUATION_BATCH, drop_singletons=True
        ):
            if len(images) > 1:
                model.backbone(images)
    for layer in norms:
        layer.momentum = usual
    model.eval()


class WidthClient(PartClient):
    """Client half: cross entropy on the local data, from the received part."""

    def build(self, context: ClientContext) -> PartClientState:
        """Return a state around a part without weights, with the scaler."""
        state = super().build(context)
        if context.config.scaler:
            scale(state.model, self.part(context).rate)
        return state

    def receive(
        self, context: ClientContext, state: PartClientState, downlink: WeightsPayload
    ) -> None:
        """Make the model of what arrived, and of its statistics on the local data."""
        super().receive(context, state, downlink)
        self._renew_statistics(context, state)

    def train(
        self, context: ClientContext, state: PartClientState, downlink: WeightsPayload
    ) -> tuple[WeightsPayload, dict[str, float]]:
        """Train the part and return it."""
        model, config, rate = state.model, context.config, self.part(context).rate
        loss = cross_entropy_of(model)
        if config.mask_absent:
            held = context.data.train.class_counts()
            loss = masked_cross_entropy(model, held, context.data.num_classes)
        metrics = train_epochs(context, [model], loss, step_cost=rate)
        if not context.run.evaluates_before_training:
            self._renew_statistics(context, state)
        return self.outgoing(context, state), {**metrics, "rate": rate}

    def _renew_statistics(self, context: ClientContext, state: PartClientState) -> None:
        """Compute static statistics where the round evaluates."""
        if context.config.norm == "static" and context.run.evaluates_in(context.server_round):
            compute_statistics(context, state.model)


class WidthServer(PartServer):
    """Server half: every value's mean over its holders, of the head by the classes they own."""

    def head_rows(self, context: ServerContext, client_id: int) -> NDArray[np.int64] | None:
        """Leave out the rows of classes that the client has no example of."""
        if not context.config.mask_absent:
            return None
        return np.array(sorted(context.clients[client_id].classes), dtype=np.int64)
