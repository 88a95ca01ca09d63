"""A small model that all clients share and the server averages: payload, state, server, KL term.

Used by the methods in which a small model travels instead of the client's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models import Shape, SplitModel
from models.build import modality_of
from models.small import SMALL_MODEL_OF, build_small_model
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.payload import Template, arrays
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext, ServerHalf
from strategies.base.treatments import UPDATE
from strategies.common.robust import mean_over_clients
from strategies.common.shapes import shape_of
from strategies.common.weights import mean_states, state_arrays, state_template


@dataclasses.dataclass
class SmallModelPayload:
    """A small model on the wire: theta, its state by entry."""

    theta: Mapping[str, NDArray[Any]] = arrays(protect=UPDATE)


@dataclasses.dataclass
class SmallModelState:
    """A server's state that is the averaged small model alone: theta."""

    theta: dict[str, Tensor]


def small_model(run: RunConfig, shape: Shape, width: int) -> SplitModel:
    """Build the small model that the method's `small-model` names, with features `width` wide.

    Where the option is at its default, what are no images is read by one of `SMALL_MODEL_OF`.
    """
    kind: str = run.method_config.small_model
    if kind == type(run.method_config).small_model:
        kind = SMALL_MODEL_OF.get(modality_of(shape), kind)
    return build_small_model(kind, shape, width)


class SmallModelServer(ServerHalf[SmallModelState, SmallModelPayload]):
    """A server half that broadcasts one small model and averages the round's.

    Reads the options `small_model` and `mean` ("weighted" by examples or "uniform") of the
    method's `Config`.
    """

    def small_width(self, context: ServerContext) -> int:
        """Return the width of the small model's features."""
        return context.run.feature_dim

    def exchanged(self, context: ServerContext, small: SplitModel) -> dict[str, Tensor]:
        """Return the entries of the small model's state that travel; all by default."""
        return {name: item.detach() for name, item in small.state_dict().items()}

    def initial_state(self, context: ServerContext) -> SmallModelState:
        """Draw the first small model from the run's seed."""
        small = first_small_model(context, self.small_width(context))
        return SmallModelState(self.exchanged(context, small))

    def templates(
        self, context: ServerContext, state: SmallModelState, client: ClientInfo
    ) -> Mapping[str, Template]:
        """Return what an uplink must hold: the entries that the server holds."""
        return {"theta": state_template(state.theta)}

    def downlink(
        self, context: ServerContext, state: SmallModelState, client: ClientInfo | None
    ) -> SmallModelPayload:
        """Return the current small model, the same for all."""
        return SmallModelPayload(state_arrays(state.theta))

    def aggregate(
        self, context: ServerContext, state: SmallModelState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Replace theta by the mean of the round's, streaming."""
        weighted = context.config.mean == "weighted"
        received = ((u.uplink.theta, u.num_examples if weighted else 1) for u in updates)
        state.theta = mean_states(received, mean_over_clients(context.run, state.theta))
        return {}


def first_small_model(context: ServerContext, width: int) -> SplitModel:
    """Draw the small model of before round 1 from the run's seed; its features are `width` wide."""
    with isolated_torch_rng(derive_seed(context.run.seed, SERVER, 0, "small-model")):
        return small_model(context.run, shape_of(context.any_client), width)


def imitation(target_logits: Tensor, logits: Tensor) -> Tensor:
    """Return KL(softmax(target) || softmax(logits)), the mean over the batch, in float32.

    Both are (B, C). The target is a constant: no gradient flows into it.
    """
    target = F.log_softmax(target_logits.detach().float(), dim=1)
    own = F.log_softmax(logits.float(), dim=1)
    return F.kl_div(own, target, reduction="batchmean", log_target=True)
