"""FedIN between unlike stems and widths: projections into a common space, and who is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from models import InputShape, build_model
from strategies.base.client import ClientContext
from strategies.base.server import RegistrationError
from strategies.fedin.feature_pool import common_shape, shape_for
from strategies.fedin.features import FeatureShape
from strategies.fedin.fedin import Client
from strategies.fedin.projections import Projections, projections_for, semi_orthogonal
from tests.unit.test_fedin import MAPS, context_of
from tests.unit.test_fedin_server import server_of
from tests.unit.test_layerwise import card_of, play, server_for


def test_projections_are_semi_orthogonal() -> None:
    for rows, columns in ((5, 3), (3, 5)):
        matrix = semi_orthogonal(rows, columns, torch.Generator().manual_seed(0))
        product = matrix.T @ matrix if rows > columns else matrix @ matrix.T
        torch.testing.assert_close(product, torch.eye(3))


def test_an_architecture_gets_back_what_it_sent_and_draws_by_its_name() -> None:
    own, common = FeatureShape(4, 3, 5), FeatureShape(6, 3, 9)
    first, same, other = (Projections(own, common, 0, name, False) for name in ("a", "a", "b"))
    x, r = torch.randn(2, 4, 3, 3), torch.randn(2, 5)
    sent, vector = first.send_maps(x), first.send_features(r)
    assert sent.shape == (2, 6, 3, 3)
    assert vector.shape == (2, 9)
    torch.testing.assert_close(same.take_maps(sent), x)
    torch.testing.assert_close(same.take_features(vector), r)
    torch.testing.assert_close(sent.square().sum(), x.square().sum())
    assert torch.equal(same.send_maps(x), sent)
    assert not torch.allclose(other.send_maps(x), sent)
    assert not torch.allclose(Projections(own, common, 1, "a", False).send_maps(x), sent)


def test_sizes_are_pooled_and_equal_widths_stay_as_they_are() -> None:
    there = Projections(FeatureShape(2, 4, 5), FeatureShape(2, 2, 5), 0, "a", True)
    x, r = torch.randn(3, 2, 4, 4), torch.randn(3, 5)
    torch.testing.assert_close(there.send_maps(x), F.avg_pool2d(x, 2))
    back = there.take_maps(F.avg_pool2d(x, 2))
    torch.testing.assert_close(back, F.interpolate(F.avg_pool2d(x, 2), scale_factor=2))
    assert there.send_features(r) is r
    assert not there.trainable
    assert not list(there.parameters())


def test_the_detour_trains_projections_and_not_the_model() -> None:
    context = context_of(4, fedin__projection="trainable")
    model: Any = context.build_model().eval()
    there = projections_for(context, model, FeatureShape(32, 4, 12), {})
    assert there.trainable
    assert {name for name, _ in there.named_parameters()} == {
        "maps_out", "maps_in", "features_out", "features_in",
    }  # fmt: skip
    logits = there.detour(model, torch.randn(2, *MAPS))
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in there.parameters())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


UNLIKE = {0: "cnn5", 1: "resnet10-w4", 2: "resnet14-w4", 3: "resnet10", 4: "resnet10-w4"}


def unlike_contexts() -> dict[int, ClientContext]:
    return {
        client: dataclasses.replace(context_of(6 + client, server_round=1), client_id=client,
                                    model_name=model)
        for client, model in UNLIKE.items()
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["fixed", "trainable"])
def test_cnns_and_resnets_of_two_widths_train_each_other(kind: str) -> None:
    """Raw widths 500, 128 and 512; stems 16x6x6, 16x4x4 and 64x4x4: common 64x4x4 and 512."""
    contexts = unlike_contexts()
    keys = {"fedin__projection": kind, "fedin__local_width": "raw", "fedin__feature_batch_size": 5}
    server = server_for(contexts, "fedin", batch_size=6, lr=0.01, **keys)
    assert common_shape(server.context) == FeatureShape(64, 4, 512)
    assert shape_for(server.context, "cnn5") == FeatureShape(16, 6, 500)
    assert shape_for(server.context, "resnet14-w4") == FeatureShape(16, 4, 128)
    assert not server.state.layerwise
    states: dict[int, Any] = {}
    play(server, contexts, states, 1, UNLIKE)
    kept = {client: dict(state.projections) for client, state in states.items()}
    updates = play(server, contexts, states, 2, UNLIKE)
    for item in updates.values():
        assert item.uplink.s_in.shape == (5, 64, 4, 4)
        assert item.uplink.s_out.shape == (5, 512)
    # Two clients of one architecture share a mean; others have none of it.
    name = "resnet10-w4/backbone.layer1.0.conv1.weight"
    pair = [
        (updates[i].uplink.weights[name.split("/")[1]], updates[i].num_examples) for i in (1, 4)
    ]
    mean = sum(w * n for w, n in pair) / sum(n for _, n in pair)
    np.testing.assert_allclose(server.state.weights[name].numpy(), mean, rtol=1e-5, atol=1e-7)
    for client, state in states.items():
        trains = kind == "trainable" and client != 3  # resnet10's own space is the common one
        assert bool(state.projections) is trains
        for key, matrix in state.projections.items():
            assert not torch.equal(matrix, kept[client][key]), key


def test_fixed_projections_of_a_client_are_those_of_its_architecture() -> None:
    contexts = unlike_contexts()
    common = FeatureShape(64, 4, 8)
    first, other = (
        projections_for(contexts[i], Client().build(contexts[i]).model, common, {}) for i in (1, 4)
    )
    assert first.maps_out is not None
    assert other.maps_out is not None
    assert torch.equal(first.maps_out, other.maps_out)
    torch.testing.assert_close(first.maps_out.T @ first.maps_out, torch.eye(16))


def test_a_common_space_of_ones_own_makes_the_payload_smaller() -> None:
    server = server_of(common_channels=4, common_size=2, common_width=6)
    downlink = server.downlink_for(0, 1)
    assert downlink.s_in.shape == (0, 4, 2, 2)
    assert downlink.s_out.shape == (0, 6)
    assert not server.state.layerwise
    assert common_shape(server.context) == FeatureShape(channels=4, size=2, width=6)


def test_a_family_of_one_stem_is_averaged_by_layer() -> None:
    assert server_of().state.layerwise
    assert not server_of({0: "cnn5", 1: "resnet10-w4"}).state.layerwise


def test_unfit_clients_are_named_at_the_roll_call() -> None:
    with pytest.raises(
        RegistrationError, match=r"client 1: model mobilenetv2 cannot be cut .*ResNet or"
    ):
        server_of({0: "resnet10-w4", 1: "mobilenetv2"})
    with pytest.raises(
        RegistrationError,
        match=r"client 1: model cnn5 gives 16x6x6 .* client 0's resnet10-w4 16x4x4 .*'fixed'",
    ):
        server_of({0: "resnet10-w4", 1: "cnn5"}, projection="none")
    server = server_of(projection="none", aggregation="architecture")
    with pytest.raises(RegistrationError, match=r"client 7: model resnet10 gives 64x4x4"):
        server.admit([card_of(7, "resnet10")])
    assert 7 not in server.clients


def test_a_late_joiner_takes_the_common_space_as_it_is() -> None:
    server = server_of({0: "cnn5", 1: "resnet10-w4"})
    assert common_shape(server.context) == FeatureShape(16, 4, 8)
    server.admit([card_of(2, "resnet10")])
    downlink = server.downlink_for(2, 2)
    assert downlink.shape == FeatureShape(16, 4, 8)
    assert downlink.s_in.shape == (0, 16, 4, 4)
    with torch.device("meta"):
        parameters = build_model("resnet10", InputShape(1, 16, 3), 8).named_parameters()
        assert set(downlink.weights) == {name for name, _ in parameters}
