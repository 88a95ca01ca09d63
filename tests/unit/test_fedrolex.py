"""FedRolex: which channels are sent and averaged in which round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from strategies.common.layerwise import WeightsPayload
from tests.unit.layerwise_support import update
from tests.unit.test_part_methods import a_server

CONV = "backbone.layer1.0.conv1.weight"
"""16 outputs of 16 inputs."""


def test_windows_move_on_by_a_channel_a_round_and_wrap_around() -> None:
    server = a_server("fedrolex", {0: 0.25})
    whole = server.state.weights[CONV]
    for number, channels in ((1, [0, 1, 2, 3]), (2, [1, 2, 3, 4]), (15, [0, 1, 14, 15])):
        sent = server.downlink_for(0, number).weights[CONV]
        assert np.array_equal(sent, whole[channels][:, channels])
    assert np.array_equal(server.downlink_for(0, 17).weights[CONV], whole[:4, :4])


def test_what_returns_goes_where_it_came_from() -> None:
    """In round 4 a client of rate 1/8 has channels 3 and 4; one of rate 1/16 has channel 3."""
    server = a_server("fedrolex", {0: 0.125, 1: 0.0625}, **{"fedrolex.mask-absent": False})
    before = server.state.weights[CONV].clone()
    updates = []
    for client, value in ((0, 2.0), (1, 6.0)):
        sent = server.downlink_for(client, 4).weights
        filled = {name: np.full_like(item, value) for name, item in sent.items()}
        updates.append(update(client, 3, WeightsPayload(filled, {})))
    server.aggregate_in(4, iter(updates))
    after = server.state.weights[CONV]
    assert after[3, 3].unique().tolist() == [4.0]
    assert after[4, 3].unique().tolist() == after[3, 4].unique().tolist() == [2.0]
    changed = (after != before).any(dim=(2, 3)).nonzero().tolist()
    assert changed == [[3, 3], [3, 4], [4, 3], [4, 4]]


def test_all_values_of_a_layer_that_keeps_its_width_are_reached_in_a_cycle() -> None:
    """A value (i, j) is reached where both channels are in a window: near the diagonal."""
    server: Any = a_server("fedrolex", {0: 0.5})
    reached = torch.zeros(16, 16)
    for number in range(1, 17):
        rows, columns = server.half._indices(
            server.context, server.state, server.half.parts.part(server.run, 0, number, 0.5)
        )[CONV]
        reached[np.ix_(rows, columns)] += 1
    assert reached.sum(dim=1).unique().tolist() == [64.0]  # each output channel 8 times 8 inputs
    assert reached.diagonal().unique().tolist() == [8.0]
