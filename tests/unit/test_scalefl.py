"""ScaleFL by hand: the loss of exits, what a level has, when distillation begins."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from models.channels import Part
from strategies.common.layerwise import WeightsPayload
from strategies.common.parts import bare_part
from strategies.scalefl import Client, Config, ExitNetwork, Levels, exit_terms
from tests.unit.layerwise_support import update
from tests.unit.test_channels import SHAPE
from tests.unit.test_part_methods import a_server
from tests.unit.test_training import a_context

LOG3 = math.log(3)


def test_the_loss_of_two_exits_by_hand() -> None:
    """Exit 1 says (0, 0), exit 2 says (log 3, 0), of class 0; tau 1: p = (3/4, 1/4)."""
    first, second = torch.zeros(1, 2), torch.tensor([[LOG3, 0.0]])
    terms = exit_terms([first, second], torch.tensor([0]), gamma=0.5, tau=1.0)
    assert terms["loss_ce"].item() == pytest.approx((math.log(2) + 2 * math.log(4 / 3)) / 3)
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert terms["loss_kd"].item() == pytest.approx(0.5 * kl / 3)


def test_temperature_softens_and_weighs() -> None:
    """With tau 2 the deepest exit's (2 log 3, 0) is again (3/4, 1/4), times tau squared."""
    first, second = torch.zeros(1, 2), torch.tensor([[2 * LOG3, 0.0]])
    terms = exit_terms([first, second], torch.tensor([1]), gamma=1.0, tau=2.0)
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert terms["loss_kd"].item() == pytest.approx(4 * kl / 3)


def test_the_deepest_exit_is_not_taught() -> None:
    first, second = (torch.zeros(1, 2, requires_grad=True) for _ in range(2))
    logits = [first, second + torch.tensor([[1.0, 0.0]])]
    exit_terms(logits, torch.tensor([0]), 0.5, 3.0)["loss_kd"].backward()
    assert first.grad is not None
    assert first.grad.abs().sum() > 0
    assert second.grad is None


def test_one_exit_has_nobody_to_learn_from() -> None:
    terms = exit_terms([torch.zeros(1, 2)], torch.tensor([0]), gamma=1.0, tau=1.0)
    assert terms.keys() == {"loss_ce"}
    assert terms["loss_ce"].item() == pytest.approx(math.log(2))


def test_levels_have_the_first_stages_of_the_network_narrower() -> None:
    """Of 16, 32, 64 and 128 channels, 0.7 are 12, 23, 45 and 90 (rounded up)."""
    parts = Levels()
    whole = bare_part(parts, "resnet10-w4", SHAPE, Part(1.0)).state_dict()
    assert {"exits.0.weight", "exits.2.bias", "head.weight"} < whole.keys()
    second = bare_part(parts, "resnet10-w4", SHAPE, Part(0.7, depth=2))
    own = second.state_dict()
    assert own.keys() < whole.keys()
    stages = {name.split(".")[1] for name in own if name.startswith("backbone.layer")}
    assert stages == {"layer1", "layer2"}
    assert {n for n in own if n.startswith(("exits", "head"))} == {
        f"exits.{i}.{part}" for i in (0, 1) for part in ("weight", "bias")
    }
    assert own["exits.0.weight"].shape == (3, 12)
    assert own["exits.1.weight"].shape == (3, 23)
    assert (second.raw_dim, second.feature_dim) == (23, 23)
    last = bare_part(parts, "resnet10-w4", SHAPE, Part(1.0, depth=4))
    assert {k: v.shape for k, v in last.state_dict().items()} == {
        k: v.shape for k, v in whole.items()
    }


def test_levels_are_dealt_out_and_a_device_says_its_share_of_the_exits() -> None:
    run = a_context(4, method="scalefl", models="*=resnet10-w4").run
    parts = [Levels().part(run, client, 1, 0.0) for client in range(5)]
    assert [part.depth for part in parts] == [1, 2, 3, 4, 1]
    assert [part.rate for part in parts] == [0.7, 0.7, 0.75, 1, 0.7]
    assert Levels().part(run, 0, 1, 0.75) == Part(0.75, depth=3)


def test_a_deeper_stage_is_averaged_over_who_has_it() -> None:
    server = a_server("scalefl", {0: 0.5, 1: 1.0})
    updates = []
    for client, value in ((0, 1.0), (1, 5.0)):
        sent = server.downlink_for(client, 1)
        weights, buffers = (
            {name: np.full_like(item, value) for name, item in field.items()}
            for field in (sent.weights, sent.buffers)
        )
        updates.append(update(client, 3, WeightsPayload(weights, buffers)))
    server.aggregate_in(1, iter(updates))
    after = server.state.weights
    assert after["backbone.conv1.weight"][:12].unique().tolist() == [3.0]
    assert after["backbone.conv1.weight"][12:].unique().tolist() == [5.0]
    assert after["backbone.layer3.0.conv1.weight"].unique().tolist() == [5.0]
    assert after["backbone.bn1.running_var"].tolist() == 12 * [3.0] + 4 * [5.0]
    assert after["exits.1.bias"].tolist() == [3.0] * 3
    assert after["head.bias"].tolist() == [5.0] * 3


@pytest.mark.parametrize(("rounds", "first"), [(8, 4), (10, 4), (100, 27)])
def test_distillation_begins_after_a_quarter_of_the_rounds(rounds: int, first: int) -> None:
    """The authors count from 0: more than a quarter of the rounds have to be over."""
    assert Config().in_rounds(rounds).distil_from == first
    assert first - 1 > rounds / 4 >= first - 2
    assert Config(distil_from=7).in_rounds(rounds).distil_from == 7
    assert Config(gamma=0.0).in_rounds(rounds).distil_from == 0


@pytest.mark.parametrize(("server_round", "distils"), [(3, False), (4, True)])
def test_training_distils_from_then_on(server_round: int, distils: bool) -> None:
    config = {"method": "scalefl", "models": "*=resnet10-w4", "num-rounds": 8}
    context = dataclasses.replace(a_context(6, server_round=server_round, **config), client_id=1)
    server = a_server("scalefl", {1: None})
    half = Client()
    state = half.build(context)
    half.receive(context, state, server.downlink_for(1, server_round))
    assert isinstance(state.model, ExitNetwork)
    assert len(state.model.logits(torch.zeros(2, 1, 16, 16))) == 2
    _, metrics = half.train(context, state, server.downlink_for(1, server_round))
    assert ("loss_kd" in metrics) is distils
    assert metrics["exits"] == 2
