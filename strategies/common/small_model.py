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

from models import InputShape, SplitModel, TextShape
from models.small import SMALL_TEXT_MODEL, build_small_model
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.payload import Template, arrays
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerHalf
from strategies.common.shapes import shape_of
from strategies.common.weights import mean_states, state_arrays, state_template


@dataclasses.dataclass
class SmallModelPayload:
    """A small model on the wire: theta, its state by entry."""

    theta: Mapping[str, NDArray[Any]] = arrays()


@dataclasses.dataclass
class SmallModelState:
    """A server's state that is the averaged small model alone: theta."""

    theta: dict[str, Tensor]


def small_model(run: RunConfig, shape: InputShape | TextShape, width: int) -> SplitModel:
    """Build the small model that the method's `small-model` names, with features `width` wide.

    Where the option is at its default, sentences are read by `text-small`.
    """
    kind: str = run.method_config.small_model
    if isinstance(shape, TextShape) and kind == type(run.method_config).small_model:
        kind = SMALL_TEXT_MODEL
    return build_small_model(kind, shape, width)


class SmallModelServer(ServerHalf[SmallModelState]):
    """A server half that broadcasts one small model and averages the round's.

    Reads the options `small_model` and `mean` ("weighted" by examples or "uniform") of the
    method's `Config`.
    """

    @property
    def small_width(self) -> int:
        """Width of the small model's features."""
        return self.run.feature_dim

    def exchanged(self, small: SplitModel) -> dict[str, Tensor]:
        """Return the entries of the small model's state that travel; all by default."""
        return {name: item.detach() for name, item in small.state_dict().items()}

    def initial_state(self) -> SmallModelState:
        """Draw the first small model from the run's seed."""
        info = next(iter(self.clients.values()))
        with isolated_torch_rng(derive_seed(self.run.seed, SERVER, 0, "small-model")):
            small = small_model(self.run, shape_of(info), self.small_width)
        return SmallModelState(self.exchanged(small))

    def templates(self, info: ClientInfo) -> Mapping[str, Template]:
        """Return what an uplink must hold: the entries that the server holds."""
        return {"theta": state_template(self.state.theta)}

    def common_downlink(self, server_round: int) -> SmallModelPayload:
        """Return the current small model."""
        return SmallModelPayload(state_arrays(self.state.theta))

    def aggregate(self, server_round: int, updates: Iterable[ClientUpdate]) -> dict[str, float]:
        """Replace theta by the mean of the round's, streaming."""
        weighted = self.config.mean == "weighted"
        received = ((u.uplink.theta, u.num_examples if weighted else 1) for u in updates)
        self.state = SmallModelState(mean_states(received))
        return {}


def imitation(target_logits: Tensor, logits: Tensor) -> Tensor:
    """Return KL(softmax(target) || softmax(logits)), the mean over the batch, in float32.

    Both are (B, C). The target is a constant: no gradient flows into it.
    """
    target = F.log_softmax(target_logits.detach().float(), dim=1)
    own = F.log_softmax(logits.float(), dim=1)
    return F.kl_div(own, target, reduction="batchmean", log_target=True)
