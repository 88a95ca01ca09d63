"""What tests of the methods on the layer-wise base share: servers, rounds, a linear model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_app.handlers import describe_client
from models import InputShape, build_model
from strategies.base.client import ClientContext
from strategies.base.messages import ClientUpdate
from strategies.base.method import get_method
from strategies.base.parsing import parse_run_config
from strategies.base.payload import pack, unpack
from strategies.common.layerwise import split_state
from strategies.common.training import device_batches
from tests.support import ServerAtWork
from tests.unit.test_roster import a_client_info
from tests.unit.test_training import a_context

NESTED = ("resnet10-w4", "resnet14-w4", "resnet18-w4")
SHAPE = InputShape(channels=1, image_size=16, num_classes=3)

State = dict[str, NDArray[Any]]


def a_server(models: Mapping[int, str], method: str = "fedavg", **config: Any) -> Any:
    """A server half that knows clients 0, 1, ... with these architectures, 16x16 grey images."""
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}
    run = parse_run_config({"method": method, "feature-dim": 8, **keys})
    return ServerAtWork(run, [card_of(client, model) for client, model in models.items()])


def card_of(client: int, model: str) -> Any:
    return a_client_info(client, model=model, num_classes=3, image_size=16)


def states_of(model: str, seed: int) -> tuple[State, State]:
    """A client's parameters and buffers: random numbers, and counters that differ by client."""
    generator = np.random.default_rng(seed)
    with torch.device("meta"):
        parts = split_state(build_model(model, SHAPE, 8))

    def draw(shape: tuple[int, ...], integer: bool) -> NDArray[Any]:
        if integer:
            return np.array(generator.integers(1, 100, shape), np.int64)
        return np.array(generator.normal(size=shape), np.float32)

    first, second = (
        {n: draw(tuple(v.shape), not v.is_floating_point()) for n, v in part.items()}
        for part in parts
    )
    return first, second


def update(client: int, examples: int, uplink: Any) -> ClientUpdate:
    return ClientUpdate(client, examples, uplink, [], 0.0, 0, 0, "")


def play(
    server: Any,
    contexts: Mapping[int, ClientContext],
    states: dict[int, Any],
    server_round: int,
    participants: Iterable[int],
) -> dict[int, ClientUpdate]:
    """One whole round over the real wire format; private states stay in `states`."""
    half, method, run = server.method.client(), server.method, server.run
    server.server_round = server_round
    dims = server.context.dims
    updates = {}
    for client in participants:
        context = dataclasses.replace(contexts[client], server_round=server_round, run=run)
        info = server.clients[client]
        content = pack(server.downlink_for(client, server_round))
        downlink = unpack(method.downlink, content, dims, half.templates(context))
        state = states[client] if client in states else half.build(context)
        states[client] = state
        half.receive(context, state, downlink)
        sent, _ = half.train(context, state, downlink)
        uplink = unpack(method.uplink, pack(sent), dims, server.templates(info))
        updates[client] = update(client, len(context.data.train), uplink)
        server.check_uplink(updates[client])
    server.aggregate_in(server_round, iter(updates.values()))
    return updates


def server_for(contexts: Mapping[int, ClientContext], method: str, **config: Any) -> Any:
    """A server half that has admitted the clients of these contexts."""
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}
    run = parse_run_config({"method": method, **keys})
    chosen = get_method(method)
    return ServerAtWork(
        run,
        [
            dataclasses.replace(
                describe_client(dataclasses.replace(c, run=run, server_round=0), chosen),
                client_id=k,
            )
            for k, c in contexts.items()
        ],
    )


LR, LINEAR = 0.05, "tests.unit.layerwise_support:pooled"


class Pooled(nn.Module):
    """No parameters: 16 means of the image. With the head above, the model is linear."""

    raw_dim = 16

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


def pooled(shape: InputShape) -> nn.Module:
    return Pooled()


def linear_contexts(*sizes: int, **config: Any) -> dict[int, ClientContext]:
    """Clients with so many examples, each of a linear model: 3 classes, 16 features and a bias."""
    keys = {"feature_dim": 16, "batch_size": 4, "lr": LR, **config}
    return {
        client: dataclasses.replace(
            a_context(size, method="scaffold", **keys),
            client_id=client,
            model_name=LINEAR,
        )
        for client, size in enumerate(sizes)
    }


def linear_server(contexts: dict[int, ClientContext], method: str = "scaffold", **more: Any) -> Any:
    config = {"feature_dim": 16, "batch_size": 4, "lr": LR, "optimizer": "sgd", **more}
    return server_for(contexts, method, **config)


Batch = tuple[NDArray[Any], NDArray[Any]]


def batches_of(context: ClientContext, server_round: int) -> list[Batch]:
    """The batches of a round in their order: (B, 17) features with a constant, (B,) labels."""
    local = dataclasses.replace(context, server_round=server_round)
    generator, result = local.generator("batches"), []
    for _ in range(local.run.local_epochs):
        for images, labels in device_batches(
            local, local.data.train, local.run.batch_size, generator
        ):
            features = Pooled()(images).double().numpy()
            ones = np.ones((len(features), 1))
            result.append((np.concatenate([features, ones], axis=1), labels.numpy()))
    return result


def gradient(w: NDArray[Any], batch: Batch) -> NDArray[Any]:
    """Gradient (3, 17) of the mean cross entropy of logits x W^T, in float64."""
    x, y = batch
    logits = x @ w.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return np.asarray(p.T @ x / len(y))


def joined(entries: Any) -> NDArray[Any]:
    """Weight (3, 16) and bias (3,) of the head as one matrix (3, 17)."""
    weight, bias = (np.asarray(entries[f"head.{n}"], np.float64) for n in ("weight", "bias"))
    return np.concatenate([weight, bias[:, None]], axis=1)
