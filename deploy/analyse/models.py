"""The models of a run as its last evaluation had them, and what they make of examples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.split import Split
from data.tasks import METRIC_OF
from deploy.analyse.regions import Head
from deploy.kept_run import KeptClient, KeptRun, downlink_for
from models import SplitModel, TaskModel
from models.base import Backbone
from strategies.base.options import ConfigError
from strategies.common.training import EVALUATION_BATCH, device_batches, precision

REPRESENTATION = "representation"


@dataclass(frozen=True, eq=False)
class Analysed:
    """A client whose model is looked into.

    Attributes
    ----------
    client : KeptClient
        The client, with its newest state.
    downlink : payload
        What the server had for it after the last round.
    """

    client: KeptClient
    downlink: Any

    @property
    def number(self) -> int:
        """The client's id."""
        return self.client.context.client_id

    @property
    def model(self) -> SplitModel | TaskModel:
        """Its model."""
        model: SplitModel | TaskModel = self.client.state.model
        return model

    @property
    def head(self) -> Head | None:
        """What its model decides by; None where that does not read the representation."""
        if isinstance(self.model, TaskModel):
            return None
        return Head(*(p.detach().float().cpu().numpy() for p in self.model.head.parameters()))

    @torch.no_grad()
    def scores(self, split: Split) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return class probabilities (n, C) by the method's main prediction, and labels (n,)."""
        found, labels = [], []
        for inputs, targets in device_batches(self.client.context, split, EVALUATION_BATCH):
            with precision(self.client.context):
                outputs = self.client.half.predict(self.client.state, self.downlink, inputs)
            main = next(iter(outputs.values()))
            found.append(main.float().softmax(dim=1).cpu().numpy())
            labels.append(targets.cpu().numpy())
        return np.concatenate(found), np.concatenate(labels)

    @torch.no_grad()
    def stages(self, split: Split) -> dict[str, NDArray[np.float32]]:
        """Return what every stage of the model makes of examples, (n, d) each, in order.

        Stages are the backbone's `feature_levels`, the first nearest to the examples, and the
        representation: what the head reads, or, of a model that is aligned beside its head, what is
        aligned.
        """
        model = self.model
        if isinstance(model, TaskModel):
            backbone, represent = model.encoder, model.represent
        else:
            backbone, represent = model.backbone, model.features
        levels = backbone.feature_levels() if isinstance(backbone, Backbone) else []
        found: dict[str, list[NDArray[np.float32]]] = {}
        with ExitStack() as hooks:
            for number, level in enumerate(levels):
                parts = found.setdefault(f"stage {number + 1}", [])
                hook = level.register_forward_hook(_keeper(parts))
                hooks.callback(hook.remove)
            parts = found.setdefault(REPRESENTATION, [])
            for inputs, _ in device_batches(self.client.context, split, EVALUATION_BATCH):
                parts.append(_flat(represent(inputs)))
        return {name: np.concatenate(parts) for name, parts in found.items()}


def _keeper(parts: list[NDArray[np.float32]]) -> Any:
    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        parts.append(_flat(output))

    return keep


def _flat(output: Tensor) -> NDArray[np.float32]:
    values: NDArray[np.float32] = output.float().flatten(1).cpu().numpy()
    return values


def analysed(run: KeptRun, wanted: list[int]) -> Iterator[Analysed]:
    """Yield these clients one by one, as the last evaluation of the run had them.

    A method that evaluates before training is given the server's last downlink; one that evaluates
    after it keeps the model that the client trained, unless that model comes with the downlink.

    Raises
    ------
    ConfigError
        A state is not kept, or the clients do not classify examples of one data set.
    """
    last = run.last_round
    server = run.server_before(last + 1)
    for number in wanted:
        client = run.newest(number, last)
        _refuse_other_tasks(client)
        downlink = downlink_for(server, number)
        if client.is_bare or client.context.run.evaluates_before_training:
            client.receive(downlink)
        yield Analysed(client, downlink)


def _refuse_other_tasks(client: KeptClient) -> None:
    data, number = client.context.data, client.context.client_id
    if METRIC_OF[data.task] != "accuracy" or data.classes:
        raise ConfigError(
            f"client {number}: its task is {client.context.task or data.task}; wildflower analyse "
            "compares models that classify examples of one data set into the same classes"
        )
    if not isinstance(getattr(client.state, "model", None), SplitModel | TaskModel):
        raise ConfigError(f"client {number}: method {client.context.run.method} has no one model")


def common_examples(run: KeptRun, clients: list[int], count: int, seed: int) -> Split:
    """Draw test examples for all models: of the union of the clients' test sets, in fixed order.

    Fewer than `count` if there are no more.

    Raises
    ------
    ConfigError
        There are none, or the clients have unlike data sets.
    """
    contexts = [run.context(client, 0) for client in clients]
    prints = {context.data.dataset.fingerprint for context in contexts}
    if len(prints) > 1:
        raise ConfigError(
            f"{run.directory}: the clients learn from {len(prints)} data sets; wildflower analyse "
            "compares models on examples that all of them can read"
        )
    rows = np.unique(np.concatenate([context.data.test.indices for context in contexts]))
    if not len(rows):
        raise ConfigError(
            f"{run.directory}: no client has test examples; run with test-split = 'personal' or "
            "'global'"
        )
    chosen = np.random.default_rng(seed).permutation(rows)[:count]
    return replace(contexts[0].data.test, indices=np.sort(chosen))
