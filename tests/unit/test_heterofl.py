"""HeteroFL by hand: masked cross entropy, scaler, static statistics, rows of the head."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models import build_model
from strategies.common.layerwise import WeightsPayload
from strategies.common.widths import compute_statistics, masked_cross_entropy, scale
from strategies.heterofl import Client
from tests.unit.layerwise_support import update
from tests.unit.test_channels import SHAPE
from tests.unit.test_part_methods import a_server
from tests.unit.test_training import a_context


def test_masked_cross_entropy_by_hand() -> None:
    """Logits (2, 5, 1), class 1 absent: cross entropy of (2, 0, 1), and no gradient to class 1."""
    layer = nn.Linear(1, 3)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([2.0, 5.0, 1.0]))
    loss = masked_cross_entropy(layer, [0, 2], 3)(torch.zeros(1, 1), torch.tensor([2]))["loss_ce"]
    assert loss.item() == pytest.approx(math.log(math.e**2 + 1 + math.e) - 1)
    loss.backward()
    assert layer.bias.grad is not None
    assert layer.bias.grad[1] == 0
    assert layer.bias.grad[2] != 0


def test_the_scaler_divides_in_training_alone() -> None:
    plain, scaled = (build_model("cnn5", SHAPE, mapping="none", seed=0) for _ in range(2))
    scale(scaled, 0.25)
    layer, same = (m.get_submodule("backbone.conv.0") for m in (scaled, plain))
    images = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(images), 4 * same(images))
    scaled.eval()
    torch.testing.assert_close(layer(images), same(images))


def test_statistics_are_those_of_the_unscaled_training_images() -> None:
    context = a_context(5, method="heterofl", models="*=resnet10-w4")
    model = build_model("resnet10-w4", SHAPE, mapping="none", seed=0)
    scale(model, 0.5)
    norm: Any = model.get_submodule("backbone.bn1")
    seen = []
    norm.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    compute_statistics(context, model)
    (maps,) = seen
    torch.testing.assert_close(norm.running_mean, maps.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, maps.var((0, 2, 3)))
    with torch.no_grad():
        first = next(context.data.train.batches(5))[0]
        conv: Any = model.get_submodule("backbone.conv1")
        torch.testing.assert_close(maps, conv((first.float() / 255 - 0.5) / 0.5))
    assert (norm.momentum, norm.training, model.training) == (0.1, False, False)


def test_one_example_has_no_statistics() -> None:
    model = build_model("resnet10-w4", SHAPE, mapping="none", seed=0)
    compute_statistics(a_context(1, method="heterofl", models="*=resnet10-w4"), model)
    norm: Any = model.get_submodule("backbone.bn1")
    assert norm.running_mean.eq(0).all()
    assert norm.running_var.eq(1).all()


def test_the_mean_is_over_holders_and_the_heads_over_owners() -> None:
    """Client 0 has the whole and class 0, 1; client 1 half and class 1, 2; class 2 of 3 by hand."""
    server = a_server("heterofl", {0: 1.0, 1: 0.5})
    server.clients = {
        client: dataclasses.replace(info, classes=classes)
        for (client, info), classes in zip(server.clients.items(), ([0, 1], [1, 2]), strict=True)
    }
    before = {name: item.clone() for name, item in server.state.weights.items()}
    updates = []
    for client, value in ((0, 1.0), (1, 4.0)):
        sent = server.downlink_for(client, 1).weights
        assert sent["head.weight"].shape == (3, 128 if client == 0 else 64)
        filled = {name: np.full_like(item, value) for name, item in sent.items()}
        updates.append(update(client, 1 + 8 * client, WeightsPayload(filled, {})))
    assert server.aggregate_in(1, iter(updates)) == {}
    after = server.state.weights
    conv = after["backbone.layer1.0.conv1.weight"]
    assert conv[:8, :8].unique().tolist() == [2.5]  # (1 + 4) / 2: examples do not count
    assert conv[8:].unique().tolist() == conv[:, 8:].unique().tolist() == [1.0]
    head, old = after["head.weight"], before["head.weight"]
    assert head[0].unique().tolist() == [1.0]
    assert head[1, :64].unique().tolist() == [2.5]
    assert head[1, 64:].unique().tolist() == [1.0]
    assert head[2, :64].unique().tolist() == [4.0]
    assert torch.equal(head[2, 64:], old[2, 64:]), "nobody holds it"
    assert after["head.bias"].tolist() == [1.0, 2.5, 4.0]


def test_static_statistics_never_travel() -> None:
    context = a_context(6, method="heterofl", models="*=resnet10-w4", **{"num-rounds": 1})
    templates = Client().templates(context)
    assert templates["buffers"] == {}
    assert not any("running" in name for name in templates["weights"])
    running = {"heterofl.norm": "running", "heterofl.scaler": False}
    context = a_context(6, method="heterofl", models="*=resnet10-w4", **running)
    assert any("running_var" in name for name in Client().templates(context)["buffers"])
