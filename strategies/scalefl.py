"""ScaleFL: every client trains the first stages of one network, narrower and with an exit each.

Ilhan et al., ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous Clients (CVPR 2023).
The network is a ResNet with an exit after each of its four stages: the mean of the feature maps and
a linear layer, of which the last is the head. A client of level l has stages and exits 1 to l, and
of every layer the first ceil(r_l n) channels.

Order of a round on a client: load its part, train E epochs on all its exits, send the part. With
o_j the logits of exit j, of which o_l are the deepest and teach the others (no gradient to them),

    L = sum_j j (CE(o_j) + [j < l] gamma tau^2 KL(softmax(o_l / tau) || softmax(o_j / tau))) / S

with S = l (l + 1) / 2; the second term from a quarter of the rounds on. The server replaces every
value by its mean over the round's clients that hold it, equally weighted, and BatchNorm's
statistics likewise.

Levels are dealt out over the clients' ids. A device says its own as `rate`, the share of the exits
it has: 0.5 is level 2 of 4.

Scalars: the parameters of the part, up and down. Evaluated: the part's deepest exit, before local
training.

Departures: an exit of the released code has convolutions of its own, and stands between blocks of a
ResNet110; ResNets here have no such places, so exits are where stages end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import InputShape, ModelError, SplitModel
from models.channels import Part
from models.resnet import ResNet
from strategies.base.client import ClientContext
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.run_config import RunConfig
from strategies.common.layerwise import WeightsPayload
from strategies.common.losses import LossFunction
from strategies.common.parts import PartClient, PartClientState, PartConfig, Parts
from strategies.common.parts_server import PartServer, PartServerState
from strategies.common.training import train_epochs
from strategies.common.widths import parse_rates

STAGES = ("layer1", "layer2", "layer3", "layer4")


@dataclasses.dataclass(frozen=True)
class Config(PartConfig):
    """Options of ScaleFL, besides those of the family.

    Attributes
    ----------
    widths : str
        Share of every layer's channels at levels 1 to 4.
    gamma, tau : float
        Weight and temperature of self-distillation; gamma 0 distils nothing.
    distil_from : int
        First round that distils; 0: the first one with more than a quarter of `num-rounds` before
        it.
    """

    widths: str = option("0.7, 0.7, 0.75, 1", hint="four numbers above 0, at most 1, by commas")
    gamma: float = option(0.05, minimum=0)
    tau: float = option(3.0, above=0)
    distil_from: int = option(0, minimum=0)

    def in_rounds(self, num_rounds: int) -> Config:
        """Return these options with the first round that distils as a number, if any does."""
        first = (self.distil_from or num_rounds // 4 + 2) if self.gamma else 0
        return dataclasses.replace(self, distil_from=first)


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's part."""
ClientState = PartClientState
ServerState = PartServerState


class ExitNetwork(SplitModel):
    """A ResNet with an exit after every stage.

    Parameters
    ----------
    model : SplitModel
        Gives name, backbone and widths.
    """

    backbone: ResNet

    def __init__(self, model: SplitModel, backbone: ResNet) -> None:
        super().__init__(
            model.name, backbone, model.mapping,
            raw_dim=model.raw_dim, feature_dim=model.feature_dim, num_classes=model.num_classes,
        )  # fmt: skip
        widths = [backbone.raw_dim >> stage for stage in (3, 2, 1)]  # they double
        self.exits = nn.ModuleList(nn.Linear(width, model.num_classes) for width in widths)

    def keep(self, stages: int) -> None:
        """Leave out all stages and exits after the first so many."""
        for name in STAGES[stages:]:
            setattr(self.backbone, name, nn.Identity())
        self.exits = self.exits[:stages]
        if stages < len(STAGES):
            del self.head
        self.raw_dim = self.feature_dim = self._leaves()[-1].in_features

    def logits(self, x: Tensor) -> list[Tensor]:
        """Images ``(N, channels, S, S)`` to the logits ``(N, C)`` of every exit, in order."""
        found, maps = [], self.backbone.stem(x)
        for name, leave in zip(STAGES, self._leaves(), strict=False):
            maps = self.backbone.get_submodule(name)(maps)
            found.append(leave(self.backbone.avgpool(maps).flatten(1)))
        return found

    def _leaves(self) -> list[nn.Linear]:
        """Return the exits that it has, the head among them."""
        last = [self.head] if hasattr(self, "head") else []
        return [*self.exits, *last]

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to the logits ``(N, C)`` of the deepest exit."""
        return self.logits(x)[-1]


@dataclasses.dataclass(frozen=True)
class Levels(Parts):
    """The first stages of a ResNet with exits, narrower, by level."""

    def build(self, name: str, shape: InputShape) -> SplitModel:
        """Build the whole network with its exits; raises `ModelError` for one without stages."""
        model = super().build(name, shape)
        if not isinstance(model.backbone, ResNet):
            raise ModelError(
                f"model {name!r} has no four stages to have exits after; choose a ResNet, such as "
                "resnet18 or resnet152"
            )
        return ExitNetwork(model, model.backbone)

    def cut(self, model: SplitModel, part: Part) -> None:
        """Leave the shapes of a level."""
        super().cut(model, part)
        if part.depth and isinstance(model, ExitNetwork):
            model.keep(part.depth)

    def rates(self, run: RunConfig) -> Sequence[float]:
        """Return the shares of exits that a client can have."""
        return [(stage + 1) / len(STAGES) for stage in range(len(STAGES))]

    def part(self, run: RunConfig, client_id: int, server_round: int, own: float) -> Part:
        """Return a client's level, the same in all rounds."""
        level = max(1, round(own * len(STAGES))) if own else client_id % len(STAGES) + 1
        return Part(parse_rates(run.method_config.widths)[level - 1], depth=level)


def unfit_widths(run: RunConfig) -> str | None:
    """Return what in a run's options cannot be meant, or None; see `Method.refuses`."""
    widths = run.method_config.widths
    try:
        fits = len(parse_rates(widths)) == len(STAGES)
    except ValueError:
        fits = False
    expected = "expected four numbers above 0, at most 1, by commas"
    return None if fits else f"scalefl.widths = {widths!r}: {expected}"


def exit_terms(
    logits: Sequence[Tensor], labels: Tensor, gamma: float, tau: float
) -> dict[str, Tensor]:
    """Return the loss of a batch's exits, each logits (B, C); the last one teaches the others.

    With gamma 0 there is no `loss_kd`.
    """
    total = len(logits) * (len(logits) + 1) / 2
    hard = [(j + 1) * F.cross_entropy(out, labels) for j, out in enumerate(logits)]
    terms = {"loss_ce": torch.stack(hard).sum() / total}
    if gamma and len(logits) > 1:
        teacher = F.log_softmax(logits[-1].detach() / tau, dim=1)
        soft = [
            (j + 1)
            * F.kl_div(
                F.log_softmax(out / tau, dim=1), teacher, reduction="batchmean", log_target=True
            )
            for j, out in enumerate(logits[:-1])
        ]
        terms["loss_kd"] = gamma * tau**2 * torch.stack(soft).sum() / total
    return terms


def loss_of(model: ExitNetwork, gamma: float, tau: float) -> LossFunction:
    """Return the loss of all exits of a model."""

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return exit_terms(model.logits(images), labels, gamma, tau)

    return loss


class Client(PartClient):
    """Client half: trains all exits of its level."""

    parts = Levels()

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        model, config = state.model, context.config
        assert isinstance(model, ExitNetwork)
        first = config.in_rounds(context.run.num_rounds).distil_from
        gamma = config.gamma if context.server_round >= first else 0.0
        part = self.part(context)
        loss = loss_of(model, gamma, config.tau)
        metrics = train_epochs(context, [model], loss, step_cost=part.depth)
        return self.outgoing(context, state), {**metrics, "exits": float(part.depth)}


class Server(PartServer):
    """Server half: the mean over holders, statistics included."""

    parts = Levels()


METHOD = register(
    __name__,
    summary="clients train the first stages of one network with exits, narrower, and distil",
    training=Training(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
    common_feature_dim=False,
    evaluated_model="global",
    one_network=True,
    reads=("image",),
    refuses=unfit_widths,
)
