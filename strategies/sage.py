"""SAGE: FedAvg whose clients also learn from what they and the global model say of unlabelled data.

Semi-supervised federated learning with pseudo-labels that the local and the global model correct
together. On an unlabelled x with a weak view u_w and a strong view u_s, the local model f and the
received weights g, which stay as they came, have confidences c_l, c_g = max softmax(u_w) and
classes y_l, y_g:

    lambda = 2^(-|c_l - c_g| / gap)
    q      = lambda onehot(y_l) + (1 - lambda) onehot(y_g)     where c_l >= threshold
           = onehot(y_g)                                       elsewhere
    loss   = task loss + weight * mean over x of [c_l >= threshold or c_g >= threshold]
             KL(q || softmax(f(u_s))),

with as many unlabelled examples in a step as labelled ones. Of a multi-label task every class is a
variable of its own with two outcomes; the mean is over them, too.

Unlabelled are the public items, as in FedMuscle's comparison, or, with `labelled-fraction` below 1,
SAGE's own setting, the rest of a client's training examples, whose labels are not looked at. Which
ones is drawn once from the run's seed; at least one keeps its label.

The server averages as FedAvg, within architectures and tasks. How SAGE was adapted to unlike models
is not published: here a client whose architecture and task no other has meets its own last weights
as the global model. Views: a crop and a flip against FedMuscle's resized and jittered view; of
sentences, all tokens against some of them. Pixels have no view that keeps their place, so that
users who segment are refused.

Scalars: |w_k| up and down. Evaluated: every architecture's model, before local training. The source
trains with SGD 0.1, batches of 128, 5 epochs, 8 of 20 clients a round.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data import Split
from data.tasks import parse_tasks
from strategies.base.client import ClientContext
from strategies.base.messages import ClientInfo
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext
from strategies.common.augmentation import augment, drop_tokens, resized_view
from strategies.common.groups import (
    AveragingServer,
    GroupClient,
    GroupClientState,
    GroupServerState,
)
from strategies.common.layerwise import WeightsPayload
from strategies.common.losses import task_loss
from strategies.common.public import PublicInputs, evaluating
from strategies.common.training import to_inputs, train_epochs

SERVED = ("classification", "multilabel", "text")
"""Tasks whose examples have views that keep their labels."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of SAGE; defaults are the source's, and FedMuscle's comparison's public items.

    Attributes
    ----------
    mean : str
        Weights of clients in the mean of their weights: n_k ("weighted") or equal ("uniform").
    labelled_fraction : float
        Share of a client's training examples that have a label; below 1 the others, and not the
        public items, are learned from without.
    threshold : float
        Least confidence of one of the two models.
    gap : float
        Difference of the confidences at which the local model's class counts half.
    weight : float
        Of the term on unlabelled examples.
    """

    mean: str = option("weighted", "uniform")
    labelled_fraction: float = option(1.0, above=0, maximum=1)
    threshold: float = option(0.95, minimum=0, maximum=1)
    gap: float = option(0.05, above=0)
    weight: float = option(1.0, minimum=0)


Uplink = WeightsPayload
Downlink = WeightsPayload
"""What travels both ways: weights and buffers of the client's architecture."""
ClientState = GroupClientState
ServerState = GroupServerState
Draw = Callable[[int], Tensor]
"""Returns so many unlabelled examples as a model reads them."""


def outcomes(task: str, logits: Tensor) -> Tensor:
    """Return logits of which softmax over the last dimension is a distribution.

    Those of a multi-label task (B, C) become (B, C, 2): absent, present.
    """
    if task != "multilabel":
        return logits
    return torch.stack([torch.zeros_like(logits), logits], dim=-1)


def pseudo_labels(
    local: Tensor, received: Tensor, threshold: float, gap: float
) -> tuple[Tensor, Tensor]:
    """Return q and whether it is learned from.

    Parameters
    ----------
    local, received : Tensor
        Logits of the two models for the weak view, (..., outcomes).
    threshold, gap : float
        See `Config`.

    Returns
    -------
    tuple of Tensor
        q (..., outcomes), and bool (...).
    """
    (sure, own), (sure_received, other) = (
        logits.float().softmax(dim=-1).max(dim=-1) for logits in (local, received)
    )
    share = torch.exp2(-(sure - sure_received).abs() / gap)
    share = torch.where(sure >= threshold, share, 0.0)[..., None]
    count = local.shape[-1]
    target = share * F.one_hot(own, count) + (1 - share) * F.one_hot(other, count)
    return target, (sure >= threshold) | (sure_received >= threshold)


def divergence(target: Tensor, logits: Tensor, used: Tensor) -> Tensor:
    """Return the mean of KL(q || softmax(logits)), 0 where q is not used.

    q and logits are (..., outcomes), `used` is bool (...), of which all count in the mean.
    """
    entropy = torch.xlogy(target, target).sum(dim=-1)
    each = entropy - (target * logits.float().log_softmax(dim=-1)).sum(dim=-1)
    return (each * used).mean()


def labelled_part(
    train: Split, share: float, generator: np.random.Generator
) -> tuple[Split, Split]:
    """Return the examples with a label, at least one, and those without."""
    order, count = generator.permutation(len(train)), max(1, round(share * len(train)))
    return train.take(np.sort(order[:count])), train.take(np.sort(order[count:]))


class Client(GroupClient):
    """Client half: the task's loss, and agreement with both models on unlabelled examples."""

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config, model, task = context.config, state.model, context.data.task
        received = copy.deepcopy(model).eval().requires_grad_(False)
        draws = context.numpy_generator("labelled", server_round=0)
        labelled, rest = labelled_part(context.data.train, config.labelled_fraction, draws)
        unlabelled, own_task = self._unlabelled(context, rest), task_loss(task, model)
        generator = context.generator("views")

        def loss(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            items = unlabelled(len(targets))
            weak, strong = _views(items, generator)
            # BatchNorm keeps the statistics of the labelled examples, which are the client's own.
            with evaluating(model):
                with torch.no_grad():
                    own, other = (outcomes(task, part(weak)) for part in (model, received))
                    target, used = pseudo_labels(own, other, config.threshold, config.gap)
                agreement = divergence(target, outcomes(task, model(strong)), used)
            return {**own_task(inputs, targets), "loss_unlabelled": config.weight * agreement}

        metrics = train_epochs(context, [model], loss, split=labelled)
        return self.outgoing(state), metrics

    def _unlabelled(self, context: ClientContext, rest: Split) -> Draw:
        """Return what draws from public items, or from the client's own without a label."""
        draws = context.numpy_generator("unlabelled")
        if context.config.labelled_fraction < 1 and len(rest):
            return lambda count: to_inputs(
                rest.batch(draws.integers(len(rest), size=count))[0], context.device
            )
        public = PublicInputs(context)
        return lambda count: public.batch(draws.integers(len(public), size=count).astype(np.int32))


def _views(items: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the weak and the strong view of images (B, C, H, W) or tokens (B, L)."""
    if not items.is_floating_point():
        return items, drop_tokens(items, generator)
    return augment("crop-flip", items, generator), resized_view(items, generator)


class Server(AveragingServer):
    """Server half: means by architecture, and by task where there are several."""

    def check(
        self, context: ServerContext, state: ServerState | None, client: ClientInfo
    ) -> str | None:
        """Return what is wrong with a client's task, or is unlike others' data, or None."""
        task = client.task.partition("@")[0]
        if task not in SERVED:
            return _not_served(task)
        return super().check(context, state, client)


def _not_served(task: str) -> str:
    return f"sage learns from views of unlabelled examples, and those of {task} keep no labels"


def _refused(run: RunConfig) -> str | None:
    """Return which of the run's tasks the method cannot serve, or None."""
    for spec in parse_tasks(run.tasks):
        if spec.task not in SERVED:
            return f"tasks: {_not_served(spec.task)}; expected {', '.join(SERVED)}"
    return None


METHOD = register(
    __name__,
    summary="weights are averaged; clients also learn what both models say of unlabelled examples",
    training=Training(optimizer="sgd", lr=0.1),
    common_feature_dim=False,
    evaluated_model="global",
    any_task=True,
    public_data=True,
    averages=True,
    refuses=_refused,
)
